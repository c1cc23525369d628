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
	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/cmd/internal/ui"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// page is the page of the daemon. Its file has the URL with the token, for root only.
type page struct {
	*ui.Server
	file string
}

// listenForPage makes the page a task of the daemon, if the settings have an address. Its
// file is beside the socket.
func (h *host) listenForPage(socket string) error {
	address := h.active().settings.UI
	if address == "" {
		return nil
	}
	if socket == "" {
		return h.source.Problem("ui", errors.New("the socket has no path beside which the URL could be stored: use allocnet ui"))
	}
	h.addOptional("page", "ui", func() (tcpServer, error) {
		p := &page{file: socket + ".url"}
		err := p.listen(h, address)
		if err != nil {
			return nil, errors.Join(err, p.Close()) // a daemon that was killed may have left its file
		}
		h.logger.Info("serving the page", "address", address, "url_in", p.file)
		return p, nil
	})
	return nil
}

func (p *page) listen(h *host, address string) (err error) {
	p.Server, err = ui.Listen(ui.Options{
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
		return err
	}
	if err := renameio.WriteFile(p.file, []byte(p.URL()+"\n"), 0o600, renameio.WithTempDir(filepath.Dir(p.file)), renameio.WithStaticPermissions(0o600)); err != nil {
		return fmt.Errorf("store the URL of the page: %w", err)
	}
	return nil
}

// Close removes the file, and stops listening.
func (p *page) Close() error {
	err := os.Remove(p.file)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if p.Server == nil {
		return err
	}
	return errors.Join(err, p.Server.Close())
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
		Ready: func(ctx context.Context) ([]readiness.Check, error) { return h.ready(ctx), nil },
	}
	d.Networks, d.Skipped = g.networks.Networks()
	return d
}
