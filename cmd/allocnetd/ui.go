package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	dto "github.com/prometheus/client_model/go"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/cmd/internal/server"
	"github.com/allocnet/allocnet/cmd/internal/ui"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// page is the page of the daemon. Its file has the URL with the token, for root only.
type page struct {
	*ui.Server
	file string
}

// listenForPage makes the page a task of the daemon, if the settings have an address. Its
// file is beside the socket. The caller must close it if the daemon does not run.
func (h *host) listenForPage(socket string) error {
	address := h.active().settings.UI
	if address == "" {
		return nil
	}
	if socket == "" {
		return h.source.Problem("ui", errors.New("the socket has no path beside which the URL could be stored: use allocnet ui"))
	}
	s, err := ui.Listen(ui.Options{
		Address:  address,
		Service:  func() allocnet.Service { return h.active().service },
		Networks: func() ([]*conflist.Network, []*conflist.FileError) { return h.active().networks.Networks() },
		Status:   func(ctx context.Context) (*client.HostStatus, error) { return h.status(ctx), nil },
		Doctor:   h.examine,
		Events:   h.telemetry.Events().Subscribe,
		Metrics:  h.gather,
		Logger:   h.logger.Named("ui"),
	})
	if err != nil {
		return h.source.Problem("ui", err)
	}
	h.page = &page{s, socket + ".url"}
	if err := renameio.WriteFile(h.page.file, []byte(s.URL()+"\n"), 0o600, renameio.WithTempDir(filepath.Dir(h.page.file)), renameio.WithStaticPermissions(0o600)); err != nil {
		return fmt.Errorf("store the URL of the page: %w", err)
	}
	h.logger.Info("serving the page", "address", address, "url_in", h.page.file)
	return nil
}

// pages returns the task that serves the page, if the settings have an address.
func (h *host) pages() []server.Task {
	if h.page == nil {
		return nil
	}
	return []server.Task{{Name: "page", Run: h.page.Run}}
}

// close removes the file, and stops listening.
func (p *page) close() error {
	if p == nil {
		return nil
	}
	err := os.Remove(p.file)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, p.Close())
}

// gather returns the metrics that can be read.
func (h *host) gather(context.Context) ([]*dto.MetricFamily, error) {
	families, err := h.telemetry.Gather()
	if len(families) > 0 {
		err = nil // the others are missing in /metrics as well, which logs the reason
	}
	return families, err
}

// examine examines the host, as allocnet doctor does.
func (h *host) examine(ctx context.Context) (*doctor.Report, error) {
	return h.doctor(h.active()).Examine(ctx), nil
}

// doctor returns the host with the settings of a generation.
func (h *host) doctor(g *generation) *doctor.Host {
	s := &g.settings
	d := &doctor.Host{
		Service: g.service, Engine: s.Engine, ConfDir: s.ConfDir, StateDir: s.StateDir, PluginDirs: s.PluginDirs,
		VendorDir: s.VendorDir, NetnsDir: s.Pool.Dir, Settings: h.source.Path(),
	}
	d.Networks, d.Skipped = g.networks.Networks()
	return d
}
