package configurator

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	policyplugin "github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// oneInterface lists the capabilities that apply to a single interface. If several
// networks got them, they would request the same address or host port twice, so only
// the first network that declares one gets it.
var oneInterface = []string{portmap.Capability, "ips", "ipRanges", "mac"}

// declared returns the given capabilities that a plugin of the plan declares.
func (p *plan) declared(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !p.declares(name) })
}

func (p *plan) declares(capability string) bool {
	return slices.ContainsFunc(p.networks, func(n *conflist.Network) bool { return n != nil && n.Declares(capability) })
}

// unserved returns the sorted names of the requested capabilities that no plugin of the
// plan declares. The result is never nil. Annotations describe a pod and request nothing.
func (p *plan) unserved() []string {
	names := []string{}
	for name, value := range p.Capabilities {
		if len(p.networks) > 0 && !p.declares(name) && !isEmpty(value) && name != conflist.PodAnnotationsCapability {
			names = append(names, name)
		}
	}
	if len(p.withoutPolicies(p.Policy)) > 0 {
		names = append(names, policyplugin.Capability)
	}
	slices.Sort(names)
	return names
}

// withoutPolicies returns the networks of a plan that do not enforce a policy. A policy that only
// some of an allocation's networks enforce could be evaded through the others.
func (p *plan) withoutPolicies(wanted *policy.Policy) []string {
	if policyOrNil(wanted) == nil {
		return nil
	}
	var names []string
	for i, n := range p.networks {
		if n != nil && !n.IsLoopback() && !n.Declares(policyplugin.Capability) {
			names = append(names, p.Attachments[i].Network)
		}
	}
	return names
}

// requirePolicies returns an *UnservedError if a network of a plan does not enforce a policy.
func (p *plan) requirePolicies(wanted *policy.Policy) error {
	if without := p.withoutPolicies(wanted); len(without) > 0 {
		return &UnservedError{ID: p.ID, Capabilities: []string{policyplugin.Capability}, Networks: without}
	}
	return nil
}

// arguments returns the capability arguments for the plugins. That of network policies is made
// from the record for each request, because an Update changes what it contains.
func (p *plan) arguments() (map[string]json.RawMessage, error) {
	if !p.declares(policyplugin.Capability) {
		return p.Capabilities, nil
	}
	argument, err := json.Marshal(policyplugin.Request{Allocation: p.ID, Labels: p.Labels, Policy: p.Policy})
	if err != nil {
		return nil, err
	}
	all := make(map[string]json.RawMessage, len(p.Capabilities)+1)
	maps.Copy(all, p.Capabilities)
	all[policyplugin.Capability] = argument
	return all, nil
}

// isEmpty reports whether the value of a capability requests nothing. Some runtimes
// send empty values for all capabilities.
func isEmpty(value []byte) bool {
	switch string(bytes.TrimSpace(value)) {
	case "", "null", "{}", "[]", `""`:
		return true
	}
	return false
}

// requireServed returns an *UnservedError if no plugin declares a requested capability.
// With Config.AllowUnserved, it logs a warning instead, except for a network policy: an
// allocation that seems to have one, and has none, is open. If nothing is unserved, it
// returns the error of an unreadable configuration.
func (c *Configurator) requireServed(p *plan) error {
	names := p.unserved()
	if len(names) == 0 {
		return p.unreadable
	}
	if slices.Equal(names, []string{policyplugin.Capability}) || c.cfg.AllowUnserved && slices.Contains(names, policyplugin.Capability) {
		return p.requirePolicies(p.Policy)
	}
	if !c.cfg.AllowUnserved {
		return p.unservedError(names...)
	}
	c.cfg.Logger.Warn("no plugin of the networks declares capabilities that the allocation requests; they have no effect",
		"alloc", p.ID, "capabilities", names)
	return nil
}

// without returns the names of capabilities without one of them.
func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}

// noteUnserved records the requested capabilities that no plugin declares. If
// portMappings is one of them, it removes the ports from the record, so that they are
// not reserved.
func noteUnserved(p *plan) {
	p.Unserved = p.unserved()
	if slices.Contains(p.Unserved, portmap.Capability) {
		p.Ports = nil
	}
}
