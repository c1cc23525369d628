package policy

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// TestIngressPolicy checks which connections are accepted between two bridges
// and within one.
func TestIngressPolicy(t *testing.T) {
	policies := map[string]struct{ between, within bool }{
		"open":        {true, true},
		"same-bridge": {false, true},
		"isolated":    {false, false},
	}
	testbed.EachElsewhere(t, testbed.Engines, func(t *testing.T, w testbed.Way) {
		for policy, want := range policies {
			t.Run(policy, func(t *testing.T) { testIngressPolicy(t, w, policy, want.between, want.within) })
		}
	})
}

func testIngressPolicy(t *testing.T, w testbed.Way, policy string, between, within bool) {
	h := newHost(t, w.Engine)
	testbed.SetSysctls(t, "", testbed.Quick)
	for name, f := range map[string]testbed.Families{"one": testbed.Dual, "two": {V4: "10.98.0.0/24", V6: "fd00:98::/64"}} {
		plugins := testbed.Chain("bridge", f, w.Backend)
		plugins[1]["bridge"], plugins[2]["ingressPolicy"] = "br-"+name, policy
		h.Network(name, plugins...)
	}
	a, b, c := h.Alloc("a"), h.Alloc("b"), h.Alloc("c")
	a.Networks, b.Networks, c.Networks = []string{"one"}, []string{"one"}, []string{"two"}
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	for _, one := range []configurator.Allocation{a, b, c} {
		h.InNew(one, func() {
			testbed.SetSysctls(t, one.Netns, testbed.Quick)
			testbed.Serve(t, one.Netns, "tcp", 80, "x")
		})
	}
	statusA, _, statusC := h.SetUp(a), h.SetUp(b), h.SetUp(c)
	require.NoError(t, h.Check(h.Context(), a))
	reach := func(want bool, netns string, to netip.Addr, port int) {
		t.Helper()
		if want {
			testbed.RequireAnswer(t, netns, "tcp", testbed.At(to, port), "x")
		} else {
			testbed.RequireSilence(t, netns, "tcp", testbed.At(to, port))
		}
	}
	addr := netip.MustParseAddr
	for _, family := range []struct{ a, c, host, outside netip.Addr }{
		{addr(statusA.Address), addr(statusC.Address), testhost.Host4.Addr(), testhost.Outside4.Addr()},
		{addr(statusA.AddressIPv6), addr(statusC.AddressIPv6), testhost.Host6.Addr(), testhost.Outside6.Addr()},
	} {
		reach(between, c.Netns, family.a, 80)
		reach(between, a.Netns, family.c, 80)
		reach(between, c.Netns, family.host, 8080)
		// The firewall sees packets within a bridge only if br_netfilter passes
		// them to it.
		reach(within || !bridgeNetfilter(t), b.Netns, family.a, 80)
		reach(within, b.Netns, family.host, 8080)
		reach(true, h.Outside.Path(), family.host, 8080)
		reach(true, "", family.a, 80)
	}
	h.TearDown(a, b, c)
}

// bridgeNetfilter reports whether the firewall sees bridged frames.
func bridgeNetfilter(t *testing.T) bool {
	t.Helper()
	value, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables")
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	require.NoError(t, err)
	return string(value) == "1\n"
}

// TestIngressPolicyOfPtp: every veth is guarded for itself, and its guard ends with it.
func TestIngressPolicyOfPtp(t *testing.T) {
	testbed.EachElsewhere(t, []testbed.Way{testbed.Native, testbed.NativeTables}, func(t *testing.T, w testbed.Way) {
		for _, policy := range []string{"same-bridge", "isolated"} {
			t.Run(policy, func(t *testing.T) {
				h := newHost(t, w.Engine)
				plugins := testbed.Chain("ptp", testbed.Dual, w.Backend)
				plugins[2]["ingressPolicy"] = policy
				h.Network("net", plugins...)
				a, b := h.Alloc("a"), h.Alloc("b")
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				s := h.SetUp(a)
				testbed.Serve(t, a.Netns, "tcp", 80, "a")
				h.SetUp(b)
				for _, address := range []string{s.Address, s.AddressIPv6} {
					testbed.RequireSilence(t, b.Netns, "tcp", testbed.At(netip.MustParseAddr(address), 80))
					testbed.RequireAnswer(t, "", "tcp", testbed.At(netip.MustParseAddr(address), 80), "a")
				}
				for _, address := range []netip.Prefix{testhost.Host4, testhost.Host6} {
					testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(address, 8080), "a")
				}
				require.True(t, strings.Contains(guards(t), testbed.HostLink(t, s)), "a guard")
				h.TearDown(b)
				require.NoError(t, h.Check(h.Context(), a))
				require.NoError(t, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
				h.TearDown(a)
				h.WithoutSlots()
				require.False(t, strings.Contains(guards(t), "veth"), "no guard is left")
			})
		}
	})
}

// guards lists the rules of ingressPolicy of both kinds.
func guards(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, line := range []string{"nft list ruleset", "iptables-save -t filter", "ip6tables-save -t filter"} {
		fields := strings.Fields(line)
		out, err := exec.Command(fields[0], fields[1:]...).CombinedOutput()
		require.NoError(t, err, string(out))
		all.Write(out)
	}
	return all.String()
}
