package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/allocnet/allocnet/cmd/internal/heal"
	"github.com/allocnet/allocnet/cmd/internal/server"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/watch"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/wire"
)

// healing returns the tasks that repair what other programs remove while the daemon
// runs. If the settings say to report only, it only holds the guard.
func (h *host) healing(s *settings.Settings) (tasks []server.Task) {
	logger, service := h.logger.Named("heal"), func() heal.Service { return h.active().service }
	report := healReport{h.telemetry, &h.recent}
	checker := heal.NewChecker(heal.CheckerOptions{
		Service: service, Interval: s.Heal.CheckInterval, Report: report, Logger: logger,
	})
	watcher := watch.New(int(s.Heal.ReceiveBuffer), func(err error) {
		logger.Warn("cannot listen to the kernel's notifications; trying again", "error", err)
	})
	watcher.Damaged = checker.HasUnhealthy
	healer := &heal.Healer{Service: service, Watcher: watcher, Checker: checker, Report: report, Logger: logger}
	tasks = append(tasks, server.Task{Name: "notifications of the kernel", Run: watcher.Run})
	if checks(s) {
		h.checker.Store(checker)
		tasks = append(tasks, server.Task{Name: "check of allocations in the background", Run: h.afterReconcile(s.Reconcile.Wait, checker.Run)})
	}
	if checks(s) && s.Heal.Enabled && h.rules != nil {
		tasks = append(tasks, server.Task{Name: "addresses of services", Run: h.exceptServices})
	}
	if checks(s) && s.Heal.Enabled {
		return append(tasks, server.Task{Name: "repair of what other programs remove", Run: h.afterReconcile(s.Reconcile.Wait, healer.Run)})
	}
	return append(tasks, server.Task{Name: "guard of allocations", Run: healer.RunGuard})
}

// checks reports whether settings have allocations checked in the background.
func checks(s *settings.Settings) bool {
	return s.Reconcile.Mode != settings.ReconcileReport && (s.Heal.Enabled || s.Heal.CheckInterval != 0)
}

// findings is an Observer that also passes on to the Checker what requests find of allocations.
type findings struct {
	configurator.Observer
	checker *atomic.Pointer[heal.Checker] // nil if nothing is checked in the background
}

func (f findings) End(ctx context.Context, s configurator.Step, err error) {
	f.Observer.End(ctx, s, err)
	checker := f.checker.Load()
	switch {
	case checker == nil:
	case s.Name == configurator.StepCheck && err == nil:
		checker.Found(s.ID, nil)
	case s.Name != "":
	case s.ID == "": // of all allocations
		for _, one := range wire.Each(err) {
			var about *configurator.AllocationError
			if errors.As(one, &about) {
				checker.Found(about.ID, one)
			}
		}
	case s.Operation == "check", errors.Is(err, record.ErrUnfinished), s.Operation == "setup" && err == nil, s.Operation == "teardown" && err == nil:
		checker.Found(s.ID, err)
	}
}

// afterReconcile returns a task that begins when the daemon has compared the records with
// the kernel at its start, which repairs everything, or when it is ready without that.
func (h *host) afterReconcile(longest time.Duration, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.reconciled:
		case <-time.After(longest):
		}
		return run(ctx)
	}
}
