package main

import (
	"context"
	"errors"

	"github.com/allocnet/allocnet/cmd/internal/exporter"
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
// have one.
func (h *host) listenForMetrics() {
	s := h.active().settings.Metrics
	if s.Listen == "" {
		return
	}
	h.addOptional("listener for metrics", "metrics.listen", func() (tcpServer, error) {
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
			return nil, err
		}
		h.logger.Info("serving metrics", "address", e.Addr(), "web_config", s.WebConfig)
		return e, nil
	})
}
