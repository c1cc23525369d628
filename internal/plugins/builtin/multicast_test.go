package builtin_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

// message6 returns an ICMPv6 message from the link-local address of a station.
func (s station) message6(kind byte, to netip.Addr, content ...byte) []byte {
	return withChecksum(2, ipv6(s.linkLocal, to, unix.IPPROTO_ICMPV6, append([]byte{kind, 0, 0, 0}, content...)))[40:]
}

// toGroup6 returns a frame from a station to a group of IPv6.
func (s station) toGroup6(to netip.Addr, next byte, content ...[]byte) []byte {
	packet := ipv6(s.linkLocal, to, next, content...)
	packet[7] = 1 // the hop limit
	return ether(append(net.HardwareAddr{0x33, 0x33}, to.AsSlice()[12:]...), s.mac, unix.ETH_P_IPV6, packet)
}

// options returns hop-by-hop options with the alert of routers, as messages about multicast groups have them.
func options(next byte) []byte { return []byte{next, 0, 5, 2, 0, 0, 1, 0} }

// queries returns frames with which a station poses as a multicast router, to the groups that a bridge
// listens to.
func queries(own station) map[string][]byte {
	allNodes, snoopers4 := netip.MustParseAddr("ff02::1"), netip.MustParseAddr("224.0.0.106")
	const ah = unix.IPPROTO_AH
	authentication := []byte{unix.IPPROTO_ICMPV6, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1}
	message, to6 := own.message6, own.toGroup6
	to4 := func(to netip.Addr, protocol, offset byte, content ...byte) []byte {
		group := to.As4()
		mac := net.HardwareAddr{1, 0, 0x5e, group[1] & 0x7f, group[2], group[3]}
		return ether(mac, own.mac, unix.ETH_P_IP, ipv4Of(protocol, offset, own.ip4, to, content...))
	}
	mld := message(130, allNodes, append([]byte{0, 1, 0, 0}, make([]byte, 16)...)...)
	igmp := []byte{0x11, 1, 0xee, 0xfe, 0, 0, 0, 0}
	snoopers6 := netip.MustParseAddr("ff02::6a")
	return map[string][]byte{
		"MLD query":                         to6(allNodes, 0, options(unix.IPPROTO_ICMPV6), mld),
		"MLD query behind authentication":   to6(allNodes, 0, options(ah), authentication, mld),
		"tagged MLD query":                  tagged(to6(allNodes, 0, options(unix.IPPROTO_ICMPV6), mld)),
		"IGMP query":                        to4(netip.MustParseAddr("224.0.0.1"), unix.IPPROTO_IGMP, 0, igmp...),
		"IGMP query in a later fragment":    to4(netip.MustParseAddr("224.0.0.1"), unix.IPPROTO_IGMP, 1, igmp...),
		"tagged IGMP query":                 tagged(to4(netip.MustParseAddr("224.0.0.1"), unix.IPPROTO_IGMP, 0, igmp...)),
		"advertisement of a router":         to6(snoopers6, 0, options(unix.IPPROTO_ICMPV6), message(151, snoopers6, 0, 0, 0, 0)),
		"advertisement of a router in IPv4": to4(snoopers4, unix.IPPROTO_IGMP, 0, 0x30, 20, 0xcf, 0xeb, 0, 0, 0, 0),
		"PIM hello":                         to4(netip.MustParseAddr("224.0.0.13"), unix.IPPROTO_PIM, 0, 0x20, 0, 0xdf, 0xff),
	}
}

// learned reports whether br0 knows another querier, or a port that leads to a multicast router.
func learned(t *testing.T) bool {
	t.Helper()
	const querierState, timer4, timer6 = 47, 3, 7 // IFLA_BR_MCAST_QUERIER_STATE, BRIDGE_QUERIER_IP_OTHER_TIMER, ..._IPV6_...
	state := linkAttribute(t, "br0", nl.IFLA_INFO_DATA, querierState)
	return attribute(state, timer4) != nil || attribute(state, timer6) != nil ||
		strings.Contains(output(t, "bridge", "-d", "mdb", "show"), "router ports on br0: ")
}

// linkAttribute returns an attribute of the kind of a link, or of the kind of a port.
func linkAttribute(t *testing.T, name string, of, kind uint16) []byte {
	t.Helper()
	link, err := net.InterfaceByName(name)
	require.NoError(t, err)
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(link.Index)
	request.AddData(info)
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	require.NoError(t, err)
	require.Len(t, answers, 1)
	return attribute(attribute(attribute(answers[0][unix.SizeofIfInfomsg:], unix.IFLA_LINKINFO), of), kind)
}

// attribute returns the content of the attribute of a kind; nil if there is none.
func attribute(data []byte, kind uint16) []byte {
	for len(data) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if binary.NativeEndian.Uint16(data[2:])&^unix.NLA_F_NESTED == kind {
			return data[unix.SizeofRtAttr:length]
		}
		data = data[min((length+3)&^3, len(data)):]
	}
	return nil
}

// TestBridgeGuardOfMulticastRouters: a bridge learns of no multicast router from a guarded port. It would
// forward neighbour solicitations only to ports that answer the router.
func TestBridgeGuardOfMulticastRouters(t *testing.T) {
	withoutBridgeNetfilter(t)
	example := station{mac: make(net.HardwareAddr, 6), ip4: hostAddress4, ip6: hostAddress6, linkLocal: hostAddress6}
	for what := range queries(example) {
		for _, guarded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, guarded %t", what, guarded), func(t *testing.T) {
				g := newGuardTest(t)
				_, result, out := g.add("router", with(guardedBridge(), "sourceGuard", guarded))
				own := stationOf(t, result)
				if guarded {
					output(t, "nft", "add", "element", "bridge", "allocnet", "tagged_ports", "{", hostEnd(result), "}")
				}
				require.False(t, learned(t))
				_, err := unix.Write(out, queries(own)[what])
				require.NoError(t, err)
				end := namedFrame{name: ".the end", frame: ether(g.neighbour.mac, own.mac, unix.ETH_P_IP, ipv4(own.ip4, g.neighbour.ip4, ""))}
				require.Equal(t, []string{end.name}, arrived(t, out, g.in, []namedFrame{end}))
				require.Equal(t, !guarded, learned(t))
			})
		}
	}
}

// withoutBridgeNetfilter keeps the host from reassembling the fragments of its bridges.
func withoutBridgeNetfilter(t *testing.T) {
	t.Helper()
	const file = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	before, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return
	}
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte("0"), 0))
	t.Cleanup(func() { require.NoError(t, os.WriteFile(file, before, 0)) })
}

// TestBridgeGuardOfMulticastGroups: no multicast router is learned behind a guarded port, and it cannot
// fill the table of its bridge with groups.
func TestBridgeGuardOfMulticastGroups(t *testing.T) {
	g := newGuardTest(t)
	_, result, out := g.add("guarded", guardedBridge())
	own, port := stationOf(t, result), hostEnd(result)
	require.Equal(t, []byte{0}, linkAttribute(t, port, nl.IFLA_INFO_SLAVE_DATA, nl.IFLA_BRPORT_MULTICAST_ROUTER))
	limit := linkAttribute(t, port, nl.IFLA_INFO_SLAVE_DATA, nl.IFLA_BRPORT_MCAST_MAX_GROUPS)
	skip.Unless(t, limit != nil, "the kernel has no limit of groups of a port (Linux 6.3)")
	for i := range 300 {
		group := netip.AddrFrom4([4]byte{239, 7, byte(i >> 8), byte(i)}).AsSlice()
		report := binary.BigEndian.AppendUint16([]byte{0x16, 0}, ^uint16(0x0508+i))
		_, err := unix.Write(out, ether(slices.Concat(net.HardwareAddr{1, 0, 0x5e}, group[1:]), own.mac, unix.ETH_P_IP,
			ipv4Of(unix.IPPROTO_IGMP, 0, own.ip4, netip.AddrFrom4([4]byte(group)), append(report, group...)...)))
		require.NoError(t, err)
		if i%50 == 49 { // the buffer of the neighbour's socket is limited
			end := namedFrame{name: fmt.Sprintf(".%d", i), frame: ether(g.neighbour.mac, own.mac, unix.ETH_P_IP, ipv4(own.ip4, g.neighbour.ip4, ""))}
			require.Equal(t, []string{end.name}, arrived(t, out, g.in, []namedFrame{end}))
		}
	}
	groups := strings.Count(output(t, "bridge", "mdb", "show", "dev", "br0"), port+" grp")
	require.LessOrEqual(t, groups, 256)
	require.Greater(t, groups, 200)
}

// TestBridgeGuardOfReports: what only routers read does not reach guarded ports, whose containers are none. The bridge
// learns groups from it all the same, and other ports receive it.
func TestBridgeGuardOfReports(t *testing.T) {
	g := newGuardTest(t)
	_, result, out := g.add("sender", guardedBridge())
	_, _, unguarded := g.add("unguarded", with(guardedBridge(), "sourceGuard", false))
	own := stationOf(t, result)
	const report, solicitation, toExclude = 143, 133, 4
	group, routers, allReports := netip.MustParseAddr("ff02::1:ff77:7777"), netip.MustParseAddr("ff02::2"), netip.MustParseAddr("ff02::16")
	end := namedFrame{name: ".the end", frame: ether(net.HardwareAddr{255, 255, 255, 255, 255, 255}, own.mac, unix.ETH_P_ARP, arp(1, own.mac, own.ip4, g.neighbour.ip4))}
	for _, frame := range [][]byte{
		own.toGroup6(allReports, 0, options(unix.IPPROTO_ICMPV6), own.message6(report, allReports, append([]byte{0, 0, 0, 1, toExclude, 0, 0, 0}, group.AsSlice()...)...)),
		own.toGroup6(routers, unix.IPPROTO_ICMPV6, own.message6(solicitation, routers, 0, 0, 0, 0)),
		end.whole(),
	} {
		_, err := unix.Write(out, frame)
		require.NoError(t, err)
	}
	seen := func(in int) (kinds []byte) {
		for buf := make([]byte, 2000); ; {
			n, err := unix.Read(in, buf)
			require.NoError(t, err)
			frame := append(slices.Clone(buf[:n]), make([]byte, 64)...)
			switch {
			case strings.HasSuffix(string(buf[:n]), end.name):
				return kinds
			case !slices.Equal(frame[6:12], []byte(own.mac)), binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IPV6:
			case frame[20] == unix.IPPROTO_HOPOPTS:
				kinds = append(kinds, frame[62])
			case frame[20] == unix.IPPROTO_ICMPV6:
				kinds = append(kinds, frame[54])
			}
		}
	}
	guarded, others := seen(g.in), seen(unguarded)
	for _, kind := range []byte{report, solicitation} {
		require.NotContains(t, guarded, kind)
		require.Contains(t, others, kind)
	}
	require.Contains(t, output(t, "bridge", "mdb", "show", "dev", "br0"), hostEnd(result)+" grp "+group.String())
}
