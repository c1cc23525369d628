package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

var logger = hclog.New(&hclog.LoggerOptions{Name: program, Level: hclog.Warn, Output: os.Stderr})

// fallback serves the request in this process. cause is the reason why the daemon does
// not serve it.
func (o *options) fallback(r cni.Request, cause error) *answer {
	service, timeout, err := o.newService()
	if err != nil {
		return answerOf(&cni.Error{Code: cni.CodeInternal, Msg: err.Error(), Details: cause.Error()}, o.version)
	}
	// If the runtime gives up, an ADD is undone.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r.Conflists, r.Root = true, true
	response := service.Serve(ctx, r)
	if response.Error != nil {
		return answerOf(response.Error, o.version)
	}
	return &answer{Result: response.Result}
}

// newService returns the service and the timeout of its operations.
func (o *options) newService() (*cni.Service, time.Duration, error) {
	for name, value := range map[string]string{
		"PATH": pluginexec.CompletePath(os.Getenv("PATH")), pluginexec.CallerVariable: program,
	} {
		if err := os.Setenv(name, value); err != nil {
			return nil, 0, err
		}
	}
	s, err := o.loadSettings()
	if err != nil {
		return nil, 0, err
	}
	libcni.CacheDir = filepath.Join(s.StateDir, "cni-cache")
	cfg := s.Configurator()
	cfg.Logger, cfg.OneShot = logger, true
	c, err := configurator.New(cfg)
	if err != nil {
		return nil, 0, err
	}
	return cni.New(cni.Options{
		Backend:  func() allocnet.Service { return c },
		Ready:    c.ReadyFor,
		NotReady: func(configurator.Allocation) error { return readiness.CheckFile(s.Manager.ReadinessFile) },
	}), s.Limits.OperationTimeout, nil
}

// loadSettings returns the active settings that the daemon wrote beside its socket. If
// there are none, it loads the configured file and the environment, as a daemon does at
// its start.
func (o *options) loadSettings() (settings.Settings, error) {
	s, err := settings.Read(settings.ActiveFile(o.socket))
	if err == nil {
		return s, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		logger.Warn("the daemon's active settings cannot be read: loading the configured ones", "error", err)
	}
	return settings.Source{File: o.settings, Environ: os.Environ(), Wary: true, Foreign: true}.Load()
}
