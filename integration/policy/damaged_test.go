package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// TestPolicyAfterDamage: if another program has removed rules, a new allocation has its policy and its host
// port nevertheless, and so has one after an Update. No daemon has restored the rules meanwhile.
func TestPolicyAfterDamage(t *testing.T) {
	tables := []string{"nft flush ruleset", "nft delete table ip allocnet_policy", "nft flush chain ip allocnet_policy POLICY_egress"}
	rules := []string{
		"nft delete chain ip allocnet_policy forward", "nft flush chain ip allocnet_policy forward", "nft flush chain ip allocnet_policy egress",
		"nft flush map ip allocnet_policy egress_links", "nft flush chain ip allocnet host_ports_dnat",
	}
	testhost.EachElsewhere(t, []string{"ptp, tables", "ptp, rules", "bridge, tables"}, func(t *testing.T, part string) {
		main, what, _ := strings.Cut(part, ", ")
		for _, damage := range map[string][]string{"tables": tables, "rules": rules}[what] {
			t.Run(damage, func(t *testing.T) { testAfterDamage(t, main, damage) })
		}
	})
}

func testAfterDamage(t *testing.T, main, damage string) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
	testbed.SetSysctls(t, "", testbed.Quick)
	h.Network("net", policed(main, testbed.V4Only)...)
	testbed.Serve(t, h.Outside.Path(), "tcp", 90, "outside")
	list := mustPolicy(t, `{"egress":{"default":"deny","rules":[{"peers":[{"name":"world"}],"services":[{"protocol":"tcp","ports":"91"}]}]}}`)
	first, second := h.Alloc("first"), h.Alloc("second")
	first.Policy, second.Policy = list, list
	second.Ports = []portmap.Port{testbed.TCPPort(8080, 80)}
	h.SetUp(first)
	rules, err := testbed.Output("nft", "list", "table", "ip", "allocnet_policy")
	require.NoError(t, err)
	id := regexp.MustCompile(`policy_[0-9a-f]{16}`).FindString(rules)
	require.NotEmpty(t, id)
	harm := func() { testbed.Shell(t, strings.ReplaceAll(damage, "POLICY", id)) }
	other := func() *configurator.Configurator { // another process, which has not looked at the rules yet
		c, err := configurator.New(h.Config)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	outside := netip.AddrPortFrom(testhost.Outside4.Addr(), 90)

	harm()
	_, err = other().Setup(h.Context(), second)
	require.NoError(t, err)
	testbed.Serve(t, second.Netns, "tcp", 80, "second")
	require.Error(t, dialFrom(t, second.Netns, netip.Addr{}, outside))
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "second")

	harm()
	s, err := other().Update(h.Context(), second.ID, configurator.Change{Policy: list, Publish: second.Ports})
	require.NoError(t, err)
	require.Error(t, dialFrom(t, second.Netns, netip.Addr{}, outside))
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "second")
	_, err = h.Update(h.Context(), second.ID, configurator.Change{Policy: &policy.Policy{}, Revision: s.Revision})
	require.NoError(t, err)
	_, err = h.Repair(h.Context())
	require.NoError(t, err)
	require.NoError(t, dialFrom(t, second.Netns, netip.Addr{}, outside))
	h.TearDown(first, second)
}

// TestBridgeRulesAreRepaired: Repair reports that it makes the traffic within a bridge pass the rules again.
func TestBridgeRulesAreRepaired(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
	h.Network("net", policed("bridge", testbed.Dual)...)
	a := h.Alloc("a")
	a.Policy = &policy.Policy{Presets: []policy.Preset{policy.Isolated}}
	h.SetUp(a)
	testbed.Shell(t, "echo 0 > /sys/class/net/br-test/bridge/nf_call_iptables")
	require.ErrorIs(t, h.CheckOnly(h.Context(), a), configurator.ErrUnhealthy)
	report, err := h.Repair(h.Context())
	require.NoError(t, err)
	require.Equal(t, []string{a.ID}, report.Repaired)
	require.NoError(t, h.CheckOnly(h.Context(), a))
	h.TearDown(a)
}

// TestConnectionsOfDamageEnd: connections that were made while something of what enforces a policy was missing end
// with its restoration, whatever was missing, and whatever restores it.
func TestConnectionsOfDamageEnd(t *testing.T) {
	const isolated, world = `{"presets":["isolated"]}`, `{"presets":["egress-only"]}`
	damages := map[string][]struct{ name, policy, damage string }{
		"ptp": {
			{"group of the link", isolated, "ip link set LINK group 0"},
			{"guarded group", isolated, fmt.Sprint("ip link set LINK group ", names.GuardedGroup)},
		},
		"bridge": {
			{"address of the policy", isolated, "nft delete element ip allocnet_policy egress_addresses '{ ADDRESS }'"},
			{"address of the peer", world, "nft delete element ip allocnet_policy allocations '{ PEER }'"},
		},
	}
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, func(t *testing.T, main string) {
		for _, one := range damages[main] {
			for name, restore := range map[string]func(*host) error{
				"Restore":        func(h *host) error { _, err := h.Restore(h.Context()); return err },
				"CheckAndRepair": func(h *host) error { return errors.Join(h.repairOne("a"), h.repairOne("peer")) },
			} {
				t.Run(one.name+", "+name, func(t *testing.T) { testConnectionsOfDamage(t, main, one.policy, one.damage, restore) })
			}
		}
	})
}

func (h *host) repairOne(id string) error {
	_, err := h.CheckAndRepair(h.Context(), id)
	return err
}

func testConnectionsOfDamage(t *testing.T, main, policy, damage string, restore func(*host) error) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
	h.Network("net", policed(main, testbed.V4Only)...)
	a, peer := h.Alloc("a"), h.Alloc("peer")
	a.Policy = mustPolicy(t, policy)
	for _, one := range []configurator.Allocation{a, peer} {
		h.InNew(one, func() { testbed.SetSysctls(t, one.Netns, testbed.Quick) })
	}
	from, to := h.SetUp(a), h.SetUp(peer)
	at := netip.AddrPortFrom(netip.MustParseAddr(to.Address), 90)
	require.Error(t, dialFrom(t, a.Netns, netip.Addr{}, at))
	replace := strings.NewReplacer("LINK", testbed.HostLink(t, from), "ADDRESS", from.Address, "PEER", to.Address)
	testbed.Shell(t, replace.Replace(damage))
	c := openConnection(t, a.Netns, peer.Netns, at)
	require.NoError(t, restore(h))
	c.requireSilence(t, c.client, c.server)
	c.requireSilence(t, c.server, c.client)
	require.NoError(t, h.CheckOnly(h.Context(), a))
	h.TearDown(a, peer)
}
