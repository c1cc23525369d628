package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/policystate"
	"github.com/allocnet/allocnet/policy"
)

// content is what a policy in the kernel consists of, without its group and the members of its
// selections.
type content struct {
	Family  string          `json:"family,omitempty"` // see ruleset.Policy
	Egress  []ruleset.Stage `json:"egress,omitempty"`
	Ingress []ruleset.Stage `json:"ingress,omitempty"`
}

// compiled is the policy of an attachment. Its ID depends on its content, so attachments with
// the same content share it.
type compiled struct {
	policystate.Policy
	content
	group  atomic.Uint32                        // the latest group of links that led to it; 0 if unknown
	chains atomic.Pointer[ruleset.PolicyChains] // nil until they are needed
}

// compile returns what the policies of a network and of an allocation are in the kernel; nil if
// they allow everything. instance distinguishes the users of several state directories; own are the
// networks of the attachment's addresses, and its gateways; family is that of ruleset.Policy.
func compile(instance, family string, own []netip.Prefix, policies ...*policy.Policy) (*compiled, error) {
	c := &compiled{Policy: policystate.Policy{Instance: instance}, content: content{Family: family}}
	selections := map[string]policystate.Selection{}
	for _, p := range policies {
		if p == nil {
			continue
		}
		for _, t := range []policy.Traffic{policy.Egress, policy.Ingress} {
			steps, fallback := p.Steps(t)
			if stage := stageOf(instance, own, steps, fallback, selections); denies(stage) {
				if t == policy.Egress {
					seeMetadata(stage)
					c.Egress = append(c.Egress, *stage)
				} else {
					c.Ingress = append(c.Ingress, *stage)
				}
			}
		}
	}
	if len(c.Egress)+len(c.Ingress) == 0 {
		return nil, nil
	}
	for _, name := range slices.Sorted(maps.Keys(selections)) {
		c.Selections = append(c.Selections, selections[name])
	}
	var err error
	if c.Content, err = json.Marshal(c.content); err == nil {
		c.ID = digest(instance, "policy", string(c.Content))
	}
	return c, err
}

// denies reports whether a stage denies anything. Others have no effect.
func denies(s *ruleset.Stage) bool {
	return s.Deny || slices.ContainsFunc(s.Rules, func(r ruleset.PolicyRule) bool { return r.Deny })
}

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(fmt.Sprintf("%q", parts)))
	return hex.EncodeToString(sum[:8])
}

// stageOf returns the rules of one direction, and adds the selections that they use.
func stageOf(instance string, own []netip.Prefix, steps []policy.Step, fallback policy.Verdict, selections map[string]policystate.Selection) *ruleset.Stage {
	s := &ruleset.Stage{Deny: fallback == policy.Deny}
	for i := range steps {
		step := &steps[i]
		r := ruleset.PolicyRule{
			Name: step.Rule, Deny: step.Verdict == policy.Deny,
			Peer:     ruleset.Peer{Prefixes: step.Prefixes, Host: step.Host, World: step.World, Except: step.Except},
			Services: servicesOf(step.Services),
		}
		if step.OtherNetwork {
			r.Peer.Allocations, r.Peer.Except = !step.Host, own
		}
		if step.Unpublished {
			r.Peer.Unpublished, r.Peer.Except = true, own
		}
		if selector := selectorOf(step); selector != nil {
			n := selection(instance, selector)
			selections[n.Name], r.Peer.Selection = n, n.Name
		}
		s.Rules = append(s.Rules, r)
	}
	return s
}

// seeMetadata makes a stage of egress deny metadata addresses, and not count them as part of the world, also if
// another program redirects connections to them, such as an agent of a cloud provider: the other rules match the
// address to which it redirects.
func seeMetadata(s *ruleset.Stage) {
	var first []ruleset.PolicyRule
	for i := range s.Rules {
		r := &s.Rules[i]
		if r.Peer.World {
			r.Peer.Original = policy.Metadata()
		}
		var metadata []netip.Prefix
		for _, p := range policy.Metadata() {
			if r.Deny && slices.Contains(r.Peer.Prefixes, p) {
				metadata = append(metadata, p)
			}
		}
		if len(metadata) > 0 {
			first = append(first, ruleset.PolicyRule{Name: r.Name, Deny: true, Peer: ruleset.Peer{Original: metadata}, Services: r.Services})
		}
	}
	s.Rules = append(first, s.Rules...)
}

// servicesOf returns the services of a step; nil for everything.
func servicesOf(spans []policy.Span) (list ruleset.Services) {
	for _, span := range spans {
		s := ruleset.Service{Protocol: span.Protocol}
		switch {
		case span.Protocol == 0:
			return nil
		case !span.Ports:
		case span.Protocol == unix.IPPROTO_ICMP || span.Protocol == unix.IPPROTO_ICMPV6:
			kind := uint8(span.First)
			s.Type = &kind
		default:
			s.First, s.Last = span.First, span.Last
		}
		list = append(list, s)
	}
	return list
}

// selector selects attachments: by the ID of their allocation, or by its labels.
type selector struct {
	Allocation string           `json:"allocation,omitempty"`
	Labels     *policy.Selector `json:"labels,omitempty"`
}

func selectorOf(step *policy.Step) *selector {
	if step.Allocation == "" && step.Selector == nil {
		return nil
	}
	return &selector{Allocation: step.Allocation, Labels: step.Selector}
}

func (s *selector) matches(m *policystate.Member) bool {
	if s.Labels == nil {
		return s.Allocation == m.Allocation
	}
	return s.Labels.Matches(m.Labels)
}

// selection returns the selection of a selector. Its label is one that all members have, if
// the selector requires one.
func selection(instance string, s *selector) policystate.Selection {
	text, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("policy: encode selector: %v", err)) // strings only
	}
	n := policystate.Selection{Name: digest(instance, "selection", string(text)), Selector: text}
	switch {
	case s.Labels == nil:
		n.Label = policystate.AllocationKey(s.Allocation)
	case len(s.Labels.Labels) > 0:
		key := slices.Sorted(maps.Keys(s.Labels.Labels))[0]
		n.Label = policystate.LabelKey(key, s.Labels.Labels[key])
	}
	return n
}

// selects reports whether a member belongs to a selection.
func selects(n *policystate.Selection, m *policystate.Member) (bool, error) {
	var s selector
	if err := json.Unmarshal(n.Selector, &s); err != nil {
		return false, fmt.Errorf("selection %s: %w", n.Name, err)
	}
	return s.matches(m), nil
}
