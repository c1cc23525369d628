package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/strictjson"
)

// Limits of a policy.
const (
	maxRules    = 5000 // of a direction
	maxPeers    = 256  // of a rule
	maxServices = 256  // of a rule
	maxSelector = 256  // conditions of a selector, and values of a condition
)

// Validate returns the first fault of the policy, with its place such as
// "egress.rules[2].services[0].ports". nil is valid.
func (p *Policy) Validate() error {
	if p == nil {
		return nil
	}
	if err := p.validate(); err != nil {
		return fmt.Errorf("check policy: %w", err)
	}
	return nil
}

func (p *Policy) validate() error {
	if len(p.Presets) > len(presets) {
		return strictjson.At("presets", fmt.Errorf("%d are too many: there are %d", len(p.Presets), len(presets)))
	}
	for i, preset := range p.Presets {
		if presets[preset] == nil {
			known := fmt.Sprint(slices.Sorted(maps.Keys(presets)))
			return at("presets", i, fmt.Errorf("%.64q is unknown; the presets are %s", preset, strings.Trim(known, "[]")))
		}
	}
	for _, t := range []Traffic{Ingress, Egress} {
		err := p.own(t).validate()
		if err == nil {
			err = p.validateSteps(t)
		}
		if err != nil {
			return strictjson.At(t.String(), err)
		}
	}
	return nil
}

// at returns err at an element of a list.
func at(list string, i int, err error) error {
	return strictjson.At(list, strictjson.At(fmt.Sprintf("[%d]", i), err))
}

// tooMany returns an error if a list at place is too long.
func tooMany(place string, count, most int) error {
	if count > most {
		return strictjson.At(place, fmt.Errorf("%d are too many: at most %d are possible", count, most))
	}
	return nil
}

func (v Verdict) validate() error {
	if v != "" && v != Allow && v != Deny {
		return fmt.Errorf("%.64q is not allow or deny", v)
	}
	return nil
}

func (d *Direction) validate() error {
	if d == nil {
		return nil
	}
	if err := strictjson.At("default", d.Default.validate()); err != nil {
		return err
	}
	if err := tooMany("rules", len(d.Rules), maxRules); err != nil {
		return err
	}
	for i := range d.Rules {
		if err := at("rules", i, d.Rules[i].validate()); err != nil {
			return err
		}
	}
	return nil
}

func (r *Rule) validate() error {
	if names.ValidateLabelValue("name", r.Name) != nil {
		return strictjson.At("name", fmt.Errorf("%.64q must be at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit", r.Name))
	}
	if err := strictjson.At("action", r.Action.validate()); err != nil {
		return err
	}
	if err := tooMany("peers", len(r.Peers), maxPeers); err != nil {
		return err
	}
	if err := tooMany("services", len(r.Services), maxServices); err != nil {
		return err
	}
	for i := range r.Peers {
		if err := at("peers", i, r.Peers[i].validate()); err != nil {
			return err
		}
	}
	for i, service := range r.Services {
		if _, field, err := service.span(); err != nil {
			return at("services", i, strictjson.At(field, err))
		}
	}
	return nil
}

func (p *Peer) validate() error {
	hasCIDR := p.CIDR.IsValid() || p.CIDR.Addr().IsValid()
	set := 0
	for _, is := range []bool{hasCIDR, p.Selector != nil, p.Allocation != "", p.Name != ""} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return errors.New("a peer has exactly one of cidr, labels with expressions, allocation and name")
	case hasCIDR:
		return strictjson.At("cidr", p.validateCIDR())
	case p.Selector != nil:
		return p.Selector.validate()
	case p.Allocation != "":
		return strictjson.At("allocation", validateID(p.Allocation))
	case p.Name != nameHost && p.Name != nameWorld && p.Name != nameMetadata:
		return strictjson.At("name", fmt.Errorf("%.64q is not host, world or metadata", p.Name))
	}
	return nil
}

func (p *Peer) validateCIDR() error {
	switch {
	case !p.CIDR.IsValid():
		return errors.New("the length of the prefix is invalid")
	case p.CIDR.Addr().Is4In6():
		return fmt.Errorf("%s is IPv4-mapped; write the IPv4 network", p.CIDR)
	case p.CIDR != p.CIDR.Masked():
		return fmt.Errorf("%s has bits after its prefix; write %s", p.CIDR, p.CIDR.Masked())
	}
	return nil
}

func validateID(id string) error {
	if len(id) > names.MaxID {
		return fmt.Errorf("the ID has %d characters: at most %d are possible", len(id), names.MaxID)
	}
	return names.ValidateContainer(id)
}

func (s *Selector) validate() error {
	if err := tooMany("labels", len(s.Labels), maxSelector); err != nil {
		return err
	}
	if err := tooMany("expressions", len(s.Expressions), maxSelector); err != nil {
		return err
	}
	if err := strictjson.At("labels", names.ValidateLabels(s.Labels)); err != nil {
		return err
	}
	for i, r := range s.Expressions {
		if err := at("expressions", i, r.validate()); err != nil {
			return err
		}
	}
	return nil
}

func (r Requirement) validate() error {
	if err := names.ValidateLabelKey(r.Key); err != nil {
		return strictjson.At("key", err)
	}
	if err := tooMany("values", len(r.Values), maxSelector); err != nil {
		return err
	}
	switch r.Operator {
	case opExists, opDoesNotExist:
		if len(r.Values) > 0 {
			return strictjson.At("values", fmt.Errorf("%s has no values", r.Operator))
		}
	case opIn, opNotIn:
		if len(r.Values) == 0 {
			return strictjson.At("values", fmt.Errorf("%s needs a value", r.Operator))
		}
	default:
		return strictjson.At("operator", fmt.Errorf("%.64q is not In, NotIn, Exists or DoesNotExist", r.Operator))
	}
	for i, value := range r.Values {
		if err := at("values", i, names.ValidateLabelValue(r.Key, value)); err != nil {
			return err
		}
	}
	return nil
}
