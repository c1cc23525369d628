package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Step is a part of a rule: peers of one kind that are equally specific. Of the Steps of a
// direction, the first one that matches a packet decides.
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
	// Unpublished is true for what was neither sent to a host port of the allocation, nor by an
	// allocation in the own network.
	Unpublished bool
	Prefixes    []netip.Prefix // of one length, or of both families
	// Except are the addresses that do not belong to World; none contains another.
	Except []netip.Prefix
	// Services are those of the rule, of which one has to match. There is at least one.
	Services []Span
}

// Steps returns the rules of a direction in the order in which they decide, and the verdict on
// packets that none of them matches. It is Decide in another form.
func (p *Policy) Steps(t Traffic) (steps []Step, fallback Verdict) {
	var list []rankedStep
	for _, r := range p.sources(t) {
		services := r.spans()
		for _, one := range r.steps() {
			one.Rule, one.Verdict, one.Services, one.rank = r.name, r.action(), services, 2*one.rank
			list = append(list, one)
		}
	}
	if t == Ingress { // right after the rules that name the host
		list = append(list, rankedStep{Step{Rule: byHost, Verdict: Allow, Host: true, Services: everything}, 2*rankHost - 1})
	}
	slices.SortStableFunc(list, func(a, b rankedStep) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(denyFirst(a.Verdict), denyFirst(b.Verdict)))
	})
	for i := range list {
		steps = append(steps, list[i].Step)
	}
	fallback = p.fallback(t)
	if fallback == Allow && p.closesHost(t) {
		steps = append(steps, Step{Rule: byNoHost, Verdict: Deny, Host: true, OtherNetwork: true, Services: everything},
			Step{Rule: byNoHost, Verdict: Deny, OtherNetwork: true, Services: everything})
	}
	if fallback == Allow && p.admitsPublished(t) {
		steps = append(steps, Step{Rule: byPublishedOnly, Verdict: Deny, Unpublished: true, Services: everything})
	}
	return steps, fallback
}

// everything is all packets.
var everything = []Span{{}}

const (
	// maxLookups is the maximum number of lookups for a direction. The first packet of a
	// connection may pass all of them.
	maxLookups = 1 << 13
	// maxCombinations is the maximum number of combinations of a Step and a service.
	maxCombinations = 1 << 15
	// maxSets is the maximum number of sets that the Steps of a direction need. The kernel looks
	// for a set by its name among all sets of a table.
	maxSets = 1 << 10
)

// validateSteps returns an error if a direction has too many Steps, or services in them.
func (p *Policy) validateSteps(t Traffic) error {
	peers := 0
	for _, r := range p.sources(t) {
		peers += max(1, len(r.Peers))
	}
	if peers > maxCombinations { // peers of one length count once
		return fmt.Errorf("the rules have %d peers; at most %d are possible", peers, maxCombinations)
	}
	lookups, combinations, networks, others := 0, 0, 0, map[string]bool{}
	steps, _ := p.Steps(t)
	for i := range steps {
		s := &steps[i]
		lookups, combinations = lookups+s.lookups(), combinations+len(s.Services)
		switch {
		case len(s.Prefixes) > 1:
			networks++
		case s.Selector != nil || s.Allocation != "":
			others[Peer{Selector: s.Selector, Allocation: s.Allocation}.String()] = true
		}
		if ports := slices.DeleteFunc(slices.Clone(s.Services), func(s Span) bool { return !s.hasPorts() }); len(ports) > 1 {
			others[fmt.Sprint(ports)] = true
		}
	}
	switch sets := networks + len(others); {
	case sets > maxSets:
		return fmt.Errorf("the rules have %d different selectors, and lists of ports or networks; at most %d are possible", sets, maxSets)
	case lookups > maxLookups:
		return fmt.Errorf("the rules are %d lookups for a packet; at most %d are possible: use selectors, and networks of equal length in one rule", lookups, maxLookups)
	case combinations > maxCombinations:
		return fmt.Errorf("the rules have %d combinations of a peer and a service; at most %d are possible: use selectors, networks of equal length in one rule, or ranges of ports",
			combinations, maxCombinations)
	}
	return nil
}

// lookups returns how often a packet filter has to look at a packet for the step: once for all ports, and
// once for each other service. If it denies addresses of Metadata, it also has to look for each service before
// the translation of the destination.
func (s *Step) lookups() int {
	ports, others := 0, 0
	if s.Verdict == Deny && slices.ContainsFunc(s.Prefixes, func(p netip.Prefix) bool { return slices.Contains(metadata, p) }) {
		others = len(s.Services)
	}
	for _, one := range s.Services {
		if one.hasPorts() {
			ports = 1
		} else {
			others++
		}
	}
	return ports + others
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
