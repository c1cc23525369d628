package rtnl_test

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

func shell(t *testing.T, command string) {
	t.Helper()
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

// TestForeignRoute: a route of another program that has replaced an own one is named, with the command that deletes it, after
// which the own one can be added.
func TestForeignRoute(t *testing.T) {
	h := open(t)
	index := addBridge(t, h, "brforeign")
	addBridge(t, h, "brother")
	shell(t, "ip address add 10.66.0.1/24 dev brother; ip address add fd66::1/64 dev brother nodad; ip -4 route add 10.77.0.1 dev brother")
	for _, test := range []struct{ to, replace, want string }{
		{"10.77.0.2/32", "ip route replace 10.77.0.2 dev lo", `leads to "lo"; delete it: ip route del 10.77.0.2 dev lo`},
		{"10.77.0.0/24", "ip route replace 10.77.0.0/24 via 10.66.0.2", `leads to "brother"; delete it: ip route del 10.77.0.0/24 dev brother`},
		{"10.77.0.2/32", "ip route replace blackhole 10.77.0.2", `has the type blackhole; delete it: ip route del blackhole 10.77.0.2`},
		{"10.77.0.2/32", "ip route replace 10.77.0.2 nexthop via 10.66.0.2 nexthop via 10.66.0.3", `leads to several links; delete it: ip route del 10.77.0.2`},
		{"10.77.0.2/32", "ip route replace 10.77.0.2 via 10.66.0.2 dev brforeign onlink", `leads to 10.66.0.2; delete it: ip route del 10.77.0.2 via 10.66.0.2 dev brforeign`},
		{"fd77::2/128", "ip -6 route replace fd77::2 dev lo metric 1024", `leads to "lo"; delete it: ip -6 route del fd77::2 dev lo`},
		{"fd77::/64", "ip -6 route replace fd77::/64 via fd66::2 metric 1024", `leads to "brother"; delete it: ip -6 route del fd77::/64 dev brother`},
		{"fd77::2/128", "ip -6 route replace unreachable fd77::2 metric 1024", `has the type unreachable; delete it: ip -6 route del unreachable fd77::2 dev lo`},
	} {
		_, dst, err := net.ParseCIDR(test.to)
		require.NoError(t, err)
		route := &rtnl.Route{Index: index, Dst: dst, Scope: 254} // RT_SCOPE_HOST
		restore := func() (added bool, err error) {
			if added, err = h.EnsureRoute(route); err == nil && !added {
				err = h.ForeignRoute(route)
			}
			return added, err
		}
		for _, want := range []bool{true, false} {
			added, err := restore()
			require.NoError(t, err, test)
			require.Equal(t, want, added, test)
		}
		require.NoError(t, h.ForeignRoute(route))
		shell(t, test.replace)
		for range 2 {
			added, err := restore()
			require.ErrorIs(t, err, rtnl.ErrForeignRoute, test)
			require.False(t, added)
			require.Contains(t, err.Error(), "a route of another program is in its place, which "+test.want)
			_, command, _ := strings.Cut(err.Error(), "delete it: ")
			require.True(t, strings.HasSuffix(test.want, command), err)
		}
		_, command, _ := strings.Cut(test.want, "delete it: ")
		shell(t, command)
		require.NoError(t, h.ForeignRoute(route), "there is none")
		added, err := restore()
		require.NoError(t, err, test)
		require.True(t, added)
		shell(t, "ip route del "+test.to+" dev brforeign")
		if !strings.Contains(test.to, ":") { // another metric
			shell(t, "ip route add "+test.to+" dev lo metric 7")
			added, err := restore()
			require.NoError(t, err)
			require.True(t, added)
			shell(t, "ip route del "+test.to+" dev lo; ip route del "+test.to+" dev brforeign")
		}
	}
}
