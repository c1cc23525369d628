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

// TestHostIsNotAnAddress: packets from another machine are not from the host, whatever their source is, also
// through a host port. What the host sends reaches an isolated allocation.
func TestHostIsNotAnAddress(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.connectOutside()
			h.Network("net", policed(main, testbed.Dual)...)
			isolated, free := h.Alloc("isolated"), h.Alloc("free")
			isolated.Policy = mustPolicy(t, `{"presets":["isolated"]}`)
			for i, a := range []*configurator.Allocation{&free, &isolated} {
				a.Ports = []portmap.Port{{Value: 8080 + i, To: 99, Protocols: []string{"udp", "tcp"}}}
				h.InNew(*a, func() {
					testbed.SetSysctls(t, a.Netns, testbed.Quick)
					testbed.Serve(t, a.Netns, "tcp", 99, a.ID)
				})
				s := h.SetUp(*a)
				for _, address := range []string{s.Address, s.AddressIPv6} {
					testbed.RequireAnswer(t, "", "tcp", testbed.At(netip.MustParseAddr(address), 99), a.ID)
				}
				for _, address := range []netip.Prefix{testhost.Host4, testhost.Host6} {
					testbed.RequireAnswer(t, "", "tcp", testbed.HostPort(address, 8080+i), a.ID)
				}
				inside, at := netip.MustParseAddr(s.AddressIPv6), sniffer(t, a.Netns)
				for _, source := range []netip.Addr{testhost.Host6.Addr(), testhost.Host6b.Addr(), testhost.Outside6.Addr()} {
					for _, to := range []netip.AddrPort{
						netip.AddrPortFrom(inside, 99), netip.AddrPortFrom(testhost.Host6.Addr(), uint16(8080+i)),
					} {
						token := rand.Text()
						requirePacket(t, a.ID == "free", fmt.Sprintf("to %s of %s from %s", to, a.ID, source), token, at, func() {
							sendPackets(t, h.Outside.Path(), to.Addr(), packet(source, to.Addr(), unix.IPPROTO_UDP,
								udpPacket(netip.AddrPortFrom(source, 5000), to, []byte(token))))
						})
					}
				}
			}
			const port = 8081
			_, err := h.Update(h.Context(), "isolated", configurator.Change{Policy: mustPolicy(t, `{"ingress":{"rules":[{"action":"deny","peers":[{"name":"host"}]}]}}`)})
			require.NoError(t, err)
			for _, address := range []netip.Prefix{testhost.Host4, testhost.Host6} {
				testbed.RequireSilence(t, "", "tcp", testbed.HostPort(address, port))
				testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(address, port), "isolated")
				testbed.RequireAnswer(t, free.Netns, "tcp", testbed.HostPort(address, port), "isolated")
			}
			h.TearDown(isolated, free)
		})
	}
}

// TestHostSendsForOthers: what the host sends on from the addresses of others, as IPVS and transparent proxies do,
// is not from the host.
func TestHostSendsForOthers(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			h.Network("net", policed(main, testbed.Dual)...)
			server, friend, other := h.Alloc("server"), h.Alloc("friend"), h.Alloc("other")
			friend.Labels = map[string]string{"app": "friend"}
			server.Policy = mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"friend"}}]}]}}`)
			ofServer, ofFriend, ofOther := h.SetUp(server), h.SetUp(friend), h.SetUp(other)
			at := sniffer(t, server.Netns)
			try := func(want bool, from, to string) {
				t.Helper()
				source, target, token := netip.MustParseAddr(from), netip.MustParseAddr(to), rand.Text()
				requirePacket(t, want, from, token, at, func() {
					sendPackets(t, "", target, packet(source, target, unix.IPPROTO_UDP,
						udpPacket(netip.AddrPortFrom(source, 5000), netip.AddrPortFrom(target, 99), []byte(token))))
				})
			}
			families := func(s *configurator.Status) []string { return []string{s.Address, s.AddressIPv6} }
			host := []string{testhost.Host4.Addr().String(), testhost.Host6.Addr().String()}
			world := []string{"198.51.100.7", "2001:db8:7::7"}
			for i, to := range families(ofServer) {
				try(true, host[i], to)
				try(true, families(ofFriend)[i], to)
				try(false, families(ofOther)[i], to)
				try(false, world[i], to)
			}
			_, err := h.Update(h.Context(), "server", configurator.Change{Policy: mustPolicy(t, `{"ingress":{"default":"deny","rules":[
				{"action":"deny","peers":[{"name":"host"}]},{"peers":[{"name":"world"}]}]}}`)})
			require.NoError(t, err)
			for i, to := range families(ofServer) {
				try(false, host[i], to)
				try(false, families(ofOther)[i], to)
				try(true, world[i], to)
			}
			h.TearDown(server, friend, other)
		})
	}
}

// TestAllocationIsNotAnAddress: packets from another machine are not from an allocation of the host, although
// the kernel does not check their source.
func TestAllocationIsNotAnAddress(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.connectOutside()
			testbed.SetSysctls(t, "", map[string]string{"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/" + testhost.Wire + "/rp_filter": "0"})
			for _, family := range []string{"-4", "-6"} { // the routes to other hosts do not make the source one of the link
				gateway := map[string]netip.Prefix{"-4": testhost.Outside4, "-6": testhost.Outside6}[family].Addr().String()
				require.NoError(t, testbed.Command("ip", family, "route", "add", "default", "via", gateway))
				defer func() { require.NoError(t, testbed.Command("ip", family, "route", "del", "default", "via", gateway)) }()
			}
			h.Network("net", policed(main, testbed.Dual)...)
			peer, free, server := h.Alloc("peer"), h.Alloc("free"), h.Alloc("server")
			peer.Labels = map[string]string{"app": "web"}
			other4, other6 := netip.MustParseAddr("10.99.200.7"), netip.MustParseAddr("fd00:99:200::7") // of another host
			server.Policy = mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"web"}},{"cidr":"`+
				other4.String()+`/32"},{"cidr":"`+other6.String()+`/128"}]}]}}`)
			addresses := map[string][2]netip.Addr{}
			for _, a := range []configurator.Allocation{peer, free, server} {
				s := h.SetUp(a)
				addresses[a.ID] = [2]netip.Addr{netip.MustParseAddr(s.Address), netip.MustParseAddr(s.AddressIPv6)}
			}
			at := map[string]int{"free": sniffer(t, free.Netns), "server": sniffer(t, server.Netns)}
			for i, other := range []netip.Addr{other4, other6} {
				for _, one := range []struct {
					netns, to string
					source    netip.Addr
					want      bool
				}{
					{peer.Netns, "server", addresses["peer"][i], true},
					{peer.Netns, "free", addresses["peer"][i], true},
					{h.Outside.Path(), "free", addresses["peer"][i], true},
					{h.Outside.Path(), "server", other, true},
					{h.Outside.Path(), "server", addresses["peer"][i], false},
				} {
					token, to := rand.Text(), netip.AddrPortFrom(addresses[one.to][i], 99)
					requirePacket(t, one.want, fmt.Sprintf("from %s in %s to %s", one.source, one.netns, one.to), token, at[one.to], func() {
						sendPackets(t, one.netns, to.Addr(), packet(one.source, to.Addr(), unix.IPPROTO_UDP,
							udpPacket(netip.AddrPortFrom(one.source, 5000), to, []byte(token))))
					})
				}
			}
			h.TearDown(peer, free, server)
		})
	}
}

// TestAllocationsOnOtherLinks: allocations without the source guard, and those on a bridge to which the host
// has no route, reach allocations with a policy.
func TestAllocationsOnOtherLinks(t *testing.T) {
	for _, kind := range []string{"without the guard", "bridge without a gateway"} {
		t.Run(kind, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			main := "ptp"
			if kind != "without the guard" {
				main = "bridge"
			}
			plugins := policed(main, testbed.Dual)
			peer, server := h.Alloc("peer"), h.Alloc("server")
			if main == "ptp" {
				h.Network("net", plugins...)
				others := testbed.Families{V4: "10.99.5.0/24", V6: "fd00:99:5::/64"}
				unguarded := policed("ptp", others)
				unguarded[1]["sourceGuard"] = false
				h.Network("unguarded", unguarded...)
				peer.Networks = []string{"unguarded"}
			} else {
				delete(plugins[1], "ipMasq")
				plugins[1]["isGateway"] = false
				h.Network("net", plugins[0], plugins[1], plugins[len(plugins)-1])
			}
			peer.Labels = map[string]string{"app": "web"}
			server.Policy = mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"web"}}]}]}}`)
			h.InNew(server, func() { testbed.Serve(t, server.Netns, "tcp", 99, "server") })
			h.SetUp(peer)
			s := h.SetUp(server)
			for _, address := range []string{s.Address, s.AddressIPv6} {
				testbed.RequireAnswer(t, peer.Netns, "tcp", testbed.At(netip.MustParseAddr(address), 99), "server")
			}
			h.TearDown(peer, server)
		})
	}
}
