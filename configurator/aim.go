package configurator

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/allocnet/allocnet/internal/names"
	policyplugin "github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// This file computes what an update aims at. Nothing in it changes anything.

// aim returns what an allocation has after a change. It is about all that the change names,
// also if the record has that already, because another program may have removed it.
func (p *plan) aim(change Change, o portmap.Options) (*record.Aim, error) {
	r := p.Record
	ports, err := portsAfter(r, change, o)
	if err != nil {
		return nil, err
	}
	aim := publication(ports)
	samePorts := slices.Equal(ports, r.Ports)
	if samePorts {
		aim.Requested, aim.Ports = r.RequestedPorts, r.Ports
	}
	aim.KeepsPorts = len(change.Publish)+len(change.Unpublish) == 0
	if aim.Policy = r.Policy; change.Policy != nil {
		aim.Policy = policyOrNil(change.Policy)
		if err := change.Policy.Validate(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalidAllocation, err)
		}
		if err := p.requirePolicies(aim.Policy); err != nil {
			return nil, err
		}
	}
	if aim.Labels, err = names.ChangeLabels(r.Labels, change.Labels); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidAllocation, err)
	}
	aim.Enforce = (change.Policy != nil || len(change.Labels) > 0) && p.declares(policyplugin.Capability)
	before, err := limitsOf(r)
	if err == nil && change.Bandwidth != nil {
		after := *change.Bandwidth // the caller may change its own
		aim.Bandwidth = &after
	}
	sameLimits := aim.Bandwidth == nil || *aim.Bandwidth == before
	aim.KeepsRevision = samePorts && sameLimits && p.hasLabelsAndPolicy(aim)
	return aim, err
}

// hasLabelsAndPolicy reports whether an allocation has the labels and the policy of an aim.
func (p *plan) hasLabelsAndPolicy(aim *record.Aim) bool {
	return maps.Equal(aim.Labels, p.Labels) && sameJSON(aim.Policy, p.Policy)
}

// portsAfter returns the host ports of an allocation after a change.
func portsAfter(r *record.Record, change Change, o portmap.Options) ([]portmap.Mapping, error) {
	gone, err := portmap.Mappings(ofEveryProtocol(change.Unpublish), o)
	if err != nil {
		return nil, fmt.Errorf("%w: unpublish: %w", ErrInvalidAllocation, err)
	}
	added, err := portmap.Mappings(change.Publish, o)
	if err != nil {
		return nil, fmt.Errorf("%w: publish: %w", ErrInvalidAllocation, err)
	}
	ports := slices.DeleteFunc(slices.Clone(r.Ports), func(m portmap.Mapping) bool {
		return slices.ContainsFunc(gone, func(g portmap.Mapping) bool {
			return g.HostPort == m.HostPort && g.Protocol == m.Protocol && (g.HostIP == "" || g.HostIP == m.HostIP)
		})
	})
	for _, m := range added {
		if i := slices.IndexFunc(ports, func(has portmap.Mapping) bool { return unlabelled(has) == unlabelled(m) }); i >= 0 {
			ports[i] = m
			continue
		}
		if _, taken, found := portmap.FindConflict([]portmap.Mapping{m}, ports); found {
			return nil, &portmap.ConflictError{Mapping: m, Other: taken, ID: r.ID, OtherID: r.ID}
		}
		ports = append(ports, m)
	}
	return ports, nil
}

// ofEveryProtocol returns ports in which no protocol stands for all.
func ofEveryProtocol(ports []portmap.Port) []portmap.Port {
	ports = slices.Clone(ports)
	for i := range ports {
		if len(ports[i].Protocols) == 0 {
			ports[i].Protocols = []string{"tcp", "udp", "sctp"}
		}
	}
	return ports
}

func unlabelled(m portmap.Mapping) portmap.Mapping {
	m.Label = ""
	return m
}

// publication returns an aim of mappings, with the ports that request them.
func publication(ports []portmap.Mapping) *record.Aim {
	p := &record.Aim{Ports: ports}
	for _, m := range ports {
		p.Requested = append(p.Requested, portmap.Port{
			Label: m.Label, Value: m.HostPort, To: m.ContainerPort, HostIP: m.HostIP, Protocols: []string{m.Protocol},
		})
	}
	return p
}

// aimBefore returns the aim that reverses another one.
func (p *plan) aimBefore(target *record.Aim) (*record.Aim, error) {
	before := &record.Aim{KeepsRevision: true, Requested: p.RequestedPorts, Ports: p.Ports, Labels: p.Labels, Policy: p.Policy, Enforce: target.Enforce, KeepsPorts: target.KeepsPorts}
	if target.Bandwidth == nil {
		return before, nil
	}
	limits, err := limitsOf(p.Record)
	before.Bandwidth = &limits
	return before, err
}

// updating returns the plan of an update: with the host ports from before and after it.
func (p *plan) updating(target *record.Aim) (*plan, error) {
	intent := p.changed(func(r *record.Record) { r.Update = target })
	if target.KeepsPorts {
		return intent, nil
	}
	intent.Ports = slices.Concat(p.Ports, added(p.Ports, target.Ports))
	var err error
	intent.Capabilities, err = withPorts(p.Capabilities, intent.Ports)
	return intent, err
}

// added returns the mappings of after that are not in before.
func added(before, after []portmap.Mapping) []portmap.Mapping {
	return slices.DeleteFunc(slices.Clone(after), func(m portmap.Mapping) bool { return slices.Contains(before, m) })
}

// withPorts returns capability arguments with other host ports.
func withPorts(capabilities map[string]json.RawMessage, ports []portmap.Mapping) (map[string]json.RawMessage, error) {
	given, err := capabilityArgs(&Allocation{}, ports)
	all := maps.Clone(capabilities)
	delete(all, portmap.Capability)
	for name, value := range given {
		if all == nil {
			all = map[string]json.RawMessage{}
		}
		all[name] = value
	}
	return all, err
}

// after returns the plan of an allocation that has that at which an update aims. Its results are
// those from before.
func (p *plan) after(aim *record.Aim) (*plan, error) {
	after := p.changed(func(r *record.Record) {
		r.Ports, r.RequestedPorts, r.Update = aim.Ports, aim.Requested, nil
		setLabelsAndPolicy(r, aim)
		if !aim.KeepsRevision {
			r.Revision++
		}
	})
	if !aim.KeepsPorts {
		var err error
		if after.Capabilities, err = withPorts(p.Capabilities, after.Ports); err != nil {
			return nil, err
		}
	}
	if aim.Bandwidth == nil {
		return after, nil
	}
	return after.limitedTo(*aim.Bandwidth)
}

// setLabelsAndPolicy gives a record the labels and the policy of an aim.
func setLabelsAndPolicy(r *record.Record, aim *record.Aim) {
	r.Labels, r.Policy = aim.Labels, aim.Policy
	if r.Policy == nil {
		r.Unserved = without(r.Unserved, policyplugin.Capability)
	}
}

// lacksPorts reports whether an update has not reserved its host ports yet.
func (p *plan) lacksPorts() bool { return len(added(p.Ports, p.Update.Ports)) > 0 }
