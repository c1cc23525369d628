package policy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// openNetwork is a routed network that enforces no policies.
func openNetwork() []map[string]any {
	return testbed.Chain("ptp", testbed.Families{V4: "10.96.0.0/24", V6: "fd00:96::/64"}, "")
}

// TestAttachOfOpenNetwork: the labels of an allocation, and connections that the policies of others permit
// because of them, outlive the attachment of a network that enforces no policies.
func TestAttachOfOpenNetwork(t *testing.T) {
	for _, main := range []string{"ptp", "bridge"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", policed(main, testbed.Dual)...)
			h.Network("open", openNetwork()...)
			server, good, bad := h.Alloc("server"), h.Alloc("good"), h.Alloc("bad")
			server.Policy = mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"good"}}]}]}}`)
			good.Labels, bad.Labels = map[string]string{"app": "good"}, map[string]string{"app": "bad"}
			s := h.SetUp(server)
			testbed.ServeStreams(t, server.Netns)
			to := testbed.At(netip.MustParseAddr(s.Address), 80)
			h.SetUp(good)
			h.SetUp(bad)
			kept := h.EchoFrom(good.Netns, to)
			testbed.RequireSilence(t, bad.Netns, "tcp", to)
			for _, a := range []configurator.Allocation{good, bad} {
				_, err := h.Attach(h.Context(), a.ID, "open", configurator.AttachOptions{})
				require.NoError(t, err)
				a.Networks = []string{"net", "open"}
				require.NoError(t, h.CheckOnly(h.Context(), a))
			}
			require.NoError(t, kept())
			h.EchoFrom(good.Netns, to)
			testbed.RequireSilence(t, bad.Netns, "tcp", to)
			_, err := h.Detach(h.Context(), good.ID, "eth1", "")
			require.NoError(t, err)
			require.NoError(t, h.CheckOnly(h.Context(), good))
			require.NoError(t, kept())
			h.TearDown(server, good, bad)
		})
	}
}

// TestOpenNetworkIsNoWayOut: over the bridge of a network with a policy, an allocation does not send from
// the address of a network that has none.
func TestOpenNetworkIsNoWayOut(t *testing.T) {
	for _, order := range [][]string{{"net", "open"}, {"open", "net"}} {
		t.Run(order[0]+" first", func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = order })
			plugins := policed("bridge", testbed.Dual)
			plugins[len(plugins)-1]["policy"] = map[string]any{"egress": map[string]any{"default": "deny"}}
			h.Network("net", plugins...)
			h.Network("open", openNetwork()...)
			testbed.Serve(t, h.Outside.Path(), "tcp", 90, "outside")
			a := h.Alloc("a")
			h.SetUp(a)
			outside := netip.AddrPortFrom(testhost.Outside4.Addr(), 90)
			leave := func(via string) { sendVia(t, a.Netns, outside.Addr(), "via", via) }
			leave("10.96.0.1")
			require.NoError(t, dialFrom(t, a.Netns, netip.MustParseAddr("10.96.0.2"), outside))
			leave("10.99.0.1")
			for _, from := range []string{"10.99.0.2", "10.96.0.2"} {
				require.Error(t, dialFrom(t, a.Netns, netip.MustParseAddr(from), outside), from)
			}
			require.NoError(t, h.CheckOnly(h.Context(), a))
			h.TearDown(a)
		})
	}
}

// sendVia makes a container send to an address by a route, whichever address it sends from: its rule comes
// before those that choose the network by that address.
func sendVia(t *testing.T, netns string, to netip.Addr, route ...string) {
	t.Helper()
	ip := func(args ...string) error {
		if to.Is4() {
			return testbed.Command("ip", append([]string{"-4"}, args...)...)
		}
		return testbed.Command("ip", append([]string{"-6"}, args...)...)
	}
	testbed.Within(t, netns, func() error {
		rule := []string{"pref", "77", "to", to.String(), "lookup", "77"}
		_ = ip(append([]string{"rule", "del"}, rule...)...) // there is none at first
		require.NoError(t, ip(append([]string{"rule", "add"}, rule...)...))
		return ip(append([]string{"route", "replace", to.String(), "table", "77"}, route...)...)
	})
}

// TestPolicyOpensNoWayOut: a policy of the allocation that comes and goes leaves no way around the policy of
// one of its networks.
func TestPolicyOpensNoWayOut(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net", "open"} })
	plugins := policed("bridge", testbed.Dual)
	plugins[len(plugins)-1]["policy"] = map[string]any{"egress": map[string]any{"default": "deny"}}
	h.Network("net", plugins...)
	h.Network("open", append(openNetwork(), map[string]any{"type": "policy", "capabilities": map[string]bool{"policy": true}})...)
	testbed.Serve(t, h.Outside.Path(), "tcp", 90, "outside")
	a := h.Alloc("a")
	h.SetUp(a)
	outside := netip.AddrPortFrom(testhost.Outside4.Addr(), 90)
	sendVia(t, a.Netns, outside.Addr(), "via", "10.99.0.1")
	for _, text := range []string{"", `{"presets":["no-metadata"]}`, `{"presets":["isolated"]}`, `{}`} {
		if text != "" {
			_, err := h.Update(h.Context(), a.ID, configurator.Change{Policy: mustPolicy(t, text)})
			require.NoError(t, err)
		}
		is, err := h.Get(h.Context(), a.ID)
		require.NoError(t, err)
		require.NoError(t, h.CheckOnly(h.Context(), configurator.Allocation{ID: a.ID, Netns: a.Netns, Policy: is.Policy}), text)
		if text == "" || text == "{}" {
			require.Error(t, dialFrom(t, a.Netns, netip.MustParseAddr("10.96.0.2"), outside), text)
		}
	}
	a.Policy = nil
	h.TearDown(a)
}
