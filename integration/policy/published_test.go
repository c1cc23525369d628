package policy

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// publishing is a network that admits host ports only, with two allocations.
type publishing struct {
	name, main string
	preset     bool // by its policy instead of its firewall plugin

	server, peer     configurator.Allocation
	addresses, peers [2]netip.Addr // those of server and of peer, of both families
	port             int           // on all addresses; the next one is on the loopback
}

// TestPublishedOnly: a neighbour of the host that has a route, and allocations of other networks, reach allocations
// at their host ports, but not on other ports, nor at host ports of the loopback. The host and allocations of the same
// network reach all ports. Answers and errors about connections of the allocations arrive.
func TestPublishedOnly(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.connectOutside()
	networks := []*publishing{
		{name: "routed", main: "ptp"}, {name: "bridged", main: "bridge"}, {name: "preset", main: "bridge", preset: true},
	}
	for i, n := range networks {
		h.setUpPublishing(i+1, n)
	}
	flows := h.publishingFlows(networks)
	h.requireFlows(flows)
	for _, n := range networks {
		h.requireUnspoofed(n)
		for _, outside := range []netip.Prefix{testhost.Outside4, testhost.Outside6} {
			testbed.RequireRefused(t, n.server.Netns, "udp", testbed.HostPort(outside, 9))
		}
		for _, host := range []netip.Prefix{testhost.Host4, testhost.Host6} {
			testbed.RequireRefused(t, h.Outside.Path(), "tcp", testbed.HostPort(host, n.port+1))
		}
	}
	for _, set := range []string{"ip", "ip6"} {
		require.NoError(t, testbed.Command("nft", "flush", "set", set, "allocnet", "published_only"))
	}
	require.ErrorIs(t, h.CheckOnly(h.Context(), networks[0].server), configurator.ErrUnhealthy)
	for range 2 {
		_, err := h.Repair(h.Context())
		require.NoError(t, err)
		for _, f := range flows {
			f.answered = false
		}
		h.requireFlows(flows)
		require.NoError(t, testbed.Command("nft", "flush", "ruleset"))
	}
	_, err := h.Repair(h.Context())
	require.NoError(t, err)
	for _, n := range networks {
		require.NoError(t, h.CheckOnly(h.Context(), n.server))
		h.TearDown(n.server, n.peer)
	}
}

// setUpPublishing writes the network with the number i, and sets its allocations up.
func (h *host) setUpPublishing(i int, n *publishing) {
	h.T.Helper()
	plugins := policed(n.main, testbed.Families{V4: fmt.Sprintf("10.99.%d.0/24", i), V6: fmt.Sprintf("fd00:99:%d::/64", i)})
	if n.main == "bridge" {
		plugins[1]["bridge"] = fmt.Sprint("br-test", i)
	}
	if n.preset {
		plugins[len(plugins)-1]["policy"] = map[string]any{"presets": []string{"published-only"}}
	} else {
		plugins = plugins[:len(plugins)-1]
		plugins[2]["ingressPolicy"] = "published"
	}
	h.Network(n.name, plugins...)
	n.server, n.peer, n.port = h.Alloc(n.name+"-server"), h.Alloc(n.name+"-peer"), 8000+2*i
	n.server.Ports = []portmap.Port{
		{Value: n.port, To: 80, Protocols: []string{"tcp", "udp"}},
		{Value: n.port + 1, To: 81, HostIP: "127.0.0.1", Protocols: []string{"tcp", "udp"}},
	}
	for a, addresses := range map[*configurator.Allocation]*[2]netip.Addr{&n.server: &n.addresses, &n.peer: &n.peers} {
		a.Networks = []string{n.name}
		h.InNew(*a, func() {
			testbed.SetSysctls(h.T, a.Netns, testbed.Quick)
			answerAll(h.T, a.Netns, 80, 81)
		})
		s := h.SetUp(*a)
		*addresses = [2]netip.Addr{netip.MustParseAddr(s.Address), netip.MustParseAddr(s.AddressIPv6)}
	}
}

// publishingFlows returns flows to the servers, and from them.
func (h *host) publishingFlows(networks []*publishing) (flows []*flow) {
	add := func(want bool, name, netns, protocol string, to netip.Addr, port int) {
		flows = append(flows, &flow{name: name, netns: netns, protocol: protocol, to: netip.AddrPortFrom(to, uint16(port)), want: want})
	}
	for i, n := range networks {
		stranger := networks[(i+1)%len(networks)].peer.Netns
		for family, at := range n.addresses {
			hosts := [2]netip.Addr{testhost.Host4.Addr(), testhost.Host6.Addr()}
			outside := [2]netip.Addr{testhost.Outside4.Addr(), testhost.Outside6.Addr()}[family]
			for _, protocol := range []string{"tcp", "udp", "sctp", "icmp"} {
				for from, netns := range map[string]string{"outside": h.Outside.Path(), "another network": stranger} {
					add(false, n.name+" from "+from, netns, protocol, at, 80)
				}
				add(true, n.name+" from the host", "", protocol, at, 81)
				add(true, n.name+" from its network", n.peer.Netns, protocol, at, 81)
			}
			for _, protocol := range []string{"tcp", "udp"} {
				for from, netns := range map[string]string{"outside": h.Outside.Path(), "another network": stranger, "its network": n.peer.Netns} {
					add(true, n.name+" through its host port from "+from, netns, protocol, hosts[family], n.port)
				}
				add(true, n.name+" to the outside", n.server.Netns, protocol, outside, 80)
			}
		}
		add(true, n.name+" through its host port of the loopback", "", "tcp", netip.MustParseAddr("127.0.0.1"), n.port+1)
	}
	return flows
}

// requireUnspoofed requires that packets from outside with a source in the network of an allocation do not reach it.
func (h *host) requireUnspoofed(n *publishing) {
	h.T.Helper()
	at := sniffer(h.T, n.server.Netns)
	for family, to := range n.addresses {
		peer := n.peers[family]
		unused := peer.Next().Next().Next()
		for _, from := range []struct {
			netns  string
			source netip.Addr
			want   bool
		}{{n.peer.Netns, peer, true}, {h.Outside.Path(), peer, false}, {h.Outside.Path(), unused, false}} {
			token := rand.Text()
			requirePacket(h.T, from.want, fmt.Sprintf("%s from %s in %q", n.name, from.source, from.netns), token, at, func() {
				sendPackets(h.T, from.netns, to, packet(from.source, to, unix.IPPROTO_UDP,
					udpPacket(netip.AddrPortFrom(from.source, 5000), netip.AddrPortFrom(to, 99), []byte(token))))
			})
		}
	}
}
