package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestFlushFlows deletes the entries from and to an address that a function names, of both
// families, and no other ones. The function gets each entry as it passes the forward hook.
func TestFlushFlows(t *testing.T) {
	bothWays(t, func(t *testing.T, c *Conn) {
		out := track(t, unix.IPPROTO_UDP, "10.77.0.5:1000", "192.0.2.2:53", "192.0.2.2:53")
		in := track(t, unix.IPPROTO_TCP, "192.0.2.2:1001", "192.0.2.1:8080", "10.77.0.5:80") // through a host port
		kept := track(t, unix.IPPROTO_UDP, "192.0.2.2:1002", "10.77.0.5:81", "10.77.0.5:81")
		foreign := track(t, unix.IPPROTO_UDP, "10.77.0.6:1000", "192.0.2.2:53", "192.0.2.2:53")
		six := track(t, unix.IPPROTO_UDP, "[fd00:77::5]:1000", "[2001:db8::2]:53", "[2001:db8::2]:53")
		var seen []Flow
		addresses := []netip.Addr{netip.MustParseAddr("10.77.0.5"), netip.MustParseAddr("fd00:77::5")}
		require.NoError(t, c.FlushFlows(t.Context(), addresses, nil, func(f Flow) bool {
			seen = append(seen, f)
			return f.Port != 81
		}))
		left := tracked(t, c)
		want := []string{kept, foreign}
		slices.Sort(want)
		require.Equal(t, want, left)
		require.NotContains(t, left, out)
		require.NotContains(t, left, six)
		require.NotContains(t, left, in)
		require.ElementsMatch(t, []Flow{
			{unix.IPPROTO_UDP, addresses[0], netip.MustParseAddr("192.0.2.2"), 53, false},
			{unix.IPPROTO_TCP, netip.MustParseAddr("192.0.2.2"), addresses[0], 80, true},
			{unix.IPPROTO_UDP, netip.MustParseAddr("192.0.2.2"), addresses[0], 81, false},
			{unix.IPPROTO_UDP, addresses[1], netip.MustParseAddr("2001:db8::2"), 53, false},
		}, seen)
	})
}
