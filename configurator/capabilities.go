package configurator

import (
	"bytes"
	"slices"

	"github.com/allocnet/allocnet/internal/state/conflist"
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
// plan declares. The result is never nil.
func (p *plan) unserved() []string {
	names := []string{}
	for name, value := range p.Capabilities {
		if len(p.networks) > 0 && !p.declares(name) && !isEmpty(value) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
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
// With Config.AllowUnserved, it logs a warning instead. If nothing is unserved, it
// returns the error of an unreadable configuration.
func (c *Configurator) requireServed(p *plan) error {
	names := p.unserved()
	if len(names) == 0 {
		return p.unreadable
	}
	if !c.cfg.AllowUnserved {
		e := &UnservedError{ID: p.ID, Capabilities: names}
		for _, a := range p.Attachments {
			e.Networks = append(e.Networks, a.Network)
		}
		return e
	}
	c.cfg.Logger.Warn("no plugin of the networks declares capabilities that the allocation requests; they have no effect",
		"alloc", p.ID, "capabilities", names)
	return nil
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
