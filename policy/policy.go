package policy

import (
	"fmt"
	"slices"

	"github.com/allocnet/allocnet/internal/strictjson"
)

// Policy says which traffic to and from an allocation is allowed. The zero value, like nil,
// allows everything.
type Policy struct {
	// Presets are predefined sets of rules, which are added to Ingress and Egress.
	Presets []Preset `json:"presets,omitempty"`
	// Ingress are the rules for traffic to the allocation; nil allows all of it.
	Ingress *Direction `json:"ingress,omitempty"`
	// Egress are the rules for traffic from the allocation; nil allows all of it.
	Egress *Direction `json:"egress,omitempty"`
}

// Direction holds the rules for one direction of traffic.
type Direction struct {
	// Default decides what no rule matches: Allow, also if empty, or Deny.
	Default Verdict `json:"default,omitempty"`
	// Rules have no order: see the package comment for the one that decides.
	Rules []Rule `json:"rules,omitempty"`
}

// Rule allows or denies services with peers.
type Rule struct {
	// Name is shown as the reason of a decision. It has the syntax of a label's value, and
	// may be empty.
	Name string `json:"name,omitempty"`
	// Action is Allow, also if empty, or Deny.
	Action Verdict `json:"action,omitempty"`
	// Peers are the other ends; none means every peer.
	Peers []Peer `json:"peers,omitempty"`
	// Services are what the rule is about; none means everything.
	Services []Service `json:"services,omitempty"`
}

// Verdict is Allow or Deny, or empty: see the fields of this type.
type Verdict string

// The verdicts.
const (
	Allow Verdict = "allow"
	Deny  Verdict = "deny"
)

// Traffic is one of the two directions, seen from the allocation.
type Traffic int

// The directions.
const (
	Ingress Traffic = iota // to the allocation
	Egress                 // from the allocation
)

// String returns "ingress" or "egress".
func (t Traffic) String() string {
	if t == Ingress {
		return "ingress"
	}
	return "egress"
}

// MaxSize is the maximum length in bytes of a document that Parse reads.
const MaxSize = 8 << 20

// Parse reads and validates a policy in JSON. It refuses unknown and repeated fields. The
// error names the place of the first fault, such as "egress.rules[2].services[0]".
func Parse(data []byte) (*Policy, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("parse policy: %d bytes are too many: at most %d are possible", len(data), MaxSize)
	}
	p := &Policy{}
	if err := p.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("parse policy: %w", err)
	}
	return p, p.Validate()
}

// UnmarshalJSON decodes a policy as strictly as Parse, but does not validate it.
func (p *Policy) UnmarshalJSON(data []byte) error {
	type plain Policy
	var decoded plain
	if err := strictjson.UnmarshalWithoutNull(data, &decoded); err != nil {
		return err
	}
	*p = Policy(decoded)
	return nil
}

// source is a rule and the name that a Decision gives it.
type source struct {
	*Rule
	name string
}

// sources returns the rules of a direction, the policy's own first, then those of its
// presets.
func (p *Policy) sources(t Traffic) []source {
	if p == nil {
		return nil
	}
	var list []source
	if d := p.own(t); d != nil {
		for i := range d.Rules {
			name := d.Rules[i].Name
			if name == "" {
				name = fmt.Sprintf("%s.rules[%d]", t, i)
			}
			list = append(list, source{&d.Rules[i], name})
		}
	}
	for _, preset := range p.Presets {
		if d := presets[preset].own(t); d != nil {
			for i := range d.Rules {
				list = append(list, source{&d.Rules[i], "preset " + string(preset)})
			}
		}
	}
	return list
}

// IsEmpty reports whether the policy has neither presets nor directions. It allows everything, as a
// nil one does.
func (p *Policy) IsEmpty() bool {
	return p == nil || len(p.Presets) == 0 && p.Ingress == nil && p.Egress == nil
}

// own returns a direction without what presets add; it may be nil.
func (p *Policy) own(t Traffic) *Direction {
	switch {
	case p == nil:
		return nil
	case t == Ingress:
		return p.Ingress
	default:
		return p.Egress
	}
}

// fallback returns the verdict for what no rule of a direction matches.
func (p *Policy) fallback(t Traffic) Verdict {
	if p == nil {
		return Allow
	}
	if d := p.own(t); d != nil && d.Default == Deny {
		return Deny
	}
	for _, preset := range p.Presets {
		if d := presets[preset].own(t); d != nil && d.Default == Deny {
			return Deny
		}
	}
	return Allow
}

// closesHost reports whether the policy has the preset no-host, which concerns one direction.
func (p *Policy) closesHost(t Traffic) bool {
	return p != nil && t == Egress && slices.Contains(p.Presets, NoHost)
}

// admitsPublished reports whether the policy has the preset published-only, which concerns one direction.
func (p *Policy) admitsPublished(t Traffic) bool {
	return p != nil && t == Ingress && slices.Contains(p.Presets, PublishedOnly)
}

// action returns the rule's verdict, with its default.
func (r *Rule) action() Verdict {
	if r.Action == Deny {
		return Deny
	}
	return Allow
}
