package policy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// TestEmbeddedNetworkIsClosed: allocations of the embedded network reach each other, their gateway,
// host ports and what is outside the host, but neither the host's other addresses nor allocations of
// other networks, unless the configuration says otherwise. Allocations of other networks, and what is
// outside the host, reach their host ports. They reach those of networks without the plugin policy.
func TestEmbeddedNetworkIsClosed(t *testing.T) {
	for name, of := range map[string]*policy.Policy{
		"default": nil,
		"resolver": {Presets: []policy.Preset{policy.NoHost}, Egress: &policy.Direction{Rules: []policy.Rule{
			{Peers: []policy.Peer{{Name: "host"}}, Services: []policy.Service{{Protocol: "udp", Ports: "53"}}},
		}}},
		"open": {},
	} {
		t.Run(name, func(t *testing.T) {
			if testbed.WithPools(t) && of != nil { // a pool does not know which policy the configuration has
				skip.InShort(t)
			}
			testEmbeddedNetworkIsClosed(t, of)
		})
	}
}

func testEmbeddedNetworkIsClosed(t *testing.T, of *policy.Policy) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Policy = of })
	h.connectOutside()
	for _, c := range []string{
		"ip -n outside route add 10.202.0.0/16 via " + testhost.Host4.Addr().String(),
		"ip -n outside -6 route add fd0a:110c:2e7::/64 via " + testhost.Host6.Addr().String(),
	} {
		require.NoError(t, testbed.Command(strings.Fields(c)[0], strings.Fields(c)[1:]...), c)
	}
	h.Network("other", policed("bridge", testbed.Families{V4: "10.99.3.0/24", V6: "fd00:99:3::/64"})...)
	h.Network("plain", testbed.Chain("ptp", testbed.Families{V4: "10.99.4.0/24", V6: "fd00:99:4::/64"}, "")...)
	published := testbed.Chain("ptp", testbed.Families{V4: "10.99.5.0/24", V6: "fd00:99:5::/64"}, "")
	published[2]["ingressPolicy"] = "published"
	h.Network("published", published...)
	answerAll(t, "", 53) // the others are those of connectOutside
	var allocs []configurator.Allocation
	var addresses [][2]netip.Addr
	for i, network := range []string{"allocnet", "allocnet", "other", "plain", "published"} {
		a := h.Alloc([]string{"a", "b", "c", "d", "e"}[i])
		a.Networks = []string{network}
		a.Ports = []portmap.Port{{Value: 8000 + i, To: 80, Protocols: []string{"udp", "tcp"}}}
		h.InNew(a, func() {
			testbed.SetSysctls(t, a.Netns, testbed.Quick)
			answerAll(t, a.Netns, 80)
		})
		s := h.SetUp(a)
		allocs = append(allocs, a)
		addresses = append(addresses, [2]netip.Addr{netip.MustParseAddr(s.Address), netip.MustParseAddr(s.AddressIPv6)})
	}
	gateways := [2]netip.Addr{netip.MustParseAddr("10.202.0.1"), netip.MustParseAddr("fd0a:110c:2e7::1")}
	var flows []*flow
	for family := range 2 {
		host, outside := [2]netip.Addr{testhost.Host4.Addr(), testhost.Host6.Addr()}[family], [2]netip.Addr{testhost.Outside4.Addr(), testhost.Outside6.Addr()}[family]
		open := of != nil && of.IsEmpty()
		for _, one := range []struct {
			name string
			to   netip.Addr
			port uint16
			want bool
		}{
			{"to its own network", addresses[1][family], 80, true},
			{"to its gateway", gateways[family], 80, true},
			{"to the outside", outside, 80, true},
			{"to a host port of its network", host, 8001, true},
			{"to a host port of another network", host, 8002, true},
			{"to the host", host, 80, open},
			{"to the host's resolver", host, 53, of != nil},
			{"to another network", addresses[2][family], 80, open},
			{"to a network without policies", addresses[3][family], 80, true},
			{"to a network without policies that publishes its ports", addresses[4][family], 80, false},
			{"to the gateway of another network", [2]netip.Addr{netip.MustParseAddr("10.99.3.1"), netip.MustParseAddr("fd00:99:3::1")}[family], 80, open},
		} {
			flows = append(flows, &flow{name: one.name, netns: allocs[0].Netns, protocol: "udp", to: netip.AddrPortFrom(one.to, one.port), want: one.want})
		}
		flows = append(flows,
			&flow{name: "from the host", protocol: "udp", to: netip.AddrPortFrom(addresses[0][family], 80), want: true},
			&flow{name: "from another network", netns: allocs[2].Netns, protocol: "udp", to: netip.AddrPortFrom(addresses[0][family], 80), want: of != nil},
			&flow{name: "from outside", netns: h.Outside.Path(), protocol: "udp", to: netip.AddrPortFrom(addresses[0][family], 80), want: of != nil},
			&flow{name: "ping from outside", netns: h.Outside.Path(), protocol: "icmp", to: netip.AddrPortFrom(addresses[0][family], 0), want: of != nil},
			&flow{name: "from another network to its host port", netns: allocs[2].Netns, protocol: "udp", to: netip.AddrPortFrom(host, 8000), want: true},
			&flow{name: "from outside to its host port", netns: h.Outside.Path(), protocol: "udp", to: netip.AddrPortFrom(host, 8000), want: true})
	}
	h.requireFlows(flows)
	privhost.FlushRuleset(t)
	_, err := h.Repair(h.Context())
	require.NoError(t, err)
	for _, f := range flows {
		f.answered = false
	}
	h.requireFlows(flows)
	h.TearDown(allocs...)
}
