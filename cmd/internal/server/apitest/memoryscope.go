package apitest

import (
	"context"
	"maps"
	"slices"

	"github.com/allocnet/allocnet/configurator"
)

// The operations on all allocations of a scope.

// GCScope implements allocnet.Service.
func (m *Memory) GCScope(ctx context.Context, s configurator.Scope) (*configurator.GCReport, error) {
	if err := m.begin(ctx, "gc", ""); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	report := m.plan(s)
	for _, id := range report.Removed {
		delete(m.allocs, id)
	}
	return report, nil
}

// PlanGC implements allocnet.Service.
func (m *Memory) PlanGC(ctx context.Context, s configurator.Scope) (*configurator.GCReport, error) {
	if err := m.begin(ctx, "gc", ""); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.plan(s), nil
}

func (m *Memory) plan(s configurator.Scope) *configurator.GCReport {
	report := &configurator.GCReport{Removed: []string{}, Kept: []string{}}
	for _, id := range slices.Sorted(maps.Keys(m.allocs)) {
		switch {
		case m.allocs[id].record.Scope != s.Name:
		case slices.Contains(s.Live, id):
			report.Kept = append(report.Kept, id)
		default:
			report.Removed = append(report.Removed, id)
			one := m.allocs[id].record
			one.Status = nil
			report.Records = append(report.Records, one)
		}
	}
	return report
}

// GC implements allocnet.Service.
func (m *Memory) GC(ctx context.Context, live []string) (*configurator.GCReport, error) {
	return m.GCScope(ctx, configurator.Scope{Live: live})
}

// Repair implements allocnet.Service.
func (m *Memory) Repair(ctx context.Context) (*configurator.RepairReport, error) {
	return m.RepairScope(ctx, configurator.Scope{})
}

// RepairScope implements allocnet.Service.
func (m *Memory) RepairScope(ctx context.Context, s configurator.Scope) (*configurator.RepairReport, error) {
	if err := m.begin(ctx, "repair", ""); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	report := &configurator.RepairReport{Healthy: []string{}, Repaired: []string{}, Broken: []string{}}
	for _, id := range slices.Sorted(maps.Keys(m.allocs)) {
		if s.Name == "" || m.allocs[id].record.Scope == s.Name {
			report.Healthy = append(report.Healthy, id)
		}
	}
	return report, nil
}

// Recover implements allocnet.Service.
func (m *Memory) Recover(ctx context.Context) (*configurator.RecoverReport, error) {
	return m.RecoverScope(ctx, configurator.Scope{})
}

// RecoverScope implements allocnet.Service. Nothing is ever left unfinished.
func (m *Memory) RecoverScope(ctx context.Context, _ configurator.Scope) (*configurator.RecoverReport, error) {
	return &configurator.RecoverReport{Removed: []string{}}, m.begin(ctx, "recover", "")
}
