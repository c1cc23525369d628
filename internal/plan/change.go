package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/names"
	policyplugin "github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// Aim returns what an allocation has after a change. It is about all that the change names,
// also if the record has that already, because another program may have removed it.
func (p *Plan) Aim(change allocnet.Change, o portmap.Options) (*record.Aim, error) {
	r := p.Record
	ports, err := portsAfter(r, change, o)
	if err != nil {
		return nil, err
	}
	aim := publication(ports)
	aim.Before = append([]portmap.Mapping{}, r.Ports...)
	samePorts := slices.Equal(ports, r.Ports)
	if samePorts {
		aim.Requested, aim.Ports = r.RequestedPorts, r.Ports
	}
	aim.KeepsPorts = len(change.Publish)+len(change.Unpublish) == 0
	if aim.Policy = r.Policy; change.Policy != nil {
		aim.Policy = PolicyOrNil(change.Policy)
		if err := change.Policy.Validate(); err != nil {
			return nil, fmt.Errorf("%w: %w", allocnet.ErrInvalidAllocation, err)
		}
		if err := p.RequirePolicies(aim.Policy); err != nil {
			return nil, err
		}
	}
	if aim.Labels, err = names.ChangeLabels(r.Labels, change.Labels); err == nil && !change.AllowReservedLabels {
		err = names.RefuseReserved(change.Labels)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", allocnet.ErrInvalidAllocation, err)
	}
	aim.Enforce = (change.Policy != nil || len(change.Labels) > 0) && p.Declares(policyplugin.Capability)
	before, err := LimitsOf(r)
	if err == nil && change.Bandwidth != nil {
		after := *change.Bandwidth // the caller may change its own
		aim.Bandwidth = &after
	}
	sameLimits := aim.Bandwidth == nil || *aim.Bandwidth == before
	aim.KeepsRevision = samePorts && sameLimits && p.hasLabelsAndPolicy(aim)
	return aim, err
}

// hasLabelsAndPolicy reports whether an allocation has the labels and the policy of an aim.
func (p *Plan) hasLabelsAndPolicy(aim *record.Aim) bool {
	return maps.Equal(aim.Labels, p.Labels) && sameJSON(aim.Policy, p.Policy)
}

// portsAfter returns the host ports of an allocation after a change.
func portsAfter(r *record.Record, change allocnet.Change, o portmap.Options) ([]portmap.Mapping, error) {
	gone, err := portmap.Mappings(ofEveryProtocol(change.Unpublish), o)
	if err != nil {
		return nil, fmt.Errorf("%w: unpublish: %w", allocnet.ErrInvalidAllocation, err)
	}
	added, err := portmap.Mappings(change.Publish, o)
	if err != nil {
		return nil, fmt.Errorf("%w: publish: %w", allocnet.ErrInvalidAllocation, err)
	}
	ends := map[portmap.Mapping]bool{}
	for _, m := range gone {
		ends[portmap.Mapping{HostPort: m.HostPort, Protocol: m.Protocol, HostIP: m.HostIP}] = true
	}
	ports := slices.DeleteFunc(slices.Clone(r.Ports), func(m portmap.Mapping) bool {
		host := portmap.Mapping{HostPort: m.HostPort, Protocol: m.Protocol}
		everywhere := ends[host]
		host.HostIP = m.HostIP
		return everywhere || ends[host]
	})
	places := map[portmap.Mapping]int{}
	for i, m := range ports {
		places[unlabelled(m)] = i
	}
	var more []portmap.Mapping
	for _, m := range added { // they do not overlap each other
		if i, has := places[unlabelled(m)]; has {
			ports[i] = m
		} else {
			more = append(more, m)
		}
	}
	if m, taken, found := portmap.FindConflict(more, ports); found {
		return nil, &portmap.ConflictError{Mapping: m, Other: taken, ID: r.ID, OtherID: r.ID}
	}
	return append(ports, more...), nil
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

// AimBefore returns the aim that reverses another one.
func (p *Plan) AimBefore(target *record.Aim) (*record.Aim, error) {
	before := &record.Aim{KeepsRevision: true, Requested: p.RequestedPorts, Ports: p.Ports, Labels: p.Labels, Policy: p.Policy, Enforce: target.Enforce, KeepsPorts: target.KeepsPorts, Before: target.Before}
	if target.Bandwidth == nil {
		return before, nil
	}
	limits, err := LimitsOf(p.Record)
	before.Bandwidth = &limits
	return before, err
}

// Updating returns the plan of an update: with the host ports from before and after it.
func (p *Plan) Updating(target *record.Aim) (*Plan, error) {
	intent := p.Changed(func(r *record.Record) { r.Update = target })
	if target.KeepsPorts {
		return intent, nil
	}
	intent.Ports = slices.Concat(p.Ports, Added(p.Ports, target.Ports))
	var err error
	intent.Capabilities, err = withPorts(p.Capabilities, intent.Ports)
	return intent, err
}

// Added returns the mappings of after that are not in before.
func Added(before, after []portmap.Mapping) []portmap.Mapping {
	had := make(map[portmap.Mapping]bool, len(before))
	for _, m := range before {
		had[m] = true
	}
	return slices.DeleteFunc(slices.Clone(after), func(m portmap.Mapping) bool { return had[m] })
}

// withPorts returns capability arguments with other host ports.
func withPorts(capabilities map[string]json.RawMessage, ports []portmap.Mapping) (map[string]json.RawMessage, error) {
	given, err := CapabilityArgs(&allocnet.Allocation{}, ports)
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

// After returns the plan of an allocation that has that at which an update aims. Its results are
// those from before.
func (p *Plan) After(aim *record.Aim) (*Plan, error) {
	after := p.Changed(func(r *record.Record) {
		r.Ports, r.RequestedPorts, r.Update = aim.Ports, aim.Requested, nil
		SetLabelsAndPolicy(r, aim)
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
	return after.LimitedTo(*aim.Bandwidth)
}

// SetLabelsAndPolicy gives a record the labels and the policy of an aim.
func SetLabelsAndPolicy(r *record.Record, aim *record.Aim) {
	r.Labels, r.Policy = aim.Labels, aim.Policy
	if r.Policy == nil {
		r.Unserved = without(r.Unserved, policyplugin.Capability)
	}
}

// LacksPorts reports whether an update has not reserved its host ports yet.
func (p *Plan) LacksPorts() bool { return len(Added(p.Ports, p.Update.Ports)) > 0 }

// LimitsOf returns the limits that a record requests; the zero value if there are none.
func LimitsOf(r *record.Record) (limits allocnet.Bandwidth, err error) {
	if IsEmpty(r.Capabilities[Bandwidth]) {
		return limits, nil
	}
	if err := json.Unmarshal(r.Capabilities[Bandwidth], &limits); err != nil {
		return limits, fmt.Errorf("capability %q of allocation %q: %w", Bandwidth, r.ID, err)
	}
	return limits, nil
}

// WithLimits returns capability arguments with other limits.
func WithLimits(capabilities map[string]json.RawMessage, limits allocnet.Bandwidth) (map[string]json.RawMessage, error) {
	all := maps.Clone(capabilities)
	delete(all, Bandwidth)
	if limits == (allocnet.Bandwidth{}) {
		return all, nil
	}
	text, err := json.Marshal(limits)
	if err != nil {
		return nil, fmt.Errorf("encode capability %q: %w", Bandwidth, err)
	}
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	all[Bandwidth] = text
	return all, nil
}

// LimitedTo returns the plan with other limits.
func (p *Plan) LimitedTo(limits allocnet.Bandwidth) (*Plan, error) {
	limited := p.Changed(func(r *record.Record) {
		r.Attachments = slices.Clone(p.Attachments) // they get other results
		if limits == (allocnet.Bandwidth{}) {
			r.Unserved = without(p.Unserved, Bandwidth)
		}
	})
	var err error
	limited.Capabilities, err = WithLimits(p.Capabilities, limits)
	return limited, err
}
