package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/server"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

func (a *app) newRun() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the daemon (the default command)",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runDaemon(c.Context(), a.source(), a.errTo)
		},
	}
}

// runDaemon runs the daemon with the settings of source until it ends. For invalid
// settings it returns a usageError.
func runDaemon(ctx context.Context, source settings.Source, logTo io.Writer) error {
	signal.Ignore(syscall.SIGHUP) // the settings are about to be read; server.Run handles it later
	s, err := loadSettings(source)
	if err != nil {
		return usageError{err}
	}
	logger := newLogger(&s.Log, logTo, toJournal(logTo, os.Getenv))
	if err := os.Setenv(pluginexec.CallerVariable, "allocnetd"); err != nil {
		return err
	}
	l, err := server.Listen(server.Socket{Path: s.Socket.Path, Owner: s.Socket.Owner, Group: s.Socket.Group, Mode: s.Socket.Mode})
	if err != nil {
		return err
	}
	h, err := newHost(source, s, logger)
	if err != nil {
		return errors.Join(err, l.Release())
	}
	h.activeFile = activeFile(l)
	h.listenForMetrics()
	if err := errors.Join(h.listenForPage(l.Path()), h.writeFirstActive()); err != nil {
		return errors.Join(err, l.Release(), h.close())
	}
	return errors.Join(server.Run(ctx, h.options(l)), h.close())
}

// activeFile returns the file of the active settings, or "" for a socket without a path.
func activeFile(l *server.Listener) string {
	if l.Path() == "" {
		return ""
	}
	return settings.ActiveFile(l.Path())
}

// options returns the options with which the daemon runs.
func (h *host) options(l *server.Listener) server.Options {
	s, served := h.active().settings, h.newAPI(l)
	return server.Options{
		Listener: l, Server: served.Server(), Admit: served.Listener, HealthPath: "/healthz",
		Tasks: append([]server.Task{
			{Name: "configuration manager", Run: h.manager.run},
			{Name: "teardown of allocations without a network namespace", Run: h.tearDownGone},
			{Name: "subnets of flanneld", Run: h.followSubnets},
			{Name: "copy of the active settings", Run: h.writeActiveLater},
			{Name: "flows that network policies deny", Run: h.followDenials},
		}, slices.Concat(h.optionalTasks(), h.healing(&s))...),
		Reconcile:     h.reconcile,
		ReconcileWait: s.Reconcile.Wait,
		Reload:        h.reload,
		Grace:         h.grace,
		Logger:        h.logger,
	}
}
