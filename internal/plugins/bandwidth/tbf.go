package bandwidth

import (
	"errors"
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
)

const (
	// tick is the kernel's unit of time in queueing disciplines, in nanoseconds
	// (PSCHED_SHIFT of net/pkt_sched.h).
	tick           = 64
	ticksPerSecond = 1_000_000_000 / tick
	// latenciesPerSecond is the inverse of the maximum latency: a packet waits
	// for at most 25 ms before it is dropped.
	latenciesPerSecond = 40
)

// bucket is a token bucket filter (TBF) with the parameters of the kernel.
type bucket struct {
	rate  uint64 // bytes per second
	burst uint32 // time to send the burst at that rate, in ticks
	limit uint32 // bytes in the queue
}

// fill returns a bucket for a rate in bytes per second and a burst in bytes. It
// rounds the burst up, so that a packet of the size of the burst is not
// dropped. It limits the burst to the kernel's maximum of 274 seconds.
func fill(rate, burst uint64) bucket {
	ticks := (burst*ticksPerSecond + rate - 1) / rate // 2^32 times 2^24 at most
	return bucket{
		rate:  rate,
		burst: saturate(ticks),
		limit: saturate(rate/latenciesPerSecond + burst),
	}
}

func saturate(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

// rootHandle is 1:, the reference plugin's handle.
var rootHandle = netlink.MakeHandle(1, 0)

// qdisc returns the bucket as the root discipline of a link.
func (b *bucket) qdisc(link int) *netlink.Tbf {
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link, Handle: rootHandle, Parent: netlink.HANDLE_ROOT},
		Rate:       b.rate,
		Limit:      b.limit,
		Buffer:     b.burst,
	}
}

// differs returns an error that describes the difference between this bucket
// and the kernel's. It tolerates the reference plugin's values: that plugin
// truncates the burst to whole microseconds, and stores any value for one
// beyond the maximum.
func (b *bucket) differs(have *netlink.Tbf) error {
	const microsecond = 1000/tick + 1
	switch {
	case have.Rate != b.rate:
		return fmt.Errorf("the rate is %d bytes per second, not %d", have.Rate, b.rate)
	case have.Limit != b.limit && b.limit != math.MaxUint32:
		return fmt.Errorf("the limit is %d bytes, not %d", have.Limit, b.limit)
	case b.burst != math.MaxUint32 && (have.Buffer > b.burst || b.burst-have.Buffer > microsecond):
		return fmt.Errorf("the burst is %d ticks, not %d", have.Buffer, b.burst)
	}
	return nil
}

// findRoot compares the bucket with the root discipline of a link.
func (b *bucket) findRoot(qdiscs []netlink.Qdisc) error {
	for _, q := range qdiscs {
		if tbf, ok := q.(*netlink.Tbf); ok && tbf.Parent == netlink.HANDLE_ROOT {
			return b.differs(tbf)
		}
	}
	return errors.New("it has no token bucket")
}
