package conntrack

import (
	"context"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// TestFlushAddressesOfBothFamilies: an error in one family does not prevent the
// flush of the other.
func TestFlushAddressesOfBothFamilies(t *testing.T) {
	causes := map[uint8]error{v4: unix.EPERM, v6: unix.ENOBUFS}
	for _, failing := range [][]uint8{{v4}, {v6}, {v4, v6}} {
		var asked []uint8
		c := New()
		c.noText.Store(true)
		c.sockets = fakeKernel(func(_ uint16, family uint8) ([]byte, error) {
			asked = append(asked, family)
			if slices.Contains(failing, family) {
				return nil, causes[family]
			}
			return nil, nil
		})
		err := c.flushAddresses([]netip.Addr{ip4("10.77.0.5"), ip4("fd00:77::5")})
		require.Contains(t, asked, uint8(v4))
		require.Contains(t, asked, uint8(v6))
		for _, family := range failing {
			require.ErrorIs(t, err, causes[family])
		}
	}
}

// TestFlushOfForwardedEntries: an entry in a flow table is deleted after the
// flow table releases it, and does not count as deleted before.
func TestFlushOfForwardedEntries(t *testing.T) {
	for _, test := range []struct {
		busy int // how often the kernel returns EBUSY
		want error
	}{{2, nil}, {math.MaxInt, unix.EBUSY}} {
		deletions := 0
		c := New()
		c.noText.Store(true)
		c.sockets = fakeKernel(func(kind uint16, _ uint8) ([]byte, error) {
			if kind == getEntries {
				return entryOf(ip4("fd00:77::5")), nil
			}
			if deletions++; deletions <= test.busy {
				return nil, unix.EBUSY
			}
			return nil, nil
		})
		err := c.flushAddresses([]netip.Addr{ip4("fd00:77::5")})
		require.ErrorIs(t, err, test.want)
		require.Greater(t, deletions, 2)
	}
}

// fakeKernel answers requests by their type and family.
type fakeKernel func(kind uint16, family uint8) (entry []byte, err error)

func (k fakeKernel) answer(r *sock.Requests) ([]byte, error) {
	return k(binary.NativeEndian.Uint16(r.Data()[4:])&0xff, r.Data()[unix.SizeofNlMsghdr])
}

func (k fakeKernel) Exchange(_ context.Context, r *sock.Requests, each func(int, []byte, error)) error {
	_, err := k.answer(r)
	each(0, nil, err)
	return nil
}

func (k fakeKernel) Dump(_ context.Context, r *sock.Requests, each func([]byte) error) error {
	entry, err := k.answer(r)
	if entry != nil {
		err = each(entry)
	}
	return err
}

func (k fakeKernel) Close() error { return nil }

// entryOf returns a message with an entry whose replies come from an address.
func entryOf(answers netip.Addr) []byte {
	var r sock.Requests
	r.Append(make([]byte, sock.NetfilterHeader)...)
	for _, kind := range []uint16{ctaTupleOrig, ctaTupleReply} {
		tuple := r.Nest(kind)
		ip := r.Nest(ctaTupleIP)
		r.Attribute(ctaIPv6Src, answers.AsSlice())
		r.End(ip)
		r.End(tuple)
	}
	return r.Data()
}

// TestFlushesDoNotShareErrors: if some addresses of a common walk cannot be flushed, the other calls succeed.
func TestFlushesDoNotShareErrors(t *testing.T) {
	bad, good, first := ip4("10.77.0.5"), ip4("10.77.0.6"), ip4("10.77.0.7")
	begun, goOn := make(chan struct{}), make(chan struct{})
	var q addressQueue
	do := func(addrs []netip.Addr) error {
		switch {
		case slices.Equal(addrs, []netip.Addr{first}):
			close(begun)
			<-goOn
		case slices.Contains(addrs, bad):
			return unix.EBUSY
		}
		return nil
	}
	results := map[netip.Addr]chan error{}
	flush := func(a netip.Addr) {
		results[a] = make(chan error, 1)
		go func(result chan error) { result <- q.flush(context.Background(), []netip.Addr{a}, do) }(results[a])
	}
	flush(first)
	<-begun
	flush(bad)
	flush(good)
	require.Eventually(t, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.waiting) == 2
	}, time.Minute, time.Millisecond, "both wait for the next walk")
	close(goOn)
	require.NoError(t, <-results[first])
	require.ErrorIs(t, <-results[bad], unix.EBUSY)
	require.NoError(t, <-results[good])
}
