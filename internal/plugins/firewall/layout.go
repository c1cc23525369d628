package firewall

import (
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// The reference plugin's chains and comments. Its ADD, CHECK and DEL find rules
// by their exact text.
const (
	forwardChain  = "FORWARD"
	privateChain  = "CNI-FORWARD"
	stage1        = "CNI-ISOLATION-STAGE-1"
	stage2        = "CNI-ISOLATION-STAGE-2"
	frameComment  = "CNI firewall plugin rules"
	adminComment  = "CNI firewall plugin admin overrides"
	guardsComment = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"
)

// frameRules returns the rules that jump to the rules of addresses, after the
// operators' chain.
func frameRules(admin string) []iptables.Wanted {
	return []iptables.Wanted{
		{Chain: privateChain},
		{Chain: admin},
		{Chain: forwardChain, Spec: comment(frameComment, "-j", privateChain), First: true},
		{Chain: privateChain, Spec: comment(adminComment, "-j", admin), First: true},
	}
}

// addressRules returns the rules that accept packets of one address.
func addressRules(address netip.Prefix) []iptables.Wanted {
	return []iptables.Wanted{
		{Chain: privateChain, Spec: []string{
			"-d", address.String(), "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"}},
		{Chain: privateChain, Spec: []string{"-s", address.String(), "-j", "ACCEPT"}},
	}
}

// guardRules returns the rules of an ingressPolicy. They precede the accept
// rules and drop packets from one restricted bridge to another one and, if the
// bridge is isolated, between its own ports.
func guardRules(g *ruleset.Guard) []iptables.Wanted {
	policy := sameBridge
	if g.Isolated {
		policy = isolated
	}
	policyComment := frameComment + " (ingressPolicy: " + policy + ")"
	rules := []iptables.Wanted{
		{Chain: stage1},
		{Chain: stage2},
		{Chain: forwardChain, Spec: comment(guardsComment, "-j", stage1), First: true},
		{Chain: stage1, Spec: comment(policyComment, "-i", g.Bridge, "!", "-o", g.Bridge, "-j", stage2), First: true},
	}
	if g.Isolated {
		rules = append(rules, iptables.Wanted{Chain: stage1, Spec: comment(policyComment, "-i", g.Bridge, "-o", g.Bridge, "-j", "DROP"), First: true})
	}
	return append(rules,
		iptables.Wanted{Chain: stage1, Spec: comment(guardsComment, "-j", "RETURN")},
		iptables.Wanted{Chain: stage2, Spec: comment(guardsComment, "-o", g.Bridge, "-j", "DROP"), First: true},
		iptables.Wanted{Chain: stage2, Spec: comment(guardsComment, "-j", "RETURN")})
}

// rulesOf returns those of the guard's rules that name its interface.
func rulesOf(g *ruleset.Guard) []iptables.Wanted {
	return slices.DeleteFunc(guardRules(g), func(w iptables.Wanted) bool { return !slices.Contains(w.Spec, g.Bridge) })
}

func comment(text string, spec ...string) []string {
	return slices.Concat(spec, []string{"-m", "comment", "--comment", text})
}
