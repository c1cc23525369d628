package apitest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// The networks that a Memory has and that the contract needs.
const (
	Net     = "net"     // the default one
	Failing = "failing" // its ADD fails with CNI code 7
	Broken  = "broken.conflist"
	// Embedded is the network whose plugins are native, so that an allocation on it can be
	// updated.
	Embedded = "allocnet"
)

// Memory is an allocnet.Service that keeps allocations in memory and changes no host. It
// fulfils the contract. It is safe for concurrent use.
type Memory struct {
	// Before is called at the beginning of every operation. An error of Before becomes the
	// operation's error.
	Before func(ctx context.Context, operation, id string) error

	mu     sync.Mutex
	allocs map[string]held
	picked int // ports without a number that have got one
}

type held struct {
	applied configurator.Allocation
	record  configurator.Record
}

func (m *Memory) begin(ctx context.Context, operation, id string) error {
	if m.Before != nil {
		if err := m.Before(ctx, operation, id); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func validID(id string) error {
	if err := utils.ValidateContainerID(id); err != nil || len(id) > 128 {
		return fmt.Errorf("%w: ID %q", configurator.ErrInvalidAllocation, id)
	}
	return nil
}

// policyOrNil returns nil for the zero value, which means the same.
func policyOrNil(p *policy.Policy) *policy.Policy {
	if p.IsEmpty() {
		return nil
	}
	return p
}

func validPolicy(p *policy.Policy) error {
	if err := p.Validate(); err != nil {
		return fmt.Errorf("%w: %w", configurator.ErrInvalidAllocation, err)
	}
	return nil
}

// Setup implements allocnet.Service.
func (m *Memory) Setup(ctx context.Context, a configurator.Allocation) (*configurator.Status, error) {
	a.Policy = policyOrNil(a.Policy)
	m.number(a.ID, &a.Ports)
	ports, portErr := portmap.Mappings(a.Ports, portmap.Options{})
	if portErr != nil {
		portErr = fmt.Errorf("%w: %w", configurator.ErrInvalidAllocation, portErr)
	}
	labelErr := names.ValidateLabels(a.Labels)
	if labelErr == nil && !a.AllowReservedLabels {
		labelErr = names.RefuseReserved(a.Labels)
	}
	if labelErr != nil {
		labelErr = fmt.Errorf("%w: %w", configurator.ErrInvalidAllocation, labelErr)
	}
	if err := errors.Join(validID(a.ID), portErr, labelErr, validPolicy(a.Policy)); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(a.Netns, "/") {
		return nil, fmt.Errorf("%w: netns %q", configurator.ErrInvalidAllocation, a.Netns)
	}
	if err := m.begin(ctx, "setup", a.ID); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if h, ok := m.allocs[a.ID]; ok {
		if a.MustBeNew {
			return nil, fmt.Errorf("%w: %q", configurator.ErrExists, a.ID)
		}
		if text(h.applied) != text(a) {
			return nil, fmt.Errorf("%w: %q", configurator.ErrDifferent, a.ID)
		}
		return h.record.Status, nil
	}
	return m.add(a, ports)
}

func (m *Memory) add(a configurator.Allocation, ports []portmap.Mapping) (*configurator.Status, error) {
	for id, h := range m.allocs {
		for _, mine := range ports {
			for _, other := range h.record.Ports {
				if mine.HostPort == other.HostPort && mine.Protocol == other.Protocol {
					return nil, &portmap.ConflictError{Mapping: mine, Other: other, ID: a.ID, OtherID: id}
				}
			}
		}
	}
	for _, network := range a.Networks {
		switch network {
		case Net, Embedded:
		case Failing:
			return nil, fmt.Errorf("network %q: %w", network, &types.Error{Code: 7, Msg: "no good"})
		default:
			return nil, fmt.Errorf("%w: %q", configurator.ErrUnknownNetwork, network)
		}
	}
	if len(a.Capabilities) > 0 {
		return nil, &configurator.UnservedError{ID: a.ID, Capabilities: slices.Sorted(maps.Keys(a.Capabilities)), Networks: []string{Net}}
	}
	now := time.Now()
	status := &configurator.Status{InterfaceName: "eth0", Address: "192.0.2.1", Ports: ports, Interfaces: []configurator.Interface{}, Revision: now.String()}
	if m.allocs == nil {
		m.allocs = map[string]held{}
	}
	a.Ports, a.Labels = slices.Clone(a.Ports), maps.Clone(a.Labels) // the caller may change them
	m.allocs[a.ID] = held{a, configurator.Record{
		ID: a.ID, Scope: a.Scope, Labels: a.Labels, Policy: a.Policy, Netns: a.Netns, Phase: configurator.PhaseReady, Engine: configurator.EngineNative,
		Ports: ports, Bandwidth: a.Bandwidth, Created: now, Updated: now, Status: status, Revision: status.Revision,
	}}
	made := *status
	made.Created = true
	return &made, nil
}

// Update implements allocnet.Service.
func (m *Memory) Update(ctx context.Context, id string, change configurator.Change) (*configurator.Status, error) {
	if err := validID(id); err != nil {
		return nil, err
	}
	if err := m.begin(ctx, "update", id); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.allocs[id]
	if !ok {
		return nil, fmt.Errorf("%w: %q", configurator.ErrNotFound, id)
	}
	if is := h.record.Revision; change.Revision != "" && change.Revision != is {
		return nil, &configurator.RevisionError{ID: id, Wanted: change.Revision, Current: is}
	}
	var ports []portmap.Port
	for _, has := range h.record.Ports {
		gone := slices.ContainsFunc(change.Unpublish, func(p portmap.Port) bool { return p.Value == has.HostPort })
		if !gone {
			ports = append(ports, portmap.Port{Label: has.Label, Value: has.HostPort, To: has.ContainerPort, Protocols: []string{has.Protocol}})
		}
	}
	labels, err := names.ChangeLabels(h.record.Labels, change.Labels)
	if err == nil && !change.AllowReservedLabels {
		err = names.RefuseReserved(change.Labels)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", configurator.ErrInvalidAllocation, err)
	}
	if err := validPolicy(change.Policy); err != nil {
		return nil, err
	}
	h.applied.Labels, h.record.Labels = labels, labels
	if limits := change.Bandwidth; limits != nil {
		if limits.IngressRate > 0 && limits.IngressBurst == 0 {
			return nil, fmt.Errorf("%w: bandwidth: a rate needs a burst", configurator.ErrInvalidAllocation)
		}
		h.applied.Bandwidth, h.record.Bandwidth = nil, nil
		if *limits != (configurator.Bandwidth{}) {
			h.applied.Bandwidth, h.record.Bandwidth = limits, limits
		}
	}
	if change.Policy != nil {
		h.applied.Policy = policyOrNil(change.Policy)
		h.record.Policy = h.applied.Policy
	}
	m.pick(&change.Publish)
	h.applied.Ports = append(ports, change.Publish...)
	mappings, err := portmap.Mappings(h.applied.Ports, portmap.Options{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", configurator.ErrInvalidAllocation, err)
	}
	status := *h.record.Status
	status.Ports, status.Revision = mappings, time.Now().String()
	h.record.Ports, h.record.Status, h.record.Revision = mappings, &status, status.Revision
	m.allocs[id] = h
	return &status, nil
}

// Attach implements allocnet.Service.
func (m *Memory) Attach(ctx context.Context, id, network string, o configurator.AttachOptions) (*configurator.Status, error) {
	return m.reattach(ctx, "attach", id, o.Revision, func(h *held) error {
		name := cmp.Or(o.Interface, fmt.Sprintf("eth%d", len(h.applied.Networks)))
		switch {
		case network != Net && network != Embedded:
			return fmt.Errorf("%w: %q", configurator.ErrUnknownNetwork, network)
		case slices.Contains(h.applied.Networks, network):
			return fmt.Errorf("%w: network %q", configurator.ErrInvalidAllocation, network)
		case name == "eth0":
			return fmt.Errorf("%w: %s", configurator.ErrInUse, name)
		}
		h.applied.Networks = append(slices.Clone(h.applied.Networks), network)
		h.record.Status.Interfaces = append(slices.Clone(h.record.Status.Interfaces), configurator.Interface{Name: name, Network: network, Sandbox: h.applied.Netns})
		return nil
	})
}

// Detach implements allocnet.Service.
func (m *Memory) Detach(ctx context.Context, id, interfaceName, revision string) (*configurator.Status, error) {
	return m.reattach(ctx, "detach", id, revision, func(h *held) error {
		if interfaceName == "eth0" {
			return fmt.Errorf("%w: the first network", configurator.ErrCannotUpdate)
		}
		i := slices.IndexFunc(h.record.Status.Interfaces, func(i configurator.Interface) bool { return i.Name == interfaceName })
		if i < 0 {
			return fmt.Errorf("%w: interface %q", configurator.ErrNotFound, interfaceName)
		}
		network := h.record.Status.Interfaces[i].Network
		h.record.Status.Interfaces = slices.Delete(slices.Clone(h.record.Status.Interfaces), i, i+1)
		h.applied.Networks = slices.DeleteFunc(slices.Clone(h.applied.Networks), func(n string) bool { return n == network })
		return nil
	})
}

// reattach changes the networks of an allocation.
func (m *Memory) reattach(ctx context.Context, operation, id, revision string, change func(*held) error) (*configurator.Status, error) {
	if err := errors.Join(validID(id), m.begin(ctx, operation, id)); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.allocs[id]
	if !ok {
		return nil, fmt.Errorf("%w: %q", configurator.ErrNotFound, id)
	}
	if is := h.record.Revision; revision != "" && revision != is {
		return nil, &configurator.RevisionError{ID: id, Wanted: revision, Current: is}
	}
	status := *h.record.Status
	h.record.Status = &status
	if err := change(&h); err != nil {
		return nil, err
	}
	status.Revision = time.Now().String()
	h.record.Revision = status.Revision
	m.allocs[id] = h
	return &status, nil
}

// number gives ports without a number those of the allocation, or others.
func (m *Memory) number(id string, ports *[]portmap.Port) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*ports = slices.Clone(*ports)
	for i, p := range *ports {
		for _, has := range m.allocs[id].applied.Ports {
			if p.Value == 0 && p.To == has.To {
				(*ports)[i].Value = has.Value
			}
		}
	}
	m.pick(ports)
}

// pick gives ports without a number one that no port has got before. The caller holds m.mu.
func (m *Memory) pick(ports *[]portmap.Port) {
	*ports = slices.Clone(*ports)
	for i, p := range *ports {
		if p.Value == 0 {
			m.picked++
			(*ports)[i].Value = configurator.DefaultDynamicPorts.First + m.picked
		}
	}
}

// text describes what an allocation requests.
func text(a configurator.Allocation) string {
	mappings, _ := portmap.Mappings(a.Ports, portmap.Options{}) // it is valid
	slices.SortFunc(mappings, func(a, b portmap.Mapping) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	a.MustBeNew, a.Ports = false, nil
	data, err := json.Marshal([]any{a, mappings})
	if err != nil {
		panic(err) // it was decoded from JSON or comes from a test
	}
	return string(data)
}

// Check implements allocnet.Service.
func (m *Memory) Check(ctx context.Context, a configurator.Allocation) error {
	if err := m.begin(ctx, "check", a.ID); err != nil {
		return err
	}
	_, err := m.Get(ctx, a.ID)
	return err
}

// CheckOnly implements allocnet.Service.
func (m *Memory) CheckOnly(ctx context.Context, a configurator.Allocation) error {
	return m.Check(ctx, a)
}

// TeardownGone implements allocnet.Service. No network namespace is ever gone.
func (m *Memory) TeardownGone(ctx context.Context, id string) (bool, error) {
	return false, errors.Join(validID(id), m.begin(ctx, "teardown", id))
}

// Audit implements allocnet.Service. An allocation has a link and nothing else.
func (m *Memory) Audit(ctx context.Context, a configurator.Allocation) ([]configurator.Leftover, error) {
	if err := errors.Join(validID(a.ID), m.begin(ctx, "audit", a.ID)); err != nil {
		return nil, err
	}
	if _, err := m.Get(ctx, a.ID); err != nil {
		return nil, nil
	}
	return []configurator.Leftover{{Kind: allocnet.KindLink, Object: "eth0"}}, nil
}

// Force implements allocnet.Service. Every allocation with a record is set up.
func (m *Memory) Force(ctx context.Context, a configurator.Allocation) ([]configurator.Leftover, error) {
	if err := errors.Join(validID(a.ID), m.begin(ctx, "force", a.ID)); err != nil {
		return nil, err
	}
	if _, err := m.Get(ctx, a.ID); err == nil {
		return nil, fmt.Errorf("%w: %q", configurator.ErrSetUp, a.ID)
	}
	return nil, nil
}

// Teardown implements allocnet.Service.
func (m *Memory) Teardown(ctx context.Context, a configurator.Allocation) error {
	if err := errors.Join(validID(a.ID), m.begin(ctx, "teardown", a.ID)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.allocs, a.ID)
	return nil
}

// List implements allocnet.Service.
func (m *Memory) List(context.Context) ([]configurator.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var records []configurator.Record
	for _, id := range slices.Sorted(maps.Keys(m.allocs)) {
		records = append(records, m.allocs[id].record)
	}
	return records, nil
}

// Get implements allocnet.Service.
func (m *Memory) Get(_ context.Context, id string) (*configurator.Record, error) {
	if err := validID(id); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.allocs[id]
	if !ok {
		return nil, fmt.Errorf("%w: %q", configurator.ErrNotFound, id)
	}
	return &h.record, nil
}

// Networks implements allocnet.Service.
func (m *Memory) Networks(context.Context) ([]configurator.Network, []*configurator.NetworkError) {
	return []configurator.Network{
		{Name: Failing, CNIVersion: "1.1.0"}, {Name: Net, CNIVersion: "1.1.0", Default: true},
	}, []*configurator.NetworkError{{File: "/conf/" + Broken, Err: errors.New("is broken")}}
}

// History implements allocnet.Service: each allocation has had one Setup.
func (m *Memory) History(_ context.Context, q configurator.HistoryQuery) ([]configurator.HistoryEntry, error) {
	records, err := m.List(context.Background())
	var list []configurator.HistoryEntry
	for _, r := range records {
		if q.ID == "" || q.ID == r.ID {
			list = append(list, configurator.HistoryEntry{
				Time: r.Created, Program: "memory[1]", Operation: "setup", ID: r.ID, Seconds: 0.5,
				Steps:  []configurator.HistoryStep{{Step: configurator.StepAdd, At: 0.1, Seconds: 0.2, Error: "first attempt"}},
				Forced: []configurator.Leftover{{Kind: "link", Object: "veth1"}},
			})
		}
	}
	if q.Limit > 0 && len(list) > q.Limit {
		list = list[len(list)-q.Limit:]
	}
	return list, err
}

// Ready implements allocnet.Service.
func (m *Memory) Ready(ctx context.Context) error { return ctx.Err() }

// ReadyFor implements allocnet.Service.
func (m *Memory) ReadyFor(ctx context.Context, a configurator.Allocation) error {
	for _, name := range a.Networks {
		if name != Net && name != Failing {
			return fmt.Errorf("%w: %q", configurator.ErrUnknownNetwork, name)
		}
	}
	return ctx.Err()
}

// Close implements allocnet.Service.
func (m *Memory) Close() error { return nil }
