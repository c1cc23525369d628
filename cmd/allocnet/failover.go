package main

import (
	"context"
	"errors"
	"sync"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
)

// failover is the daemon as long as it listens. A call that cannot connect to it, because it
// is being restarted for example, is made by this process, and so are all later ones: without a
// connection, the daemon has not changed anything.
type failover struct {
	open func() (allocnet.Service, error) // opens the Service of this process

	mu     sync.Mutex
	daemon *client.Client // nil once this process does the work
	own    allocnet.Service
}

// service returns the Service that calls use now, and whether it is the daemon.
func (f *failover) service() (s allocnet.Service, isDaemon bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.daemon != nil {
		return f.daemon, true
	}
	return f.own, false
}

// replace replaces the daemon.
func (f *failover) replace() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.daemon == nil {
		return nil
	}
	own, err := f.open()
	if err == nil {
		f.own, f.daemon = own, nil
	}
	return err
}

// try makes a call, by this process if the daemon does not listen.
func try[T any](f *failover, call func(allocnet.Service) (T, error)) (T, error) {
	s, isDaemon := f.service()
	answer, err := call(s)
	if !isDaemon || !errors.Is(err, client.ErrUnavailable) {
		return answer, err
	}
	if openErr := f.replace(); openErr != nil {
		return answer, errors.Join(err, openErr)
	}
	s, _ = f.service()
	return call(s)
}

// tryOnly is try for a call without an answer.
func tryOnly(f *failover, call func(allocnet.Service) error) error {
	_, err := try(f, func(s allocnet.Service) (struct{}, error) { return struct{}{}, call(s) })
	return err
}

// asksDaemon reports whether the daemon executes the calls of a Service.
func asksDaemon(s allocnet.Service) bool {
	if f, ok := s.(*failover); ok {
		s, _ = f.service()
	}
	_, ok := s.(*client.Client)
	return ok
}

func (f *failover) Setup(ctx context.Context, a allocnet.Allocation) (*allocnet.Status, error) {
	return try(f, func(s allocnet.Service) (*allocnet.Status, error) { return s.Setup(ctx, a) })
}

func (f *failover) Update(ctx context.Context, id string, change allocnet.Change) (*allocnet.Status, error) {
	return try(f, func(s allocnet.Service) (*allocnet.Status, error) { return s.Update(ctx, id, change) })
}

func (f *failover) Attach(ctx context.Context, id, network string, o allocnet.AttachOptions) (*allocnet.Status, error) {
	return try(f, func(s allocnet.Service) (*allocnet.Status, error) { return s.Attach(ctx, id, network, o) })
}

func (f *failover) Detach(ctx context.Context, id, interfaceName, revision string) (*allocnet.Status, error) {
	return try(f, func(s allocnet.Service) (*allocnet.Status, error) { return s.Detach(ctx, id, interfaceName, revision) })
}

func (f *failover) Check(ctx context.Context, a allocnet.Allocation) error {
	return tryOnly(f, func(s allocnet.Service) error { return s.Check(ctx, a) })
}

func (f *failover) CheckOnly(ctx context.Context, a allocnet.Allocation) error {
	return tryOnly(f, func(s allocnet.Service) error { return s.CheckOnly(ctx, a) })
}

func (f *failover) Teardown(ctx context.Context, a allocnet.Allocation) error {
	return tryOnly(f, func(s allocnet.Service) error { return s.Teardown(ctx, a) })
}

func (f *failover) TeardownGone(ctx context.Context, id string) (bool, error) {
	return try(f, func(s allocnet.Service) (bool, error) { return s.TeardownGone(ctx, id) })
}

func (f *failover) Audit(ctx context.Context, a allocnet.Allocation) ([]allocnet.Leftover, error) {
	return try(f, func(s allocnet.Service) ([]allocnet.Leftover, error) { return s.Audit(ctx, a) })
}

func (f *failover) Force(ctx context.Context, a allocnet.Allocation) ([]allocnet.Leftover, error) {
	return try(f, func(s allocnet.Service) ([]allocnet.Leftover, error) { return s.Force(ctx, a) })
}

func (f *failover) GC(ctx context.Context, live []string) (*allocnet.GCReport, error) {
	return try(f, func(s allocnet.Service) (*allocnet.GCReport, error) { return s.GC(ctx, live) })
}

func (f *failover) GCScope(ctx context.Context, scope allocnet.Scope) (*allocnet.GCReport, error) {
	return try(f, func(s allocnet.Service) (*allocnet.GCReport, error) { return s.GCScope(ctx, scope) })
}

func (f *failover) PlanGC(ctx context.Context, scope allocnet.Scope) (*allocnet.GCReport, error) {
	return try(f, func(s allocnet.Service) (*allocnet.GCReport, error) { return s.PlanGC(ctx, scope) })
}

func (f *failover) Repair(ctx context.Context) (*allocnet.RepairReport, error) {
	return try(f, func(s allocnet.Service) (*allocnet.RepairReport, error) { return s.Repair(ctx) })
}

func (f *failover) RepairScope(ctx context.Context, scope allocnet.Scope) (*allocnet.RepairReport, error) {
	return try(f, func(s allocnet.Service) (*allocnet.RepairReport, error) { return s.RepairScope(ctx, scope) })
}

func (f *failover) Recover(ctx context.Context) (*allocnet.RecoverReport, error) {
	return try(f, func(s allocnet.Service) (*allocnet.RecoverReport, error) { return s.Recover(ctx) })
}

func (f *failover) RecoverScope(ctx context.Context, scope allocnet.Scope) (*allocnet.RecoverReport, error) {
	return try(f, func(s allocnet.Service) (*allocnet.RecoverReport, error) { return s.RecoverScope(ctx, scope) })
}

func (f *failover) List(ctx context.Context) ([]allocnet.Record, error) {
	return try(f, func(s allocnet.Service) ([]allocnet.Record, error) { return s.List(ctx) })
}

func (f *failover) Get(ctx context.Context, id string) (*allocnet.Record, error) {
	return try(f, func(s allocnet.Service) (*allocnet.Record, error) { return s.Get(ctx, id) })
}

func (f *failover) Networks(ctx context.Context) ([]allocnet.Network, []*allocnet.NetworkError) {
	var skipped []*allocnet.NetworkError
	networks, err := try(f, func(s allocnet.Service) (networks []allocnet.Network, err error) {
		networks, skipped = s.Networks(ctx)
		if len(skipped) == 1 && errors.Is(skipped[0].Err, client.ErrUnavailable) {
			err = skipped[0]
		}
		return networks, err
	})
	if err != nil && (len(skipped) == 0 || err != error(skipped[0])) { // also why this process cannot do it
		skipped = append(skipped, &allocnet.NetworkError{Err: err})
	}
	return networks, skipped
}

func (f *failover) History(ctx context.Context, q allocnet.HistoryQuery) ([]allocnet.HistoryEntry, error) {
	return try(f, func(s allocnet.Service) ([]allocnet.HistoryEntry, error) { return s.History(ctx, q) })
}

func (f *failover) Ready(ctx context.Context) error {
	return tryOnly(f, func(s allocnet.Service) error { return s.Ready(ctx) })
}

func (f *failover) ReadyFor(ctx context.Context, a allocnet.Allocation) error {
	return tryOnly(f, func(s allocnet.Service) error { return s.ReadyFor(ctx, a) })
}

func (f *failover) Close() error {
	s, _ := f.service()
	return s.Close()
}
