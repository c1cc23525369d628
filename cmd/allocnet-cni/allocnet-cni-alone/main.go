// allocnet-cni-alone is the CNI plugin of type "allocnet" that needs no daemon: what
// allocnet-cni becomes while allocnetd is away, and a plugin by itself on a host that
// has none. It works on the records and leases of the daemon, with its settings:
// those of the file that the key "settings" of the configuration names, or of
// /etc/allocnet/allocnetd.hcl, and of variables ALLOCNETD_*.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/containernetworking/cni/libcni"
	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/cniservice"
	"github.com/allocnet/allocnet/internal/cniwire"
	"github.com/allocnet/allocnet/internal/pluginexec"
	"github.com/allocnet/allocnet/internal/settings"
)

func main() {
	_ = os.Setenv("PATH", pluginexec.CompletePath(os.Getenv("PATH")))
	version, response := run()
	os.Exit(cniwire.Print(os.Stdout, version, &response))
}

func run() (version string, response cniwire.Response) {
	env, err := cniwire.ReadEnv(os.Getenv)
	if err != nil {
		return "", failure(err)
	}
	config, err := cniwire.ReadConfig(os.Stdin)
	if err != nil {
		return "", failure(err)
	}
	var keys struct {
		CNIVersion string `json:"cniVersion"`
		Settings   string `json:"settings"`
	}
	_ = json.Unmarshal(config, &keys) // the service says what is wrong with it
	s, err := settings.Source{File: keys.Settings, Environ: os.Environ()}.Load()
	if err != nil {
		return keys.CNIVersion, failure(err)
	}
	service, err := newService(&s)
	if err != nil {
		return keys.CNIVersion, failure(err)
	}
	// A runtime that gives up has an ADD undone.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, s.Limits.OperationTimeout)
	defer cancel()
	return keys.CNIVersion, service.Serve(ctx, cniwire.Request{Env: env, Config: config})
}

func failure(err error) cniwire.Response {
	var e *cniwire.Error
	if !errors.As(err, &e) {
		e = &cniwire.Error{Code: cniwire.CodeInternal, Msg: err.Error()}
	}
	return cniwire.Response{Error: e}
}

func newService(s *settings.Settings) (*cniservice.Service, error) {
	libcni.CacheDir = filepath.Join(s.StateDir, "cni-cache")
	cfg := s.Configurator()
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Name: "allocnet-cni-alone", Level: hclog.Warn, Output: os.Stderr})
	c, err := configurator.New(cfg)
	if err != nil {
		return nil, err
	}
	return cniservice.New(cniservice.Options{
		Backend:  func() cniservice.Backend { return c },
		Ready:    c.ReadyFor,
		NotReady: func() error { return readinessFile(s.Manager.ReadinessFile) },
	}), nil
}

// readinessFile waits for the same as the daemon.
func readinessFile(path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("readiness file: %w", err)
	}
	return nil
}
