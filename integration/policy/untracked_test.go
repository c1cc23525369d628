package policy

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// untracked is a packet that has no entry in connection tracking.
type untracked struct {
	name     string
	protocol byte
	build    func(from, to netip.Addr, token []byte) []byte
}

// tcpFlags are flags of TCP packets. Connection tracking begins a connection with the first two, and cannot
// classify the others.
var tcpFlags = map[string]byte{"SYN": 0x02, "ACK": 0x10, "SYN and ACK": 0x12, "RST": 0x04, "FIN and ACK": 0x11, "no flags": 0, "FIN, PSH and URG": 0x29}

// invalidPackets returns packets of a family that connection tracking cannot classify.
func invalidPackets(ipv6 bool) (list []untracked) {
	icmp, kinds, unreachable := byte(unix.IPPROTO_ICMP), []byte{0, 3, 5}, byte(3)
	if ipv6 {
		icmp, kinds, unreachable = unix.IPPROTO_ICMPV6, []byte{1, 129}, 1
	}
	for _, kind := range kinds {
		list = append(list, untracked{fmt.Sprint("ICMP type ", kind), icmp, func(from, to netip.Addr, token []byte) []byte {
			if kind == unreachable { // about a packet of no connection
				inner := udpPacket(netip.AddrPortFrom(to, 5), netip.AddrPortFrom(from, 6), token)
				token = packet(to, from, unix.IPPROTO_UDP, inner)
			}
			return icmpPacket(from, to, kind, token)
		}})
	}
	for name, flags := range tcpFlags {
		if name == "SYN" || name == "ACK" {
			continue
		}
		list = append(list, untracked{"TCP with " + name, unix.IPPROTO_TCP, func(from, to netip.Addr, token []byte) []byte {
			return tcpPacket(from, to, flags, token)
		}})
	}
	return append(list,
		untracked{"UDP with a wrong checksum", unix.IPPROTO_UDP, func(from, to netip.Addr, token []byte) []byte {
			p := udpPacket(netip.AddrPortFrom(from, 5000), netip.AddrPortFrom(to, 99), token)
			p[6]++
			return p
		}},
		untracked{"SCTP without a chunk", unix.IPPROTO_SCTP, func(_, _ netip.Addr, token []byte) []byte {
			return append([]byte{0, 5, 0, 99, 0, 0, 0, 1, 0, 0, 0, 0}, token...)
		}})
}

// untrackedTypes returns packets of the ICMPv6 types that connection tracking does not track.
func untrackedTypes() (list []untracked) {
	for _, kind := range []byte{130, 131, 132, 133, 135, 143} {
		list = append(list, untracked{fmt.Sprint("ICMPv6 type ", kind), unix.IPPROTO_ICMPV6, func(from, to netip.Addr, token []byte) []byte {
			return icmpPacket(from, to, kind, token)
		}})
	}
	return list
}

// TestNoHostWithoutEntry: packets without an entry in connection tracking do not reach allocations of other
// networks from the embedded one either.
func TestNoHostWithoutEntry(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.connectOutside()
	h.Network("other", policed("bridge", testbed.Families{V4: "10.99.3.0/24", V6: "fd00:99:3::/64"})...)
	h.Network("open", unmasqueraded("ptp", testbed.Families{V4: "10.99.4.0/24", V6: "fd00:99:4::/64"})...)
	embedded, free, target := h.Alloc("embedded"), h.Alloc("free"), h.Alloc("target")
	embedded.Networks, free.Networks, target.Networks = []string{"allocnet"}, []string{"open"}, []string{"other"}
	addresses := map[string][2]netip.Addr{}
	for _, a := range []configurator.Allocation{embedded, free, target} {
		s := h.SetUp(a)
		addresses[a.ID] = [2]netip.Addr{netip.MustParseAddr(s.Address), netip.MustParseAddr(s.AddressIPv6)}
	}
	at := sniffer(t, target.Netns)
	for i := range 2 {
		to := addresses["target"][i]
		list := invalidPackets(to.Is6())
		if to.Is6() {
			list = append(list, untrackedTypes()...)
		}
		for _, one := range list {
			for _, sender := range []configurator.Allocation{free, embedded} {
				from, token := addresses[sender.ID][i], rand.Text()
				requirePacket(t, sender.ID == "free", fmt.Sprintf("%s from %s to %s", one.name, sender.ID, to), token, at, func() {
					sendPackets(t, sender.Netns, to, packet(from, to, one.protocol, one.build(from, to, []byte(token))))
				})
			}
		}
	}
	h.TearDown(embedded, free, target)
}

// unmasqueraded is policed without masquerading.
func unmasqueraded(main string, f testbed.Families) []map[string]any {
	plugins := policed(main, f)
	delete(plugins[1], "ipMasq")
	return plugins
}

// TestInvalidPacketsStay: what connection tracking cannot classify does not leave an allocation with a
// policy. It would not be masqueraded.
func TestInvalidPacketsStay(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", unmasqueraded(main, testbed.Dual)...)
			free, bound := h.Alloc("free"), h.Alloc("bound")
			bound.Policy = mustPolicy(t, `{"presets":["no-metadata"]}`)
			at := sniffer(t, h.Outside.Path())
			for _, a := range []configurator.Allocation{free, bound} {
				s := h.SetUp(a)
				for _, pair := range [][2]netip.Addr{
					{netip.MustParseAddr(s.Address), testhost.Outside4.Addr()}, {netip.MustParseAddr(s.AddressIPv6), testhost.Outside6.Addr()},
				} {
					for _, one := range invalidPackets(pair[1].Is6()) {
						token := rand.Text()
						requirePacket(t, a.ID == "free", fmt.Sprintf("%s from %s to %s", one.name, a.ID, pair[1]), token, at, func() {
							sendPackets(t, a.Netns, pair[1], packet(pair[0], pair[1], one.protocol, one.build(pair[0], pair[1], []byte(token))))
						})
					}
				}
			}
			h.TearDown(free, bound)
		})
	}
}

// TestNoUntrackedTCP: TCP packets other than the first of a connection do not reach an allocation with a policy
// that allows all connections.
func TestNoUntrackedTCP(t *testing.T) {
	testhost.EachElsewhere(t, []string{"bridge", "ptp"}, func(t *testing.T, main string) {
		h := newHost(t, configurator.EngineNative)
		h.connectOutside()
		h.Network("net", policed(main, testbed.Dual)...)
		free, bound := h.Alloc("free"), h.Alloc("bound")
		bound.Policy = mustPolicy(t, `{"presets":["no-metadata"]}`)
		from, to := h.SetUp(free), h.SetUp(bound)
		at := sniffer(t, bound.Netns)
		for i, pair := range [][2]string{{from.Address, to.Address}, {from.AddressIPv6, to.AddressIPv6}} {
			target := netip.MustParseAddr(pair[1])
			for _, sender := range []struct {
				netns   string
				address netip.Addr
			}{
				{free.Netns, netip.MustParseAddr(pair[0])},
				{h.Outside.Path(), []netip.Addr{testhost.Outside4.Addr(), testhost.Outside6.Addr()}[i]},
				{"", []netip.Addr{testhost.Host4.Addr(), testhost.Host6.Addr()}[i]},
			} {
				for name, flags := range tcpFlags {
					require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) // all packets have the same ports
					token := rand.Text()
					requirePacket(t, name == "SYN", fmt.Sprintf("%s from %s to %s", name, sender.address, target), token, at, func() {
						sendPackets(t, sender.netns, target, packet(sender.address, target, unix.IPPROTO_TCP,
							tcpPacket(sender.address, target, flags, []byte(token))))
					})
				}
			}
		}
		h.TearDown(free, bound)
	})
}
