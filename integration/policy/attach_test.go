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
			leave := func(via string) {
				testbed.Within(t, a.Netns, func() error {
					return testbed.Command("ip", "route", "replace", outside.Addr().String(), "via", via)
				})
			}
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
	testbed.Within(t, a.Netns, func() error {
		return testbed.Command("ip", "route", "replace", outside.Addr().String(), "via", "10.99.0.1")
	})
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
