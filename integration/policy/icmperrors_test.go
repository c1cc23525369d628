package policy

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// tooBig returns an ICMP error to the sender of a datagram, which it quotes: that the datagram is too big.
func tooBig(from netip.Addr, of, to netip.AddrPort, token string) []byte {
	quoted := packet(of.Addr(), to.Addr(), unix.IPPROTO_UDP, udpPacket(of, to, []byte(token)))
	protocol, kind, code := byte(unix.IPPROTO_ICMP), byte(3), byte(4)
	if from.Is6() {
		protocol, kind, code = unix.IPPROTO_ICMPV6, 2, 0
	}
	message := slices.Concat([]byte{kind, code, 0, 0, 0, 0, 5, 0}, quoted)
	return packet(from, of.Addr(), protocol, checksummed(from, of.Addr(), protocol, message, 2))
}

// TestICMPErrors: an allocation with an egress policy sends ICMP errors about its own connections, whatever the
// policy denies, also about those through host ports. On errors that quote connections of others its policy
// decides.
func TestICMPErrors(t *testing.T) {
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, testICMPErrors)
}

func testICMPErrors(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
	h.connectOutside()
	h.Network("net", policed(main, testbed.Dual)...)
	client, server := h.Alloc("client"), h.Alloc("server")
	closed, router, open := h.Alloc("closed"), h.Alloc("router"), h.Alloc("open")
	closed.Policy = mustPolicy(t, `{"egress":{"default":"deny"}}`)
	router.Policy = mustPolicy(t, `{"egress":{"default":"deny","rules":[{"services":[{"protocol":"icmp","type":3},{"protocol":"icmpv6","type":2}]}]}}`)
	client.Ports = []portmap.Port{{Value: 8080, To: 99, Protocols: []string{"udp"}}}
	closed.Ports = []portmap.Port{{Value: 8081, To: 99, Protocols: []string{"udp"}}}
	addresses, at := map[string][2]netip.Addr{}, map[string]int{"outside": sniffer(t, h.Outside.Path())}
	for _, a := range []configurator.Allocation{client, server, closed, router, open} {
		h.InNew(a, func() { testbed.SetSysctls(t, a.Netns, testbed.Quick) })
		s := h.SetUp(a)
		addresses[a.ID] = [2]netip.Addr{netip.MustParseAddr(s.Address), netip.MustParseAddr(s.AddressIPv6)}
		at[a.ID] = sniffer(t, a.Netns)
	}
	hosts, outside := [2]netip.Addr{testhost.Host4.Addr(), testhost.Host6.Addr()}, [2]netip.Addr{testhost.Outside4.Addr(), testhost.Outside6.Addr()}
	for family := range 2 {
		end := func(id string, port uint16) netip.AddrPort { return netip.AddrPortFrom(addresses[id][family], port) }
		caller := netip.AddrPortFrom(outside[family], 6000)
		// connect begins a connection, and errorOf sends an error about the packets from one end to the other.
		connect := func(netns string, from, to netip.AddrPort, receiver string) {
			t.Helper()
			token := rand.Text()
			requirePacket(t, true, fmt.Sprintf("from %s to %s", from, to), token, at[receiver], func() {
				sendPackets(t, netns, to.Addr(), packet(from.Addr(), to.Addr(), unix.IPPROTO_UDP, udpPacket(from, to, []byte(token))))
			})
		}
		errorOf := func(want bool, sender configurator.Allocation, receiver string, of, to netip.AddrPort) {
			t.Helper()
			token, source := rand.Text(), addresses[sender.ID][family]
			requirePacket(t, want, fmt.Sprintf("error of %s about packets from %s to %s", sender.ID, of, to), token, at[receiver], func() {
				sendPackets(t, sender.Netns, of.Addr(), tooBig(source, of, to, token))
			})
		}
		connect(client.Netns, end("client", 5000), end("server", 90), "server")
		connect(h.Outside.Path(), caller, netip.AddrPortFrom(hosts[family], 8080), "client")
		for _, one := range []struct {
			sender configurator.Allocation
			want   bool // about connections of others that are not to host ports
		}{{closed, false}, {router, true}, {open, true}} {
			errorOf(one.want, one.sender, "client", end("client", 5000), end("server", 90))
			errorOf(one.want, one.sender, "server", end("server", 90), end("client", 5000))
			errorOf(one.sender.ID == "open", one.sender, "client", netip.AddrPortFrom(hosts[family], 8080), caller)
		}
		connect(client.Netns, end("client", 5001), end("closed", 90), "closed")
		connect(h.Outside.Path(), caller, netip.AddrPortFrom(hosts[family], 8081), "closed")
		errorOf(true, closed, "client", end("client", 5001), end("closed", 90))
		errorOf(true, closed, "outside", caller, end("closed", 99))
		errorOf(false, closed, "outside", caller, end("client", 99))
	}
	h.change("closed", configurator.Change{Policy: mustPolicy(t, `{"egress":{"default":"deny","rules":[{"services":[{"protocol":"udp","ports":"90"}]}]}}`)})
	for family := range 2 {
		from, to := netip.AddrPortFrom(addresses["closed"][family], 5002), netip.AddrPortFrom(outside[family], 90)
		token := rand.Text()
		requirePacket(t, true, "to "+to.String(), token, at["outside"], func() {
			sendPackets(t, closed.Netns, to.Addr(), packet(from.Addr(), to.Addr(), unix.IPPROTO_UDP, udpPacket(from, to, []byte(token))))
		})
		token = rand.Text()
		requirePacket(t, true, "error of the client to "+to.String(), token, at["outside"], func() {
			sendPackets(t, closed.Netns, to.Addr(), tooBig(from.Addr(), to, from, token))
		})
	}
	h.TearDown(client, server, closed, router, open)
}
