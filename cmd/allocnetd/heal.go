package main

import (
	"context"
	"time"

	"github.com/allocnet/allocnet/cmd/internal/heal"
	"github.com/allocnet/allocnet/cmd/internal/server"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/internal/netlink/watch"
)

// healing returns the tasks that repair what other programs remove while the daemon
// runs: none if the settings say to report only.
func (h *host) healing(s *settings.Settings) []server.Task {
	if s.Reconcile.Mode == settings.ReconcileReport || !s.Heal.Enabled && s.Heal.CheckInterval == 0 {
		return nil
	}
	logger, service := h.logger.Named("heal"), func() heal.Service { return h.active().service }
	report := healReport{h.telemetry, &h.recent}
	checker := heal.NewChecker(heal.CheckerOptions{
		Service: service, Interval: s.Heal.CheckInterval, Report: report, Logger: logger,
	})
	tasks := []server.Task{{Name: "check of allocations in the background", Run: h.afterReconcile(s.Reconcile.Wait, checker.Run)}}
	if !s.Heal.Enabled {
		return tasks
	}
	watcher := watch.New(int(s.Heal.ReceiveBuffer), func(err error) {
		logger.Warn("cannot listen to the kernel's notifications; trying again", "error", err)
	})
	healer := &heal.Healer{Service: service, Watcher: watcher, Checker: checker, Report: report, Logger: logger}
	return append(tasks,
		server.Task{Name: "notifications of the kernel", Run: watcher.Run},
		server.Task{Name: "repair of what other programs remove", Run: h.afterReconcile(s.Reconcile.Wait, healer.Run)},
	)
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
