package builtin_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// forgetMasquerading removes the rules of earlier tests.
func forgetMasquerading(t *testing.T) {
	t.Helper()
	removeBridge(t)
	require.NoError(t, os.RemoveAll(masqueradedLeases))
	privhost.FlushRuleset(t)
}

// TestMasqueradeLayouts masquerades with a named backend. The rules are those
// of the reference plugin, and each implementation's DEL removes those of the
// other.
func TestMasqueradeLayouts(t *testing.T) {
	reference, native := runners(t)
	privhost.Require(t, "ip6tables", "nft")
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			conf := with(masqueraded(backend), "sourceGuard", false) // so all rules are those of the backend
			a := sandboxed(t, "masq-"+backend)
			life := func(one, other *runner) (with, without string) {
				reference.t, native.t = t, t
				forgetMasquerading(t)
				result := one.add(a, conf)
				with = rules(t)
				for _, r := range []*runner{other, one} {
					_, err := r.run("DEL", a, withResult(t, conf, result))
					require.NoError(t, err, r.name)
				}
				return with, rules(t)
			}
			want, wantLeft := life(reference, native)
			got, left := life(native, reference)
			require.Equal(t, want, got)
			require.Contains(t, want, a.id)
			for _, left := range []string{wantLeft, left} {
				require.NotContains(t, left, a.id)
				require.NotContains(t, left, "CNI-")
			}
		})
	}
}

// TestMasqueradeCheck: CHECK reports missing rules, and Repair restores them.
func TestMasqueradeCheck(t *testing.T) {
	_, native := runners(t)
	privhost.Require(t, "ip6tables", "nft")
	for backend, removals := range map[string][]string{
		"iptables": {"iptables -t nat -F POSTROUTING", "ip6tables -t nat -F POSTROUTING", "nft flush table ip nat", "nft delete table ip6 nat", "nft flush ruleset"},
		"nftables": {"nft flush chain inet cni_plugins_masquerade postrouting", "nft flush chain inet cni_plugins_masquerade masq_checks", "nft flush ruleset"},
	} {
		t.Run(backend, func(t *testing.T) {
			conf := masqueraded(backend)
			a := sandboxed(t, "checked-"+backend)
			native.t = t
			forgetMasquerading(t)
			withResult := withResult(t, conf, native.add(a, conf))
			_, err := native.run("CHECK", a, withResult)
			require.NoError(t, err)
			for _, removal := range removals {
				words := strings.Fields(removal)
				output(t, words[0], words[1:]...)
				_, err := native.run("CHECK", a, withResult)
				require.ErrorContains(t, err, backend, removal)
				_, err = native.run(sdk.Repair, a, withResult)
				require.NoError(t, err, removal)
				_, err = native.run("CHECK", a, withResult)
				require.NoError(t, err, removal)
			}
			_, err = native.run("DEL", a, withResult)
			require.NoError(t, err)
		})
	}
}

// TestMasqueradeWithoutProgram: DEL fails until the missing program is
// installed again, with and without a result.
func TestMasqueradeWithoutProgram(t *testing.T) {
	_, native := runners(t)
	privhost.Require(t, "ip6tables", "nft")
	for backend, missing := range map[string]string{"iptables": "iptables", "nftables": "nft"} {
		t.Run(backend, func(t *testing.T) {
			conf := masqueraded(backend)
			a := sandboxed(t, "away-"+backend)
			native.t = t
			forgetMasquerading(t)
			path, empty := os.Getenv("PATH"), t.TempDir()
			result := native.add(a, conf)
			for _, conf := range []object{conf, withResult(t, conf, result)} {
				t.Setenv("PATH", empty)
				_, err := native.run("DEL", a, conf)
				require.ErrorContains(t, err, "remove masquerading")
				require.ErrorContains(t, err, missing)
				t.Setenv("PATH", path)
				require.Contains(t, rules(t), a.id)
			}
			_, err := native.run("DEL", a, conf)
			require.NoError(t, err)
			require.NotContains(t, rules(t), a.id)
			require.NotContains(t, rules(t), "CNI-")
			t.Setenv("PATH", empty)
			_, err = native.run("DEL", a, withResult(t, conf, result))
			require.NoError(t, err, "nothing is left that the program is needed for")
		})
	}
}

// TestMasqueradeOfBothKinds: DEL fails while either kind of iptables has the
// chain, even if the installed kind had one and deleted it.
func TestMasqueradeOfBothKinds(t *testing.T) {
	_, native := runners(t)
	privhost.Require(t, "ip6tables", "nft", "iptables-legacy", "iptables-nft")
	conf := masqueraded("iptables")
	a := sandboxed(t, "masq-both")
	forgetMasquerading(t)
	result := native.add(a, conf)
	chain := regexp.MustCompile(`CNI-[0-9a-f]{24}`).FindString(rules(t))
	require.NotEmpty(t, chain)
	installed, other := "nf_tables", "iptables-legacy"
	if !strings.Contains(output(t, "iptables", "--version"), installed) {
		other = "iptables-nft"
	}
	output(t, other, "-t", "nat", "-N", chain)
	for range 2 {
		_, err := native.run("DEL", a, withResult(t, conf, result))
		require.ErrorContains(t, err, chain)
		require.NotContains(t, rules(t), chain)
	}
	output(t, other, "-t", "nat", "-X", chain)
	_, err := native.run("DEL", a, withResult(t, conf, result))
	require.NoError(t, err)
}

// TestMasqueradeCollected: with the backend nftables, GC removes only the rules
// of attachments that are not valid, whichever implementation made them.
func TestMasqueradeCollected(t *testing.T) {
	reference, native := runners(t)
	privhost.Require(t, "nft")
	conf := with(masqueraded("nftables"), "cniVersion", "1.1.0")
	removeBridge(t)
	privhost.FlushRuleset(t)
	stays, theirs, ours := sandboxed(t, "collect-stays"), sandboxed(t, "collect-theirs"), sandboxed(t, "collect-ours")
	reference.add(theirs, conf)
	native.add(ours, conf)
	native.add(stays, conf)
	valid := []object{{"containerID": stays.id, "ifname": stays.ifName}}
	_, err := native.run("GC", stays, with(conf, "cni.dev/valid-attachments", valid))
	require.NoError(t, err)
	rules := output(t, "nft", "list", "table", "inet", "cni_plugins_masquerade")
	require.Contains(t, rules, "id: "+stays.id)
	require.NotContains(t, rules, "id: "+ours.id)
	require.NotContains(t, rules, "id: "+theirs.id)
}

// TestMasqueradeExcept: within the networks of ipMasqExcept, addresses keep
// their source address, with every backend.
func TestMasqueradeExcept(t *testing.T) {
	reference, native := runners(t)
	privhost.Require(t, "ip6tables", "nft")
	for backend, want := range map[string][]string{
		"": {"10.9.0.0/24 . 10.0.0.0/8", "10.9.0.0/24 . 192.168.0.0/16", "fd00:9::/64 . fd00:9::/48"},
		"iptables": {
			"-d 10.0.0.0/8 -m comment --comment ID -j ACCEPT",
			"-d 192.168.0.0/16 -m comment --comment ID -j ACCEPT", "! -d 224.0.0.0/4 -m comment --comment ID -j MASQUERADE",
			"-d fd00:9::/48 -m comment --comment ID -j ACCEPT",
		},
		"nftables": {
			"ip saddr 10.9.0.2 ip daddr != { 10.0.0.0/8, 192.168.0.0/16 } masquerade",
			"ip6 saddr fd00:9::2 ip6 daddr != fd00:9::/48 masquerade",
		},
	} {
		t.Run(backend, func(t *testing.T) {
			reference.t, native.t = t, t
			forgetMasquerading(t)
			a := sandboxed(t, "except-"+backend)
			conf := with(masqueraded(backend), "ipMasqExcept", []string{"10.0.0.0/8", "10.9.7.0/24", "192.168.1.1/16", "fd00:9::/64", "fd00:9::/48"})
			if backend == "" {
				delete(conf, "ipMasqBackend")
			}
			withResult := withResult(t, conf, native.add(a, conf))
			_, err := native.run("CHECK", a, withResult)
			require.NoError(t, err)
			named := strings.ReplaceAll(rules(t), fmt.Sprintf("%q", `name: "net" id: "`+a.id+`"`), "ID")
			for _, rule := range want {
				require.Contains(t, named, rule)
			}
			require.NotContains(t, named, "10.9.7.0/24")
			for _, r := range []*runner{reference, native} {
				_, err = r.run("DEL", a, withResult)
				require.NoError(t, err)
			}
			require.NotContains(t, rules(t), a.id)
		})
	}
	bad := sandboxed(t, "except-bad")
	for text, want := range map[string]uint{"10.0.0.0": types.ErrDecodingFailure, "": types.ErrInvalidNetworkConfig, "::ffff:10.0.0.0/104": types.ErrInvalidNetworkConfig} {
		_, err := native.run("ADD", bad, with(masqueraded("nftables"), "ipMasqExcept", []string{text}))
		var coded *types.Error
		require.ErrorAs(t, err, &coded)
		require.Equal(t, want, coded.Code, text)
	}
}

// rules returns the rules of the host with the comments of both programs.
func rules(t *testing.T) string {
	return output(t, "nft", "list", "ruleset") + output(t, "iptables", "-t", "nat", "-S") + output(t, "ip6tables", "-t", "nat", "-S")
}

const masqueradedLeases = "/run/masqueraded"

func masqueraded(backend string) object {
	ipam := with(hostLocal("10.9.0.0/24", "fd00:9::/64"), "dataDir", masqueradedLeases)
	return object{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true,
		"ipMasq": true, "ipMasqBackend": backend, "ipam": ipam}
}

func withResult(t *testing.T, conf, result object) object {
	return with(conf, "prevResult", clone(t, result))
}
