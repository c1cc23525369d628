package main

import (
	"context"
	"errors"

	"github.com/allocnet/allocnet/cmd/internal/exporter"
	"github.com/allocnet/allocnet/cmd/internal/server"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
)

// loadSettings reads the settings and the files that only the daemon reads.
func loadSettings(source settings.Source) (settings.Settings, error) {
	s, err := source.Load()
	if err != nil {
		return s, err
	}
	if err := exporter.Validate(s.Metrics.WebConfig); err != nil {
		return s, source.Problem("metrics.web_config", err)
	}
	return s, nil
}

// listenForMetrics makes the listener for metrics a task of the daemon, if the settings
// have one. The caller must close it if the daemon does not run.
func (h *host) listenForMetrics() error {
	s := h.active().settings.Metrics
	if s.Listen == "" {
		return nil
	}
	e, err := exporter.Listen(exporter.Options{
		Address: s.Listen, WebConfig: s.WebConfig, Metrics: h.telemetry.Handler(),
		Ready: func(ctx context.Context) error {
			var errs []error
			for _, c := range h.ready(ctx) {
				errs = append(errs, c.Err)
			}
			return errors.Join(errs...)
		},
		Logger: h.logger.Named("metrics"),
	})
	if err != nil {
		return h.source.Problem("metrics.listen", err)
	}
	h.exporter = e
	h.logger.Info("serving metrics", "address", e.Addr(), "web_config", s.WebConfig)
	return nil
}

// exports returns the task that serves metrics, if the settings have one.
func (h *host) exports() []server.Task {
	if h.exporter == nil {
		return nil
	}
	return []server.Task{{Name: "listener for metrics", Run: h.exporter.Run}}
}
