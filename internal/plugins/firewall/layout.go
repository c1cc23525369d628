package firewall

import (
	"net/netip"
	"slices"

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
func frameRules(admin string) []rule {
	return []rule{
		{chain: privateChain},
		{chain: admin},
		{chain: forwardChain, spec: comment(frameComment, "-j", privateChain), first: true},
		{chain: privateChain, spec: comment(adminComment, "-j", admin), first: true},
	}
}

// addressRules returns the rules that accept packets of one address.
func addressRules(address netip.Prefix) []rule {
	return []rule{
		{chain: privateChain, spec: []string{
			"-d", address.String(), "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"}},
		{chain: privateChain, spec: []string{"-s", address.String(), "-j", "ACCEPT"}},
	}
}

// guardRules returns the rules of an ingressPolicy. They precede the accept
// rules and drop packets from one restricted bridge to another one and, if the
// bridge is isolated, between its own ports.
func guardRules(g *ruleset.Guard) []rule {
	policy := sameBridge
	if g.Isolated {
		policy = isolated
	}
	policyComment := frameComment + " (ingressPolicy: " + policy + ")"
	rules := []rule{
		{chain: stage1},
		{chain: stage2},
		{chain: forwardChain, spec: comment(guardsComment, "-j", stage1), first: true},
		{chain: stage1, spec: comment(policyComment, "-i", g.Bridge, "!", "-o", g.Bridge, "-j", stage2), first: true},
	}
	if g.Isolated {
		rules = append(rules, rule{chain: stage1, spec: comment(policyComment, "-i", g.Bridge, "-o", g.Bridge, "-j", "DROP"), first: true})
	}
	return append(rules,
		rule{chain: stage1, spec: comment(guardsComment, "-j", "RETURN")},
		rule{chain: stage2, spec: comment(guardsComment, "-o", g.Bridge, "-j", "DROP"), first: true},
		rule{chain: stage2, spec: comment(guardsComment, "-j", "RETURN")})
}

func comment(text string, spec ...string) []string {
	return slices.Concat(spec, []string{"-m", "comment", "--comment", text})
}
