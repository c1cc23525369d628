package builtin_test

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// advertisement returns a router advertisement (RFC 4861, section 4.2) with a prefix for addresses.
func advertisement(from, to netip.Addr) []byte {
	prefix := slices.Concat([]byte{3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0}, netip.MustParseAddr("2001:db8:66::").AsSlice())
	return withChecksum(2, ipv6(from, to, unix.IPPROTO_ICMPV6, []byte{134, 0, 0, 0, 64, 8, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, prefix))
}

// advertise sends router advertisements to addresses of the host, and to all nodes of the link.
func (n *neighbourOf) advertise(to net.HardwareAddr, addrs ...netip.Addr) {
	n.t.Helper()
	for _, addr := range append(addrs, netip.MustParseAddr("ff02::1")) {
		n.send(to, unix.ETH_P_IPV6, advertisement(n.own.linkLocal, addr))
	}
}

// believes reports whether the host has a route or an address of an advertisement.
func believes(t *testing.T) bool {
	t.Helper()
	return strings.Contains(output(t, "ip", "-6", "route", "show", "proto", "ra"), "default") ||
		strings.Contains(output(t, "ip", "-6", "address"), "2001:db8:66:")
}

// TestRoutersAreIgnored: the host takes neither a route nor an address from the router advertisement of
// a container. CHECK reports what lets it, and Repair restores the protection.
func TestRoutersAreIgnored(t *testing.T) {
	v4, v6 := "10.9.0.0/24", "fd00:9::/64"
	for name, test := range map[string]struct {
		subnets []string
		change  object
		ra      string // accept_ra of new links
		open    func(t *testing.T, link string)
		finding string
	}{
		"IPv4":                   {subnets: []string{v4}, ra: "1"},
		"both":                   {subnets: []string{v4, v6}, ra: "2", open: flushGuard, finding: "own_sources: rules differ"},
		"IPv6":                   {subnets: []string{v6}, ra: "2", open: flushGuard, finding: "own_sources: rules differ"},
		"IPv4 without the guard": {subnets: []string{v4}, ra: "1", change: object{"sourceGuard": false}, open: acceptRA, finding: "accepts router advertisements"},
		"both without the guard": {subnets: []string{v4, v6}, ra: "2", change: object{"sourceGuard": false}, open: acceptRA, finding: "accepts router advertisements"},
	} {
		t.Run(name, func(t *testing.T) {
			native := newRoutedHost(t, map[string]string{"ipv6/conf/all/forwarding": "0", "ipv6/conf/default/accept_ra": test.ra, "ipv6/conf/default/accept_dad": "0"})
			host, conf := listener(t), routed(test.subnets...)
			for key, value := range test.change {
				conf = with(conf, key, value)
			}
			a := sandboxed(t, "router")
			result := native.add(a, conf)
			defer func() {
				_, err := native.run("DEL", a, withResult(t, conf, result))
				require.NoError(t, err)
			}()
			awaitCarrier(t, a, conf)
			n := newNeighbourOf(t, a, result)
			to := []netip.Addr{hostAddress6}
			own, at := n.own.ip4, hostAddress4
			if n.own.ip6.IsValid() {
				to = append(to, linkLocalOf(t, firstLink(result)))
			}
			if !own.IsValid() {
				own, at = n.own.ip6, hostAddress6
			}
			advertise := func() {
				n.advertise(n.host, to...)
				n.udp(own, at)
				require.Equal(t, []string{own.String()}, received(t, host, own))
			}
			check := func() error {
				_, err := native.run("CHECK", a, withResult(t, conf, result))
				return err
			}
			require.NoError(t, check())
			advertise()
			require.False(t, believes(t))
			if test.open == nil {
				return
			}
			test.open(t, firstLink(result))
			require.ErrorContains(t, check(), test.finding)
			require.Eventually(t, func() bool { advertise(); return believes(t) }, 10*time.Second, time.Millisecond)
			_, err := native.run(sdk.Repair, a, withResult(t, conf, result))
			require.NoError(t, err)
			require.NoError(t, check())
			output(t, "ip", "-6", "route", "flush", "proto", "ra")
			output(t, "ip", "-6", "address", "flush", "dev", firstLink(result), "to", "2001:db8:66::/64")
			require.False(t, believes(t))
			advertise()
			require.False(t, believes(t))
		})
	}
}

// TestRoutersAreIgnoredOnBridges: likewise for frames to a multicast MAC that bridges do not forward, which
// the host receives from a port without the guard.
func TestRoutersAreIgnoredOnBridges(t *testing.T) {
	for name, change := range map[string]object{
		"guarded": {}, "without the guard": {"sourceGuard": false},
	} {
		t.Run(name, func(t *testing.T) {
			newRoutedHost(t, map[string]string{"ipv6/conf/all/forwarding": "0", "ipv6/conf/default/accept_ra": "1", "ipv6/conf/default/accept_dad": "0"})
			conf := with(guardedBridge(), "ipam", hostLocal("10.9.0.0/24"))
			for key, value := range change {
				conf = with(conf, key, value)
			}
			g, a, result := newGuardTestOn(t, conf)
			n, host, gateway := newNeighbourOf(t, a, result), listener(t), netip.MustParseAddr("10.9.0.1")
			advertise := func() {
				n.advertise(net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0x0e}, hostAddress6)
				n.udp(n.own.ip4, gateway)
				require.Equal(t, []string{n.own.ip4.String()}, received(t, host, n.own.ip4))
			}
			advertise()
			require.False(t, believes(t))
			require.NoError(t, g.run("CHECK", a, conf, result))
			if name == "guarded" {
				return
			}
			acceptRA(t, hostEnd(result))
			require.ErrorContains(t, g.run("CHECK", a, conf, result), "accepts router advertisements")
			require.Eventually(t, func() bool { advertise(); return believes(t) }, 10*time.Second, time.Millisecond)
			require.NoError(t, g.run(sdk.Repair, a, conf, result))
			require.NoError(t, g.run("CHECK", a, conf, result))
			output(t, "ip", "-6", "route", "flush", "proto", "ra")
			output(t, "ip", "-6", "address", "flush", "dev", hostEnd(result), "to", "2001:db8:66::/64")
			advertise()
			require.False(t, believes(t))
		})
	}
}

func firstLink(result object) string {
	return result["interfaces"].([]any)[0].(object)["name"].(string)
}

func flushGuard(t *testing.T, _ string) {
	output(t, "nft", "flush", "chain", "ip6", "allocnet_guard", "own_sources")
}

func acceptRA(t *testing.T, link string) {
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/accept_ra", []byte("2"), 0))
}
