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
	// latenciesPerSecond: a packet waits for 25 ms at most, then it is dropped.
	latenciesPerSecond = 40
)

// bucket is a token bucket filter (TBF) as the kernel takes it.
type bucket struct {
	rate  uint64 // bytes per second
	burst uint32 // the burst as the ticks that it takes at that rate
	limit uint32 // bytes that may wait
}

// fill makes a bucket from a rate in bytes per second and a burst in bytes. The
// burst is rounded up, so that no packet of that size is dropped. One that takes
// more than the 274 seconds that the kernel can tell is cut to those.
func fill(rate, burst uint64) bucket {
	ticks := (burst*ticksPerSecond + rate - 1) / rate // 2^32 times 2^24 at most
	return bucket{
		rate:  rate,
		burst: saturate(ticks),
		limit: saturate(rate/latenciesPerSecond + burst),
	}
}

func saturate(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

// rootHandle is 1:, as the reference plugin has it.
var rootHandle = netlink.MakeHandle(1, 0)

// qdisc is the bucket as the discipline of all that a link sends.
func (b *bucket) qdisc(link int) *netlink.Tbf {
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link, Handle: rootHandle, Parent: netlink.HANDLE_ROOT},
		Rate:       b.rate,
		Limit:      b.limit,
		Buffer:     b.burst,
	}
}

// differs says in what the kernel's bucket is not this one. The reference plugin
// cuts the burst to whole microseconds, and one that saturates to anything.
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

// findRoot finds the bucket among the disciplines of a link.
func (b *bucket) findRoot(qdiscs []netlink.Qdisc) error {
	for _, q := range qdiscs {
		if tbf, ok := q.(*netlink.Tbf); ok && tbf.Parent == netlink.HANDLE_ROOT {
			return b.differs(tbf)
		}
	}
	return errors.New("there is no token bucket")
}
