package ruleset

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/policy"
)

// examplePolicy has every kind of peer and service, two stages, and a selection.
func examplePolicy() *Policy {
	ping, ping6 := uint8(8), uint8(128)
	singlePorts := Services{{Protocol: unix.IPPROTO_UDP, First: 443, Last: 443}, {Protocol: unix.IPPROTO_TCP, First: 80, Last: 80}}
	return &Policy{
		ID: "0123456789abcdef", Group: names.FirstPolicyGroup + 1,
		Egress: []Stage{
			{Rules: []PolicyRule{
				{Name: "preset no-metadata", Deny: true, Peer: Peer{Original: policy.Metadata()}},
				{Name: "no-services", Deny: true, Peer: Peer{Original: prefixes("169.254.169.254/32")}, Services: Services{{Protocol: unix.IPPROTO_TCP, First: 80, Last: 81}}},
				{Name: "several-services", Deny: true, Peer: Peer{Original: prefixes("169.254.169.254/32")}, Services: singlePorts},
				{Name: "preset no-metadata", Deny: true, Peer: Peer{Prefixes: policy.Metadata()}},
			}},
			{Deny: true, Rules: []PolicyRule{
				{Name: "egress.rules[0]", Peer: Peer{Selection: "aa"}, Services: Services{{Protocol: unix.IPPROTO_TCP, First: 443, Last: 443}}},
				{Name: "egress.rules[1]", Peer: Peer{Host: true}, Services: Services{{Protocol: unix.IPPROTO_UDP, First: 53, Last: 54}}},
				{Name: "egress.rules[2]", Peer: Peer{World: true, Except: policy.NotWorld(), Original: policy.Metadata()}},
				{Name: "egress.rules[3]", Services: Services{{Protocol: unix.IPPROTO_ICMP, Type: &ping}}},
				{Name: "egress.rules[4]", Services: Services{{Protocol: unix.IPPROTO_ICMPV6, Type: &ping6}}},
				{Name: "egress.rules[5]", Peer: Peer{Prefixes: prefixes("10.0.0.0/8", "192.168.7.0/24", "172.16.9.1/32")}, Services: Services{{Protocol: unix.IPPROTO_SCTP}}},
				{Name: "egress.rules[6]", Peer: Peer{Prefixes: prefixes("10.9.9.1/32", "10.9.9.2/32", "fd00:9::9/128")}},
				{Name: "egress.rules[7]", Peer: Peer{Selection: "aa"}, Services: singlePorts},
				{Name: "egress.rules[8]", Peer: Peer{Host: true}, Services: singlePorts},
				{Name: "egress.rules[9]", Services: append(Services{{Protocol: unix.IPPROTO_UDP, First: 53, Last: 60}, {Protocol: unix.IPPROTO_UDP, First: 60, Last: 70},
					{Protocol: unix.IPPROTO_SCTP}, {Protocol: unix.IPPROTO_ICMP, Type: &ping}}, singlePorts...)},
			}},
			{Rules: []PolicyRule{
				{Name: "preset no-host", Deny: true, Peer: Peer{Host: true, Except: prefixes("10.1.0.0/16", "fe80::/10")}},
				{Name: "preset no-host", Deny: true, Peer: Peer{Allocations: true, Except: prefixes("10.1.0.0/16", "fe80::/10")}},
			}},
		},
		Ingress: []Stage{{Deny: true, Rules: []PolicyRule{
			{Name: "ingress.rules[0]", Peer: Peer{World: true, Except: policy.NotWorld()}, Services: Services{{Protocol: unix.IPPROTO_UDP, First: 53, Last: 53}}},
			{Name: "host", Peer: Peer{Host: true}},
			{Name: "preset published-only", Deny: true, Peer: Peer{Unpublished: true, Except: prefixes("10.1.0.0/16", "fe80::/10")}},
		}}},
		Selections: []Selection{{Name: "aa", Members: []Member{peerMember("peer", "10.1.2.9", "fd00::9")}}},
	}
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func peerMember(id string, addresses ...string) Member {
	m := Member{Owner: owner(id)}
	for _, a := range addresses {
		m.Addresses = append(m.Addresses, netip.MustParseAddr(a))
	}
	return m
}

// policedElements are those of an attachment on a bridge.
func policedElements(id string, p *Policy, addresses ...string) *Elements {
	e := &Elements{Owner: owner(id)}
	for _, text := range addresses {
		a := netip.MustParseAddr(text)
		e.Known = append(e.Known, a)
		e.Policed = append(e.Policed, Policed{Address: a, ByAddress: true, Port: "port-" + id, Policy: p.ID, Egress: true, Ingress: true})
	}
	return e
}

// TestPolicyGolden compares the tables of policies with a golden text, which nft can load.
func TestPolicyGolden(t *testing.T) {
	r := open(t)
	p := examplePolicy()
	require.NoError(t, r.AddPolicy(t.Context(), p))
	e := policedElements("x", p, "10.1.2.3", "fd00::3")
	require.NoError(t, r.Add(t.Context(), e))
	listed := nft(t, "list", "ruleset")
	golden := filepath.Join("testdata", "policy.nft")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(listed), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), listed)

	t.Run("nft loads it", func(t *testing.T) {
		skip.Unless(t, nftLoadsProtocols(t), "the kernel refuses what nft makes of a protocol behind an address")
		privhost.FlushRuleset(t)
		nft(t, "-f", golden)
		require.Equal(t, listed, nft(t, "list", "ruleset"))
		require.NoError(t, r.Check(t.Context(), e))
		require.NoError(t, r.CheckPolicy(t.Context(), p))
	})
}

// nftLoadsProtocols reports whether nft can load its own listing of a rule with an address and a protocol. nft 1.0.6
// adds a conversion of byte order, of one byte, which newer kernels refuse, such as 6.12.117.
func nftLoadsProtocols(t *testing.T) bool {
	t.Helper()
	nft(t, "add table ip loads; add set ip loads s { type ipv4_addr . inet_proto; flags interval; }; add chain ip loads c")
	defer nft(t, "delete table ip loads")
	return exec.Command("nft", "add rule ip loads c ip daddr . meta l4proto @s drop").Run() == nil
}

// TestPolicyIsIdempotent: AddPolicy and DelPolicy can be repeated.
func TestPolicyIsIdempotent(t *testing.T) {
	r := open(t)
	p := examplePolicy()
	require.ErrorIs(t, r.CheckPolicy(t.Context(), p), ErrMissing)
	require.NoError(t, r.DelPolicy(t.Context(), p, []string{"aa"}), "without the tables")
	require.NoError(t, r.EnsurePolicies(t.Context()))
	empty := nft(t, "list", "ruleset")
	for range 3 {
		require.NoError(t, r.AddPolicy(t.Context(), p))
		require.NoError(t, r.CheckPolicy(t.Context(), p))
	}
	for range 3 {
		require.NoError(t, r.DelPolicy(t.Context(), p, []string{"aa"}))
		require.Equal(t, empty, nft(t, "list", "ruleset"))
	}
	require.ErrorIs(t, r.CheckPolicy(t.Context(), p), ErrMissing)
}

// TestLargePolicy: a policy with more rules than errors, or removed rules, fit into a receive buffer at first can be
// the first on a host, is restored, and is removed.
func TestLargePolicy(t *testing.T) {
	r := open(t)
	privhost.FlushRuleset(t)
	p := examplePolicy()
	p.Egress, p.Selections = []Stage{{Deny: true}}, nil
	for i := range 5000 {
		r := PolicyRule{Name: fmt.Sprintf("egress.rules[%d]", i)}
		r.Peer.Prefixes = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 32)}
		for port := range uint16(6) {
			first := uint16(i%1000) + 7*port
			r.Services = append(r.Services, Service{Protocol: unix.IPPROTO_TCP, First: 1 + first, Last: 1 + first + port%2})
		}
		p.Egress[0].Rules = append(p.Egress[0].Rules, r)
	}
	require.NoError(t, r.AddPolicy(t.Context(), p))
	require.NoError(t, r.CheckPolicy(t.Context(), p))
	nft(t, "flush", "map", "ip", names.PolicyTable, "egress_links")
	require.ErrorIs(t, r.CheckPolicy(t.Context(), p), ErrMissing)
	require.NoError(t, r.RestorePolicy(t.Context(), p))
	require.NoError(t, r.CheckPolicy(t.Context(), p))
	nft(t, "flush", "map", "ip", names.PolicyTable, "egress_links")
	nft(t, "flush", "map", "ip6", names.PolicyTable, "egress_links")
	require.NoError(t, r.DelPolicy(t.Context(), p, nil))
	require.NotContains(t, nft(t, "list", "ruleset"), p.ID)
}

// TestPortsOfPolicies: the number of rules does not depend on that of ports. Rules with the same ports share a set.
func TestPortsOfPolicies(t *testing.T) {
	stage := Stage{Deny: true}
	for i := range 30 {
		r := PolicyRule{Name: "namespaces", Peer: Peer{Selection: fmt.Sprintf("%02x", i)}}
		for port := range 50 {
			r.Services = append(r.Services, Service{Protocol: unix.IPPROTO_TCP, First: uint16(8000 + 2*port), Last: uint16(8000 + 2*port)})
		}
		stage.Rules = append(stage.Rules, r)
	}
	p := &Policy{ID: "aa", Group: names.FirstPolicyGroup, Ingress: []Stage{stage}}
	for _, table := range policyTables {
		n, err := p.objects(table)
		require.NoError(t, err)
		require.Len(t, n.chains, 2)
		require.Len(t, n.chains[1].rules, 31)
		require.Len(t, n.sets, 1)
		require.Len(t, n.elements, 50)
	}
}

// TestServicesAsJSON: one service is what it was before there could be several, which versions from then refuse.
func TestServicesAsJSON(t *testing.T) {
	kind := uint8(8)
	for _, c := range []struct {
		Services
		want string
	}{
		{nil, `{"Protocol":0,"First":0,"Last":0,"Type":null}`},
		{Services{{Protocol: 6, First: 80, Last: 81}}, `{"Protocol":6,"First":80,"Last":81,"Type":null}`},
		{Services{{Protocol: 6}, {Protocol: 1, Type: &kind}}, `[{"Protocol":6,"First":0,"Last":0,"Type":null},{"Protocol":1,"First":0,"Last":0,"Type":8}]`},
	} {
		rule := PolicyRule{Services: c.Services}
		data, err := json.Marshal(rule)
		require.NoError(t, err)
		require.Contains(t, string(data), `,"Service":`+c.want+`}`)
		var is PolicyRule
		require.NoError(t, json.Unmarshal(data, &is))
		require.Equal(t, rule, is)
		var former struct{ Service Service }
		require.Equal(t, len(c.Services) > 1, json.Unmarshal(data, &former) != nil)
	}
}

// TestDisjoint: the ports are the same, and no two ranges have one in common.
func TestDisjoint(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		var list []Service
		want := map[[2]int]bool{}
		for range random.IntN(6) {
			s := Service{Protocol: uint8(6 + 11*random.IntN(2)), First: uint16(1 + random.IntN(20))}
			s.Last = s.First + uint16(random.IntN(6))
			list = append(list, s)
			for port := s.First; port <= s.Last; port++ {
				want[[2]int{int(s.Protocol), int(port)}] = true
			}
		}
		got := map[[2]int]bool{}
		for _, s := range disjoint(list) {
			for port := s.First; port <= s.Last; port++ {
				key := [2]int{int(s.Protocol), int(port)}
				require.False(t, got[key], "%v", list)
				got[key] = true
			}
		}
		require.Equal(t, want, got, "%v", list)
	}
}

// TestPolicyOfOneFamily: the chains and the elements that lead to them are in the table of the family
// alone, and the other table, which drops what comes over the links, exists as well.
func TestPolicyOfOneFamily(t *testing.T) {
	for family, other := range map[string]string{PolicyIPv4: "ip6", PolicyIPv6: "ip"} {
		r := open(t)
		privhost.FlushRuleset(t)
		p := examplePolicy()
		p.Family = family
		require.NoError(t, r.AddPolicy(t.Context(), p))
		listed := nft(t, "list", "table", other, names.PolicyTable)
		require.NotContains(t, listed, p.ID)
		require.Contains(t, listed, "set selection_aa")
		require.Contains(t, listed, "links that need a policy")
		require.NoError(t, r.CheckPolicy(t.Context(), p))
		for of, want := range map[string]bool{family: true, "": false} {
			require.Equal(t, want, hasPolicy(t, r, p, of))
		}
		nft(t, "delete", "table", other, names.PolicyTable)
		require.ErrorIs(t, r.CheckPolicy(t.Context(), p), ErrMissing)
		require.NoError(t, r.RestorePolicy(t.Context(), p))
		require.NoError(t, r.CheckPolicy(t.Context(), p))
		require.NoError(t, r.DelPolicy(t.Context(), p, []string{"aa"}))
		for _, table := range policyTables {
			require.NotContains(t, nft(t, "list", "table", map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}[table.family], table.name), "_aa")
		}
		require.NotContains(t, nft(t, "list", "ruleset"), p.ID)
	}
}

// hasPolicy is HasPolicy of a policy with a family.
func hasPolicy(t *testing.T, r *Ruleset, p *Policy, family string) bool {
	t.Helper()
	of := *p
	of.Family, of.Group = family, 0 // of which the chains do not depend
	chains, err := of.Chains()
	require.NoError(t, err)
	has, err := r.HasPolicy(t.Context(), chains, p.Group)
	require.NoError(t, err)
	return has
}

// TestPolicyIsIncomplete: an attachment does not use a policy that has lost rules, or the elements that
// lead to it.
func TestPolicyIsIncomplete(t *testing.T) {
	r := open(t)
	p := examplePolicy()
	require.False(t, hasPolicy(t, r, p, ""))
	for _, damage := range [][]string{
		{"flush", "chain", "ip", names.PolicyTable, "policy_0123456789abcdef_egress_1"},
		{"flush", "chain", "ip6", names.PolicyTable, "policy_0123456789abcdef_ingress"},
		{"insert", "rule", "ip", names.PolicyTable, "policy_0123456789abcdef_egress", "accept"},
		{"flush", "map", "ip6", names.PolicyTable, "ingress_links"},
	} {
		require.NoError(t, r.RestorePolicy(t.Context(), p))
		require.True(t, hasPolicy(t, r, p, ""))
		nft(t, damage...)
		require.False(t, hasPolicy(t, r, p, ""), "%q", damage)
	}
}

// TestPolicyIsRepaired: CheckPolicy finds what is missing, and AddPolicy adds it again.
func TestPolicyIsRepaired(t *testing.T) {
	chain := "policy_0123456789abcdef_egress"
	for _, damage := range [][]string{
		{"flush", "chain", "ip", names.PolicyTable, chain + "_1"},
		{"flush", "chain", "ip6", names.PolicyTable, chain},
		{"add", "rule", "ip", names.PolicyTable, chain, "accept"},
		{"insert", "rule", "ip6", names.PolicyTable, "policy_0123456789abcdef_ingress", "accept"},
		{"flush", "map", "ip", names.PolicyTable, "egress_links"},
		{"flush", "map", "ip6", names.PolicyTable, "ingress_links"},
		{"flush", "set", "ip", names.PolicyTable, "selection_aa"},
		{"flush", "set", "ip", names.PolicyTable, chain + "_1_5"},
		{"flush", "set", "ip", names.PolicyTable, chain + "_1_6_addresses"},
		{"flush", "set", "ip", names.PolicyTable, policies4.policy.constants[0].name},
		{"flush", "set", "ip6", names.PolicyTable, policies6.policy.constants[1].name},
		{"delete", "table", "ip", names.PolicyTable},
		{"flush", "ruleset"},
	} {
		r := open(t)
		privhost.FlushRuleset(t)
		p := examplePolicy()
		require.NoError(t, r.AddPolicy(t.Context(), p))
		before := nft(t, "list", "ruleset")
		nft(t, damage...)
		require.ErrorIs(t, r.CheckPolicy(t.Context(), p), ErrMissing, "%q", damage)
		require.NoError(t, r.RestorePolicy(t.Context(), p), "%q", damage)
		require.NoError(t, r.CheckPolicy(t.Context(), p), "%q", damage)
		require.ElementsMatch(t, lines(before), lines(nft(t, "list", "ruleset")), "%q", damage)
	}
}

// TestSelectionIsRepaired: CheckPolicy finds that a selection is missing that has no members, in a family
// in which no rule uses it. A member of both families could not join.
func TestSelectionIsRepaired(t *testing.T) {
	r := open(t)
	privhost.FlushRuleset(t)
	p, m := examplePolicy(), peerMember("other", "10.1.2.8", "fd00::8")
	p.Family, p.Selections[0].Members = PolicyIPv4, nil
	require.NoError(t, r.AddPolicy(t.Context(), p))
	nft(t, "delete", "set", "ip6", names.PolicyTable, "selection_aa")
	require.ErrorIs(t, r.JoinSelections(t.Context(), m, []string{"aa"}), unix.ENOENT)
	err := r.CheckPolicy(t.Context(), p)
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "table ip6 allocnet_policy, set selection_aa")
	require.NoError(t, r.RestorePolicy(t.Context(), p))
	require.NoError(t, r.CheckPolicy(t.Context(), p))
	require.NoError(t, r.JoinSelections(t.Context(), m, []string{"aa"}))
}

// TestPolicedPortIsMissing: Check names a policy of a bridge port that is missing.
func TestPolicedPortIsMissing(t *testing.T) {
	r := open(t)
	p := examplePolicy()
	require.NoError(t, r.AddPolicy(t.Context(), p))
	e := policedElements("x", p, "10.1.2.3")
	require.NoError(t, r.Add(t.Context(), e))
	nft(t, "flush", "set", "bridge", names.Table, "policed_ports")
	err := r.Check(t.Context(), e)
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, `policy of bridge port "port-x"`)
}

// TestConstantSets: policies with the same prefixes share the sets of the table. A table without them,
// which an older version has made, gets them with the next policy.
func TestConstantSets(t *testing.T) {
	r := open(t)
	privhost.FlushRuleset(t)
	first, second := examplePolicy(), examplePolicy()
	second.ID, second.Group, second.Egress = "another", second.Group+1, []Stage{{Rules: []PolicyRule{
		{Name: "no prefixes of the table", Deny: true, Peer: Peer{Prefixes: prefixes("10.9.9.1/32", "10.9.9.2/32")}},
	}}}
	second.Ingress = nil
	require.NoError(t, r.AddPolicy(t.Context(), second))
	for _, of := range policyTables {
		family := map[*table]string{policies4: "ip", policies6: "ip6"}[of]
		for _, s := range of.policy.constants {
			require.NotEmpty(t, s.constant)
			nft(t, "delete", "set", family, names.PolicyTable, s.name)
		}
	}
	require.NoError(t, openAnother(t).AddPolicy(t.Context(), first))
	require.NoError(t, r.CheckPolicy(t.Context(), first))
	for _, s := range policies4.policy.constants {
		require.Contains(t, nft(t, "list", "chain", "ip", names.PolicyTable, "policy_0123456789abcdef_egress_0")+
			nft(t, "list", "chain", "ip", names.PolicyTable, "policy_0123456789abcdef_egress_1"), "@"+s.name)
	}
}

// TestOrphansOfOneFamily: a policy whose state was lost is found, also if another program has deleted
// the table of the other family.
func TestOrphansOfOneFamily(t *testing.T) {
	for _, deleted := range []string{"ip", "ip6"} {
		r := open(t)
		privhost.FlushRuleset(t)
		require.NoError(t, r.AddPolicy(t.Context(), examplePolicy()))
		nft(t, "delete", "table", deleted, names.PolicyTable)
		found, err := r.HasPolicies(t.Context())
		require.NoError(t, err)
		require.True(t, found, "without the table of %s", deleted)
		require.NoError(t, r.DelOrphans(t.Context(), examplePolicy().Instance, KnownPolicies{InUse: unusedGroup}))
		require.NotContains(t, nft(t, "list", "ruleset"), "policy_0123456789abcdef")
	}
	privhost.FlushRuleset(t)
	found, err := openAnother(t).HasPolicies(t.Context())
	require.NoError(t, err)
	require.False(t, found)
}

// unusedGroup is the argument of DelOrphans if no link is in a group.
func unusedGroup(uint32) (bool, error) { return false, nil }

// TestOrphanWithAnAttachment: a policy whose state was lost stays as long as the address of an attachment
// leads to it, without an error.
func TestOrphanWithAnAttachment(t *testing.T) {
	r := open(t)
	privhost.FlushRuleset(t)
	p := examplePolicy()
	require.NoError(t, r.AddPolicy(t.Context(), p))
	e := policedElements("x", p, "10.1.2.3", "fd00::3")
	require.NoError(t, r.Add(t.Context(), e))
	before := nft(t, "list", "ruleset")
	require.NoError(t, r.DelOrphans(t.Context(), p.Instance, KnownPolicies{Selections: []string{"aa"}, InUse: unusedGroup}))
	require.Equal(t, before, nft(t, "list", "ruleset"))
	require.NoError(t, r.Del(t.Context(), e))
	var asked []uint32
	require.NoError(t, r.DelOrphans(t.Context(), p.Instance, KnownPolicies{InUse: func(group uint32) (bool, error) {
		asked = append(asked, group)
		return true, nil
	}}))
	require.Contains(t, nft(t, "list", "ruleset"), "policy_0123456789abcdef")
	require.Contains(t, asked, p.Group)
	failed := errors.New("no links")
	require.ErrorIs(t, r.DelOrphans(t.Context(), p.Instance, KnownPolicies{InUse: func(uint32) (bool, error) { return false, failed }}), failed)
	require.Contains(t, nft(t, "list", "ruleset"), "policy_0123456789abcdef")
	require.NoError(t, r.DelOrphans(t.Context(), p.Instance, KnownPolicies{InUse: unusedGroup}))
	require.NotContains(t, nft(t, "list", "ruleset"), "policy_0123456789abcdef")
}

// TestOrphansOfAnotherInstance: the selections of another instance stay, also where none of its rules uses
// them, because its policies have rules in one family only, or for no packet.
func TestOrphansOfAnotherInstance(t *testing.T) {
	r := open(t)
	privhost.FlushRuleset(t)
	p, m := examplePolicy(), peerMember("other", "10.1.2.8", "fd00::8")
	p.Instance, p.Family = "one", PolicyIPv4
	p.Egress = []Stage{{Deny: true, Rules: []PolicyRule{{Peer: Peer{Selection: "bb"}, Services: Services{{Protocol: unix.IPPROTO_ICMPV6}}}}}}
	p.Ingress = []Stage{{Deny: true, Rules: []PolicyRule{{Peer: Peer{Selection: "aa"}}}}}
	p.Selections = []Selection{{Name: "aa"}, {Name: "bb"}}
	require.NoError(t, r.AddPolicy(t.Context(), p))
	before := nft(t, "list", "ruleset")
	require.NoError(t, r.DelOrphans(t.Context(), "two", KnownPolicies{InUse: unusedGroup}))
	require.Equal(t, before, nft(t, "list", "ruleset"))
	require.NoError(t, r.JoinSelections(t.Context(), m, []string{"aa", "bb"}))

	require.NoError(t, r.DelOrphans(t.Context(), "one", KnownPolicies{Selections: []string{"bb"}, InUse: unusedGroup}))
	require.NotContains(t, nft(t, "list", "ruleset"), "selection_aa")
	require.NoError(t, r.DelOrphans(t.Context(), "one", KnownPolicies{InUse: unusedGroup}))
	require.NotContains(t, nft(t, "list", "ruleset"), "selection_")
}

// TestPresentSelection: a policy whose selection is Present leaves its members alone. If the selection
// is missing, nothing is added.
func TestPresentSelection(t *testing.T) {
	r := open(t)
	privhost.FlushRuleset(t)
	first, second := examplePolicy(), examplePolicy()
	second.ID, second.Group = "another", second.Group+1
	second.Selections = []Selection{{Name: "aa", Present: true}}
	require.NoError(t, r.EnsurePolicies(t.Context()))
	empty := nft(t, "list", "ruleset")
	require.ErrorIs(t, r.AddPolicy(t.Context(), second), unix.ENOENT)
	require.Equal(t, empty, nft(t, "list", "ruleset"))

	require.NoError(t, r.AddPolicy(t.Context(), first))
	require.NoError(t, r.AddPolicy(t.Context(), second))
	require.NoError(t, r.CheckPolicy(t.Context(), first), "with the member")
	require.NoError(t, r.CheckPolicy(t.Context(), second))
}

// TestNewPolicyThatExists: AddPolicy replaces what exists of a New policy, and refuses the group of another
// one.
func TestNewPolicyThatExists(t *testing.T) {
	r := open(t)
	privhost.FlushRuleset(t)
	p, other := examplePolicy(), examplePolicy()
	p.New, other.New, other.ID = true, true, "another"
	require.NoError(t, r.AddPolicy(t.Context(), p))
	require.ErrorIs(t, r.AddPolicy(t.Context(), other), ErrGroupTaken)
	whole := nft(t, "list", "ruleset")
	for _, table := range []string{"ip", "ip6"} {
		chain := policyChain(p.ID, egress).String()
		nft(t, "add", "rule", table, names.PolicyTable, chain, "accept")
		require.Error(t, r.CheckPolicy(t.Context(), p))
		require.NoError(t, r.AddPolicy(t.Context(), p))
		require.Equal(t, whole, nft(t, "list", "ruleset"))
	}
	p.Group++
	require.NoError(t, r.AddPolicy(t.Context(), p), "with another group")
	require.NoError(t, r.CheckPolicy(t.Context(), p))
}

// TestPresentSelectionIsMissing: a rule about a selection that is missing, although it should be Present,
// does not refer to another selection, which exists.
func TestPresentSelectionIsMissing(t *testing.T) {
	r := open(t)
	privhost.FlushRuleset(t)
	first, second := examplePolicy(), examplePolicy()
	require.NoError(t, r.AddPolicy(t.Context(), first))
	second.ID, second.Group = "another", second.Group+1
	second.Egress[1].Rules[0].Peer.Selection = "bb"
	second.Selections = append(second.Selections, Selection{Name: "bb", Present: true})
	before := nft(t, "list", "ruleset")
	require.ErrorIs(t, r.AddPolicy(t.Context(), second), unix.ENOENT)
	require.Equal(t, before, nft(t, "list", "ruleset"))
}

// TestPolicyGroupTaken: a policy does not get the group of another one, nor removes its link.
func TestPolicyGroupTaken(t *testing.T) {
	r := open(t)
	first, second := examplePolicy(), examplePolicy()
	second.ID, second.Selections = "another", nil
	second.Egress = nil
	require.NoError(t, r.AddPolicy(t.Context(), first))
	before := nft(t, "list", "ruleset")
	require.ErrorIs(t, openAnother(t).AddPolicy(t.Context(), second), ErrGroupTaken)
	require.NoError(t, r.DelPolicy(t.Context(), second, nil))
	require.Equal(t, before, nft(t, "list", "ruleset"))
	require.NoError(t, r.CheckPolicy(t.Context(), first))
	second.Group++
	require.NoError(t, r.AddPolicy(t.Context(), second))
	require.NoError(t, r.CheckPolicy(t.Context(), second))
	require.NoError(t, r.DelPolicy(t.Context(), first, []string{"aa"}))
	require.NoError(t, r.CheckPolicy(t.Context(), second))
}

// TestPolicyInvalid: what is no valid policy changes nothing.
func TestPolicyInvalid(t *testing.T) {
	r := open(t)
	for _, change := range []func(*Policy){
		func(p *Policy) { p.ID = "" }, func(p *Policy) { p.ID = "0123456789abcdef0" },
		func(p *Policy) { p.Group = names.GuardedGroup }, func(p *Policy) { p.Group = names.PendingGroup }, func(p *Policy) { p.Group = 0 },
	} {
		p := examplePolicy()
		change(p)
		require.ErrorContains(t, r.AddPolicy(t.Context(), p), "no valid ID or group")
		require.Empty(t, nft(t, "list", "ruleset"))
	}
}

// TestSelections: members join and leave selections; one that does not exist is an error, and
// nothing changes.
func TestSelections(t *testing.T) {
	r := open(t)
	p, m := examplePolicy(), peerMember("other", "10.1.2.8", "fd00::8")
	require.NoError(t, r.LeaveSelections(t.Context(), m, []string{"aa"}), "without the tables")
	require.ErrorIs(t, r.JoinSelections(t.Context(), m, []string{"aa"}), unix.ENOENT)
	require.NoError(t, r.AddPolicy(t.Context(), p))
	before := nft(t, "list", "ruleset")
	require.ErrorIs(t, r.JoinSelections(t.Context(), m, []string{"aa", "bb"}), unix.ENOENT)
	require.Equal(t, before, nft(t, "list", "ruleset"))
	for range 2 {
		require.NoError(t, r.JoinSelections(t.Context(), m, []string{"aa"}))
	}
	require.Contains(t, nft(t, "list", "set", "ip6", names.PolicyTable, "selection_aa"), "fd00::8")
	for range 2 {
		require.NoError(t, r.LeaveSelections(t.Context(), m, []string{"aa", "bb"}))
	}
	require.ElementsMatch(t, lines(before), lines(nft(t, "list", "ruleset")))
}

// TestPolicyConcurrently adds and removes policies, attachments and members at the same time.
func TestPolicyConcurrently(t *testing.T) {
	r := open(t)
	shared := examplePolicy()
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() {
			own := examplePolicy()
			own.ID, own.Group = "own"+string(rune('a'+i)), names.FirstPolicyGroup+10+uint32(i)
			own.Selections = []Selection{{Name: "of" + string(rune('a'+i)), Members: shared.Selections[0].Members}}
			own.Egress[1].Rules[0].Peer.Selection = own.Selections[0].Name
			id := string(rune('a' + i))
			address := netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}).String()
			for range 10 {
				e := policedElements(id, own, address)
				member := peerMember(id, address)
				errs[i] = errors.Join(errs[i],
					r.AddPolicy(t.Context(), shared), r.AddPolicy(t.Context(), own),
					r.Add(t.Context(), e), r.JoinSelections(t.Context(), member, []string{own.Selections[0].Name}),
					r.CheckPolicy(t.Context(), own), r.Check(t.Context(), e),
					r.LeaveSelections(t.Context(), member, []string{own.Selections[0].Name}),
					r.Del(t.Context(), e), r.DelPolicy(t.Context(), own, []string{own.Selections[0].Name}))
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, r.CheckPolicy(t.Context(), shared))
	require.NoError(t, r.DelPolicy(t.Context(), shared, []string{"aa"}))
	require.NotContains(t, nft(t, "list", "ruleset"), "policy_own")
}
