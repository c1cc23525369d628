package rtnl_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestDefaultRouteMTUs: the MTU of the default route of each family.
func TestDefaultRouteMTUs(t *testing.T) {
	open(t)
	ip := func(args string) {
		t.Helper()
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", args, out)
	}
	for _, link := range []struct{ name, mtu, v4, v6 string }{
		{"out0", "1400", "192.0.2.1/24", "2001:db8::1/64"}, {"out1", "1350", "198.51.100.1/24", "2001:db8:1::1/64"},
	} {
		ip("link add " + link.name + " mtu " + link.mtu + " type veth peer name p-" + link.name)
		t.Cleanup(func() { ip("link del " + link.name) })
		ip("addr add " + link.v4 + " dev " + link.name)
		ip("addr add " + link.v6 + " nodad dev " + link.name)
		ip("link set p-" + link.name + " up")
		ip("link set " + link.name + " up")
	}
	for _, c := range []struct {
		name   string
		routes []string // added, and then deleted
		want   rtnl.DefaultRouteMTUs
	}{
		{"none", nil, rtnl.DefaultRouteMTUs{}},
		{"IPv4", []string{"-4 route XXX default via 192.0.2.2"}, rtnl.DefaultRouteMTUs{IPv4: 1400}},
		{"IPv6", []string{"-6 route XXX default via 2001:db8::2"}, rtnl.DefaultRouteMTUs{IPv6: 1400}},
		{"both, over different links", []string{"-4 route XXX default via 192.0.2.2", "-6 route XXX default via 2001:db8:1::2"}, rtnl.DefaultRouteMTUs{IPv4: 1400, IPv6: 1350}},
		{"the route's own", []string{"-4 route XXX default via 192.0.2.2 mtu 1300", "-6 route XXX default via 2001:db8::2 mtu 1310"}, rtnl.DefaultRouteMTUs{IPv4: 1300, IPv6: 1310}},
		{"the link's, which is smaller", []string{"-4 route XXX default via 192.0.2.2 mtu 9000"}, rtnl.DefaultRouteMTUs{IPv4: 1400}},
		{"the lowest metric", []string{
			"-4 route XXX default via 198.51.100.2 metric 200", "-4 route XXX default via 192.0.2.2 metric 100",
			"-6 route XXX default via 2001:db8:1::2 metric 200", "-6 route XXX default via 2001:db8::2 metric 100",
		}, rtnl.DefaultRouteMTUs{IPv4: 1400, IPv6: 1400}},
		{"several next hops", []string{
			"-4 route XXX default nexthop via 192.0.2.2 nexthop via 198.51.100.2",
			"-6 route XXX default nexthop via 2001:db8::2 nexthop via 2001:db8:1::2",
		}, rtnl.DefaultRouteMTUs{IPv4: 1350, IPv6: 1350}},
		{"halves over a tunnel", []string{
			"-4 route XXX default via 192.0.2.2", "-4 route XXX 0.0.0.0/1 via 198.51.100.2", "-4 route XXX 128.0.0.0/1 via 198.51.100.2",
		}, rtnl.DefaultRouteMTUs{IPv4: 1350}},
		{"another table", []string{"-4 route XXX default via 198.51.100.2 table 77", "-4 rule XXX table 77", "-4 route XXX default via 192.0.2.2"}, rtnl.DefaultRouteMTUs{IPv4: 1350}},
		{"unreachable", []string{"-4 route XXX unreachable default", "-6 route XXX blackhole default"}, rtnl.DefaultRouteMTUs{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, route := range c.routes {
				ip(strings.Replace(route, "XXX", "add", 1))
				defer ip(strings.Replace(route, "XXX", "del", 1))
			}
			h := rtnl.OpenHost()
			defer h.Close()
			got, err := h.DefaultRouteMTUs()
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// BenchmarkDefaultRouteMTUs is what it costs an ADD that nothing precedes.
func BenchmarkDefaultRouteMTUs(b *testing.B) {
	h := rtnl.OpenHost()
	defer h.Close()
	for b.Loop() {
		_, err := h.ReadDefaultRouteMTUs()
		require.NoError(b, err)
	}
}
