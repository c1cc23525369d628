package conntrack

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestEndFlows ends the connections from and to an address that a function denies, of both families, and no
// other ones. The function gets each entry as it passes the forward hook.
func TestEndFlows(t *testing.T) {
	bothWays(t, func(t *testing.T, c *Conn) {
		out := track(t, unix.IPPROTO_UDP, "10.77.0.5:1000", "192.0.2.2:53", "192.0.2.2:53")
		in := track(t, unix.IPPROTO_TCP, "192.0.2.2:1001", "192.0.2.1:8080", "10.77.0.5:80") // through a host port
		kept := track(t, unix.IPPROTO_UDP, "192.0.2.2:1002", "10.77.0.5:81", "10.77.0.5:81")
		foreign := track(t, unix.IPPROTO_UDP, "10.77.0.6:1000", "192.0.2.2:53", "192.0.2.2:53")
		six := track(t, unix.IPPROTO_SCTP, "[fd00:77::5]:1000", "[2001:db8::2]:53", "[2001:db8::2]:53")
		var seen []Flow
		addresses := []netip.Addr{netip.MustParseAddr("10.77.0.5"), netip.MustParseAddr("fd00:77::5")}
		end := func(denied func(Flow) (bool, error)) error { return c.EndFlows(t.Context(), addresses, nil, denied) }
		require.NoError(t, end(func(f Flow) (bool, error) {
			seen = append(seen, f)
			return false, nil
		}))
		require.Contains(t, seen, Flow{unix.IPPROTO_TCP, netip.MustParseAddr("192.0.2.2"), addresses[0], 80, true, netip.MustParseAddr("192.0.2.1"), 8080})
		require.Equal(t, map[string]uint32{out: 0, in: 0, six: 0, kept: 0, foreign: 0}, marks(t, c))
		for range 2 {
			seen = nil
			require.NoError(t, end(func(f Flow) (bool, error) {
				seen = append(seen, f)
				return f.Port != 81, nil
			}))
			require.Equal(t, map[string]uint32{out: Ended, six: Ended, kept: 0, foreign: 0}, marks(t, c), "TCP is deleted")
		}
		require.ElementsMatch(t, []Flow{
			{unix.IPPROTO_UDP, addresses[0], netip.MustParseAddr("192.0.2.2"), 53, false, netip.MustParseAddr("192.0.2.2"), 53},
			{unix.IPPROTO_UDP, netip.MustParseAddr("192.0.2.2"), addresses[0], 81, false, addresses[0], 81},
			{unix.IPPROTO_SCTP, addresses[1], netip.MustParseAddr("2001:db8::2"), 53, false, netip.MustParseAddr("2001:db8::2"), 53},
		}, seen)
		broken := errors.New("broken")
		require.ErrorIs(t, end(func(Flow) (bool, error) { return false, broken }), broken)
		require.Equal(t, map[string]uint32{out: Ended, six: Ended, kept: 0, foreign: 0}, marks(t, c))
		require.NoError(t, end(func(f Flow) (bool, error) { return f.Protocol == unix.IPPROTO_SCTP, nil }))
		require.Equal(t, map[string]uint32{six: Ended, kept: 0, foreign: 0}, marks(t, c), "what is allowed again begins anew")
	})
}

// marks returns the marks of all entries.
func marks(t testing.TB, c *Conn) map[string]uint32 {
	t.Helper()
	list := map[string]uint32{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		require.NoError(t, c.each(t.Context(), filter{family: family}, func(e *entry) {
			list[text(e.protocol, e.source, netip.AddrPortFrom(e.destination, e.port), e.answers.source)] = e.mark
		}))
	}
	return list
}
