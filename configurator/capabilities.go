package configurator

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
)

// oneInterface are the capabilities that concern one interface: given to every
// network of an allocation, they would request the same address or host port
// twice. The first network that declares one gets it.
var oneInterface = []string{portMappings, "ips", "ipRanges", "mac"}

// portMappings is the capability of published ports.
const portMappings = "portMappings"

// declaredBefore returns those of oneInterface that a network of the record declares.
func declaredBefore(r *record.Record) ([]string, error) {
	if len(r.Attachments) == 0 {
		return nil, nil
	}
	declared, err := declaredBy(r)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(oneInterface), func(name string) bool { return !declared(name) }), nil
}

// declaredBy returns a function that reports whether a plugin of a record declares a
// capability.
func declaredBy(r *record.Record) (func(name string) bool, error) {
	networks := make([]*conflist.Network, len(r.Attachments))
	for i, a := range r.Attachments {
		var err error
		if networks[i], err = conflist.Parse(a.Config); err != nil {
			return nil, fmt.Errorf("recorded configuration of network %q: %w", a.Network, err)
		}
	}
	return func(name string) bool {
		return slices.ContainsFunc(networks, func(n *conflist.Network) bool { return n.Declares(name) })
	}, nil
}

// unserved returns, sorted, the capabilities that an allocation requests and no
// plugin of its networks declares. It derives them from the record, which holds
// both.
func unserved(r *record.Record) ([]string, error) {
	if len(r.Capabilities) == 0 || len(r.Attachments) == 0 {
		return nil, nil
	}
	declared, err := declaredBy(r)
	if err != nil {
		return nil, err
	}
	var names []string
	for name, value := range r.Capabilities {
		if !declared(name) && !isEmpty(value) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// isEmpty reports whether the value of a capability requests nothing, as runtimes
// send it that fill in every capability.
func isEmpty(value []byte) bool {
	switch string(bytes.TrimSpace(value)) {
	case "", "null", "{}", "[]", `""`:
		return true
	}
	return false
}

// requireServed returns an *UnservedError if no plugin declares a capability that a
// record requests, unless the Config allows that.
func (c *Configurator) requireServed(r *record.Record) error {
	names, err := unserved(r)
	if err != nil || len(names) == 0 {
		return err
	}
	if !c.cfg.AllowUnserved {
		e := &UnservedError{ID: r.ID, Capabilities: names}
		for _, a := range r.Attachments {
			e.Networks = append(e.Networks, a.Network)
		}
		return e
	}
	c.cfg.Logger.Warn("no plugin of the networks declares capabilities that the allocation requests; they have no effect",
		"alloc", r.ID, "capabilities", names)
	return nil
}

// dropUnservedPorts removes ports from a record if no plugin publishes them: nothing
// listens there, so the ports are not reserved.
func dropUnservedPorts(r *record.Record) error {
	names, err := unserved(r)
	if err == nil && slices.Contains(names, portMappings) {
		r.Ports = nil
	}
	return err
}
