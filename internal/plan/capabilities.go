package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/allocnet/allocnet"
	policyplugin "github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// OneInterface lists the capabilities that apply to a single interface. If several
// networks got them, they would request the same address or host port twice, so only
// the first network that declares one gets it.
var OneInterface = []string{portmap.Capability, "ips", "ipRanges", "mac"}

// declared returns the given capabilities that a plugin of the plan declares.
func (p *Plan) declared(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !p.Declares(name) })
}

// Declares reports whether a plugin of the plan declares a capability.
func (p *Plan) Declares(capability string) bool {
	return slices.ContainsFunc(p.Networks, func(n *conflist.Network) bool { return n != nil && n.Declares(capability) })
}

// Undeclared returns the sorted names of the requested capabilities that no plugin of the
// plan declares. The result is never nil. Annotations describe a pod and request nothing.
func (p *Plan) Undeclared() []string {
	names := []string{}
	for name, value := range p.Capabilities {
		if len(p.Networks) > 0 && !p.Declares(name) && !IsEmpty(value) && name != conflist.PodAnnotationsCapability {
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
func (p *Plan) withoutPolicies(wanted *policy.Policy) []string {
	if PolicyOrNil(wanted) == nil {
		return nil
	}
	var names []string
	for i, n := range p.Networks {
		if n != nil && !n.IsLoopback() && !n.Declares(policyplugin.Capability) {
			names = append(names, p.Attachments[i].Network)
		}
	}
	return names
}

// RequirePolicies returns an *UnservedError if a network of a plan does not enforce a policy.
func (p *Plan) RequirePolicies(wanted *policy.Policy) error {
	if without := p.withoutPolicies(wanted); len(without) > 0 {
		return &allocnet.UnservedError{ID: p.ID, Capabilities: []string{policyplugin.Capability}, Networks: without}
	}
	return nil
}

// Arguments returns the capability arguments for the plugins. That of network policies is made
// from the record for each request, because an Update changes what it contains.
func (p *Plan) Arguments() (map[string]json.RawMessage, error) {
	if !p.Declares(policyplugin.Capability) {
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

// IsEmpty reports whether the value of a capability requests nothing. Some runtimes
// send empty values for all capabilities.
func IsEmpty(value []byte) bool {
	switch string(bytes.TrimSpace(value)) {
	case "", "null", "{}", "[]", `""`:
		return true
	}
	return false
}

// without returns the names of capabilities without one of them.
func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}

// NoteUnserved records the requested capabilities that no plugin declares. If
// portMappings is one of them, it removes the ports from the record, so that they are
// not reserved.
func (p *Plan) NoteUnserved() {
	p.Unserved = p.Undeclared()
	if slices.Contains(p.Unserved, portmap.Capability) {
		p.Ports = nil
	}
}

// RequireNative returns ErrCannotUpdate if binaries have set up the networks of a plan.
func (p *Plan) RequireNative() error {
	if allocnet.Engine(p.Engine) != allocnet.EngineNative {
		return fmt.Errorf("%w: its plugins run as binaries", allocnet.ErrCannotUpdate)
	}
	return nil
}

// UnservedError reports that no plugin of the plan declares capabilities.
func (p *Plan) UnservedError(capabilities ...string) error {
	e := &allocnet.UnservedError{ID: p.ID, Capabilities: capabilities}
	ofOne := !slices.ContainsFunc(capabilities, func(name string) bool { return !slices.Contains(OneInterface, name) })
	for _, a := range p.Attachments {
		if !ofOne || !a.Attached { // Attach gives no network the capabilities of one interface
			e.Networks = append(e.Networks, a.Network)
		}
	}
	return e
}
