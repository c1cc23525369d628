package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Step is a part of a rule: peers of one kind that are equally specific, and one service. Of the
// Steps of a direction, the first one that matches a packet decides.
type Step struct {
	// Rule is the name that a Decision of this rule has.
	Rule    string
	Verdict Verdict
	// One of these fields is set, or Host together with OtherNetwork. If none is set, the
	// step matches every peer.
	Selector   *Selector
	Allocation string
	Host       bool
	World      bool // except for Except
	// OtherNetwork is true for addresses of the host, with Host, or of allocations, without,
	// that are not in the own network: see Remote.OwnNetwork. It does not apply to what was sent
	// to a host port of an allocation.
	OtherNetwork bool
	Prefixes     []netip.Prefix // of one length, or of both families
	// Except are the addresses that do not belong to World; none contains another.
	Except []netip.Prefix
	// Protocol is 0 for every protocol. The Ports from First to Last are types of ICMP if the
	// protocol is ICMP; without Ports, all match.
	Protocol    uint8
	Ports       bool
	First, Last uint16
}

// Service returns the service in the notation of ParseService, or "any" for every service.
func (s *Step) Service() string {
	return span{proto: s.Protocol, any: s.Protocol == 0, ports: s.Ports, first: s.First, last: s.Last}.String()
}

// Steps returns the rules of a direction in the order in which they decide, and the verdict on
// packets that none of them matches. It is Decide in another form.
func (p *Policy) Steps(t Traffic) (steps []Step, fallback Verdict) {
	var list []rankedStep
	for _, r := range p.sources(t) {
		for _, one := range r.steps() {
			one.Rule, one.Verdict, one.rank = r.name, r.action(), 2*one.rank
			for _, s := range r.spans() {
				one.Protocol, one.Ports, one.First, one.Last = s.proto, s.ports, s.first, s.last
				list = append(list, one)
			}
		}
	}
	if t == Ingress { // right after the rules that name the host
		list = append(list, rankedStep{Step{Rule: byHost, Verdict: Allow, Host: true}, 2*rankHost - 1})
	}
	slices.SortStableFunc(list, func(a, b rankedStep) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(denyFirst(a.Verdict), denyFirst(b.Verdict)))
	})
	for i := range list {
		steps = append(steps, list[i].Step)
	}
	fallback = p.fallback(t)
	if fallback == Allow && p.closesHost(t) {
		steps = append(steps, Step{Rule: byNoHost, Verdict: Deny, Host: true, OtherNetwork: true}, Step{Rule: byNoHost, Verdict: Deny, OtherNetwork: true})
	}
	return steps, fallback
}

// maxSteps is the maximum number of Steps of a direction. The first packet of a connection passes
// them one by one.
const maxSteps = 1024

// validateSteps returns an error if a direction has too many Steps.
func (p *Policy) validateSteps(t Traffic) error {
	combinations := 0
	for _, r := range p.sources(t) {
		combinations += max(1, len(r.Peers)) * max(1, len(r.Services))
	}
	n := combinations
	if combinations < 64*maxSteps { // peers of one length count once
		steps, _ := p.Steps(t)
		n = len(steps)
	}
	if n <= maxSteps {
		return nil
	}
	return fmt.Errorf("the rules have %d combinations of a peer and a service; at most %d are possible: use selectors, networks of equal length in one rule, or ranges of ports", n, maxSteps)
}

func denyFirst(v Verdict) int {
	if v == Deny {
		return 0
	}
	return 1
}

// rankedStep is a Step and its rank.
type rankedStep struct {
	Step
	rank int
}

// steps returns the peers of a rule as Steps without a service. CIDRs of one length are one Step.
func (r *Rule) steps() []rankedStep {
	if len(r.Peers) == 0 {
		return []rankedStep{{Step{}, rankEveryone}}
	}
	var list []rankedStep
	for i := range r.Peers {
		peer := &r.Peers[i]
		switch {
		case peer.Selector != nil:
			list = append(list, rankedStep{Step{Selector: peer.Selector}, rankSelector})
		case peer.Allocation != "":
			list = append(list, rankedStep{Step{Allocation: peer.Allocation}, rankID})
		case peer.Name == nameHost:
			list = append(list, rankedStep{Step{Host: true}, rankHost})
		case peer.Name == nameWorld:
			list = append(list, rankedStep{Step{World: true, Except: notWorld}, rankWorld})
		}
		for _, prefix := range peer.prefixes() {
			list = addPrefix(list, prefix)
		}
	}
	return list
}

// addPrefix adds a prefix to the Step of its length.
func addPrefix(list []rankedStep, prefix netip.Prefix) []rankedStep {
	rank := rankCIDR + prefix.Bits()
	i := slices.IndexFunc(list, func(s rankedStep) bool { return len(s.Prefixes) > 0 && s.rank == rank })
	switch {
	case i < 0:
		return append(list, rankedStep{Step{Prefixes: []netip.Prefix{prefix}}, rank})
	case !slices.Contains(list[i].Prefixes, prefix):
		list[i].Prefixes = append(list[i].Prefixes, prefix)
	}
	return list
}

// outermost returns the prefixes that no other one contains.
func outermost(prefixes []netip.Prefix) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range prefixes {
		inside := slices.ContainsFunc(prefixes, func(o netip.Prefix) bool { return o.Bits() < p.Bits() && o.Contains(p.Addr()) })
		if !inside && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}
