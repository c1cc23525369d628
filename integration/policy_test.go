package integration

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
	eachElsewhere(t, engines, func(t *testing.T, w way) {
		for policy, want := range policies {
			t.Run(policy, func(t *testing.T) { testIngressPolicy(t, w, policy, want.between, want.within) })
		}
	})
}

func testIngressPolicy(t *testing.T, w way, policy string, between, within bool) {
	h := newHost(t, w.engine)
	setSysctls(t, "", quick)
	for name, f := range map[string]families{"one": dual, "two": {"10.98.0.0/24", "fd00:98::/64"}} {
		plugins := chain("bridge", f, w.backend)
		plugins[1]["bridge"], plugins[2]["ingressPolicy"] = "br-"+name, policy
		h.network(name, plugins...)
	}
	a, b, c := h.alloc("a"), h.alloc("b"), h.alloc("c")
	a.Networks, b.Networks, c.Networks = []string{"one"}, []string{"one"}, []string{"two"}
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	for _, one := range []configurator.Allocation{a, b, c} {
		h.inNew(one, func() {
			setSysctls(t, one.Netns, quick)
			serve(t, one.Netns, "tcp", 80, "x")
		})
	}
	statusA, _, statusC := h.setUp(a), h.setUp(b), h.setUp(c)
	require.NoError(t, h.Check(h.ctx(), a))
	reach := func(want bool, netns string, to netip.Addr, port int) {
		t.Helper()
		if want {
			requireAnswer(t, netns, "tcp", at(to, port), "x")
		} else {
			requireSilence(t, netns, "tcp", at(to, port))
		}
	}
	addr := netip.MustParseAddr
	for _, family := range []struct{ a, c, host, outside netip.Addr }{
		{addr(statusA.Address), addr(statusC.Address), host4.Addr(), outside4.Addr()},
		{addr(statusA.AddressIPv6), addr(statusC.AddressIPv6), host6.Addr(), outside6.Addr()},
	} {
		reach(between, c.Netns, family.a, 80)
		reach(between, a.Netns, family.c, 80)
		reach(between, c.Netns, family.host, 8080)
		// The firewall sees packets within a bridge only if br_netfilter passes
		// them to it.
		reach(within || !bridgeNetfilter(t), b.Netns, family.a, 80)
		reach(within, b.Netns, family.host, 8080)
		reach(true, h.outside.Path(), family.host, 8080)
		reach(true, "", family.a, 80)
	}
	h.tearDown(a, b, c)
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
	each(t, []way{native, nativeTables}, func(t *testing.T, w way) {
		for _, policy := range []string{"same-bridge", "isolated"} {
			t.Run(policy, func(t *testing.T) {
				h := newHost(t, w.engine)
				plugins := chain("ptp", dual, w.backend)
				plugins[2]["ingressPolicy"] = policy
				h.network("net", plugins...)
				a, b := h.alloc("a"), h.alloc("b")
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				s := h.setUp(a)
				serve(t, a.Netns, "tcp", 80, "a")
				h.setUp(b)
				for _, address := range []string{s.Address, s.AddressIPv6} {
					requireSilence(t, b.Netns, "tcp", at(netip.MustParseAddr(address), 80))
					requireAnswer(t, "", "tcp", at(netip.MustParseAddr(address), 80), "a")
				}
				for _, address := range []netip.Prefix{host4, host6} {
					requireAnswer(t, h.outside.Path(), "tcp", hostPort(address, 8080), "a")
				}
				require.True(t, strings.Contains(guards(t), hostLink(t, s)), "a guard")
				h.tearDown(b)
				require.NoError(t, h.Check(h.ctx(), a))
				require.NoError(t, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
				h.tearDown(a)
				h.withoutSlots()
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
