package rtnl_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestIsLocal: addresses of links are local, and those that a route of the type local covers. An
// address that the host reaches or rejects is not.
func TestIsLocal(t *testing.T) {
	h := open(t)
	index := addBridge(t, h, "l0")
	for _, a := range []string{"10.7.1.1/24", "fd00:7:1::1/64"} {
		ip, subnet, err := net.ParseCIDR(a)
		require.NoError(t, err)
		require.NoError(t, h.AddAddress(index, &net.IPNet{IP: ip, Mask: subnet.Mask}, rtnl.NoDAD))
	}
	// The kernel adds the local route of an IPv6 address after the request has returned (addrconf_dad_work).
	require.Eventually(t, func() bool {
		local, err := rtnl.IsLocal(netip.MustParseAddr("fd00:7:1::1"))
		return err == nil && local
	}, 20*time.Second, time.Millisecond)
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	for to, kind := range map[string]int{
		"203.0.113.0/24": unix.RTN_LOCAL, "2001:db8:5::/48": unix.RTN_LOCAL,
		"198.51.100.0/24": unix.RTN_BLACKHOLE, "198.18.0.0/24": unix.RTN_PROHIBIT, "2001:db8:6::/48": unix.RTN_UNREACHABLE,
	} {
		_, dst, err := net.ParseCIDR(to)
		require.NoError(t, err)
		route := &netlink.Route{Dst: dst, Type: kind}
		if kind == unix.RTN_LOCAL {
			route.LinkIndex, route.Table, route.Scope = lo.Attrs().Index, unix.RT_TABLE_LOCAL, netlink.SCOPE_HOST
		}
		require.NoError(t, netlink.RouteAdd(route), to)
		t.Cleanup(func() { require.NoError(t, netlink.RouteDel(route)) })
	}
	for ip, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "::1": true,
		"10.7.1.1": true, "::ffff:10.7.1.1": true, "10.7.1.2": false, "10.7.1.255": false,
		"fd00:7:1::1": true, "fd00:7:1::2": false,
		"203.0.113.9": true, "2001:db8:5::9": true,
		"198.51.100.9": false, "198.18.0.9": false, "2001:db8:6::9": false,
		"192.0.2.1": false, "2001:db8:7::1": false, "fe80::1": false, "224.0.0.1": false, "ff02::1": false,
	} {
		local, err := rtnl.IsLocal(netip.MustParseAddr(ip))
		require.NoError(t, err, ip)
		require.Equal(t, want, local, ip)
	}
}

func BenchmarkIsLocal(b *testing.B) {
	for b.Loop() {
		if _, err := rtnl.IsLocal(netip.MustParseAddr("203.0.113.9")); err != nil {
			b.Fatal(err)
		}
	}
}

// TestHostAddresses: what the kernel derives from the networks of addresses is received, too.
func TestHostAddresses(t *testing.T) {
	h := rtnl.HostAddressesOf(netip.MustParsePrefix("10.7.1.1/22"), netip.MustParsePrefix("10.8.0.1/31"), netip.MustParsePrefix("10.9.0.1/32"),
		netip.MustParsePrefix("fd00:7:1::1/64"), netip.MustParsePrefix("fd00:8::1/127"))
	for ip, want := range map[string][2]bool{ // has, receives
		"10.7.1.1": {true, true}, "::ffff:10.7.1.1": {true, true}, "10.7.3.255": {false, true}, "10.7.1.255": {},
		"10.8.0.1": {true, true}, "10.8.0.0": {}, "10.9.0.1": {true, true}, "255.255.255.255": {false, true}, "224.0.0.251": {false, true},
		"fd00:7:1::1": {true, true}, "fd00:7:1::": {false, true}, "fd00:7:1::2": {}, "fd00:8::": {}, "ff02::1": {false, true},
	} {
		a := netip.MustParseAddr(ip)
		require.Equal(t, want, [2]bool{h.Has(a), h.Receives(a)}, ip)
	}
	h, err := rtnl.ListHostAddresses()
	require.NoError(t, err)
	require.True(t, h.Has(netip.MustParseAddr("127.0.0.1")))
}
