package firewall

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

const explicit = `"backend": "iptables",`

// layouts are configurations of the backend iptables.
var layouts = map[string]string{
	"v4":          conf(explicit, "10.1.0.2/24"),
	"v6":          conf(explicit, "fd00::2/64"),
	"dual":        conf(explicit, "10.1.0.2/24", "fd00::2/64", "10.1.0.3/24"),
	"admin":       conf(explicit+`"iptablesAdminChainName": "MINE",`, "10.1.0.2/24"),
	"same-bridge": conf(explicit+`"ingressPolicy": "same-bridge",`, "10.1.0.2/24", "fd00::2/64"),
	"isolated":    conf(explicit+`"ingressPolicy": "isolated",`, "10.1.0.2/24"),
	"no address":  conf(explicit + `"ingressPolicy": "isolated",`),
}

// TestReferenceLayout: each plugin creates the same rules, and accepts and
// removes those of the other.
func TestReferenceLayout(t *testing.T) {
	for i, name := range slices.Sorted(maps.Keys(layouts)) {
		conf := layouts[name]
		t.Run(name, func(t *testing.T) {
			skip.InTurn(t, i, 3)
			h := newHost(t)
			require.NoError(t, h.reference("ADD", "c1", conf))
			theirs := h.rules()
			require.NoError(t, h.check("c1", conf))
			h.add("c1", conf)
			require.Equal(t, theirs, h.rules(), "ADD changes nothing that is there")
			h.del("c1", conf)
			afterOurs := h.rules()
			require.NotContains(t, afterOurs, "-s 10.1.0.2/32")
			require.NotContains(t, afterOurs, "-s fd00::2/128")
			privhost.FlushRuleset(h.T)

			h.add("c1", conf)
			require.Equal(t, theirs, h.rules())
			require.NoError(t, h.reference("CHECK", "c1", conf))
			require.NoError(t, h.check("c1", conf))
			require.NoError(t, h.reference("DEL", "c1", conf))
			require.Equal(t, afterOurs, h.rules())
			h.del("c1", conf)
			require.Equal(t, afterOurs, h.rules())
		})
	}
}

func TestReferenceLayoutText(t *testing.T) {
	h := newHost(t)
	h.add("c1", layouts["isolated"])
	require.Equal(t, strings.TrimSpace(`
-P INPUT ACCEPT
-P FORWARD ACCEPT
-P OUTPUT ACCEPT
-N CNI-ADMIN
-N CNI-FORWARD
-N CNI-ISOLATION-STAGE-1
-N CNI-ISOLATION-STAGE-2
-A FORWARD -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
-A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
-A CNI-ISOLATION-STAGE-1 -i br0 -o br0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j DROP
-A CNI-ISOLATION-STAGE-1 -i br0 ! -o br0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j CNI-ISOLATION-STAGE-2
-A CNI-ISOLATION-STAGE-1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
-A CNI-ISOLATION-STAGE-2 -o br0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j DROP
-A CNI-ISOLATION-STAGE-2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
`), strings.TrimSpace(h.run("iptables", "-S")))
}

// TestCheckMissesEachRule: CHECK reports the absence of each rule of the
// layout.
func TestCheckMissesEachRule(t *testing.T) {
	h := newHost(t)
	conf := layouts["isolated"]
	h.add("c1", conf)
	saved := h.run("iptables-save", "-t", "filter")
	for line := range strings.Lines(saved) {
		if !strings.HasPrefix(line, "-A") {
			continue
		}
		h.restore(strings.Replace(saved, line, "", 1))
		require.ErrorContains(t, h.check("c1", conf), "iptables rule is missing: "+strings.Fields(line)[1], line)
		require.NoError(t, h.del1("c1", conf))
	}
	privhost.FlushRuleset(h.T)
	err := h.check("c1", conf)
	require.ErrorContains(t, err, "iptables rule is missing: CNI-FORWARD")
	require.NotContains(t, err.Error(), "running", "iptables complains of a missing chain")
	require.NoError(t, h.del1("c1", conf))
}

func TestAddThatFailsTakesItsRulesBack(t *testing.T) {
	h := newHost(t)
	conf := conf(explicit, "10.1.0.2/24", "fd00::2/64")
	h.run("nft", "add table ip6 filter; add chain ip6 filter CNI-FORWARD; add rule ip6 filter CNI-FORWARD fib saddr type local drop")
	_, err := h.plugin(conf).Add(context.Background(), h.call("c1"))
	require.ErrorContains(t, err, "ip6tables")
	require.NotContains(t, h.run("iptables", "-S"), "10.1.0.2")
}

func TestManyAddsShareTheFrame(t *testing.T) {
	h := newHost(t)
	var wait sync.WaitGroup
	for _, address := range []string{"10.1.0.2/24", "10.1.0.3/24", "10.1.0.4/24", "10.1.0.5/24"} {
		p := h.plugin(conf(explicit, address))
		wait.Go(func() {
			if _, err := p.Add(context.Background(), h.call(address)); err != nil {
				t.Errorf("add: %v", err)
			}
		})
	}
	wait.Wait()
	rules := h.run("iptables", "-S")
	require.Equal(t, 1, strings.Count(rules, "-j CNI-FORWARD"), rules)
	require.Equal(t, 1, strings.Count(rules, "-j CNI-ADMIN"), rules)
	require.Equal(t, 8, strings.Count(rules, "-j ACCEPT"), rules)
}

func TestWithoutIptables(t *testing.T) {
	h := newHost(t)
	conf := conf(explicit, "10.1.0.2/24")
	p := h.plugin(conf)
	require.NoError(t, p.Status(context.Background(), h.call("")))
	t.Run("away", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		requireUnavailable(t, p.Status(context.Background(), h.call("")))
		_, err := p.Add(context.Background(), h.call("c1"))
		require.ErrorContains(t, err, "iptables, which the backend iptables needs")
		require.NoError(t, p.Del(context.Background(), h.call("c1")), "the kernel shows that there is nothing")
	})
	h.add("c1", conf)
	t.Run("away after ADD", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		err := p.Del(context.Background(), h.call("c1"))
		require.ErrorContains(t, err, "find iptables")
		require.ErrorContains(t, err, "rule of chain CNI-FORWARD for 10.1.0.2")
		other := h.plugin(strings.ReplaceAll(conf, "10.1.0.2", "10.1.0.20"))
		require.NoError(t, other.Del(context.Background(), h.call("c2")), "what is there is another's")
	})
	h.del("c1", conf)
	require.NotContains(t, h.rules(), "10.1.0.2")
}
