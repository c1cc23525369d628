// allocnet-cni-alone is the CNI plugin of type "allocnet" that needs no daemon: what
// allocnet-cni becomes while allocnetd is away, and a plugin by itself on a host that
// has none. It works on the records and leases of the daemon, with its settings: those
// that the daemon has left beside its socket, which the key "socket" of the
// configuration names. Where there are none, they are those of the file that its key
// "settings" names, or of /etc/allocnet/allocnetd.hcl, and of variables ALLOCNETD_*.
//
// It refuses files that others than root can write, and to run as a plugin of the
// daemon or of itself: runtimes call it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/containernetworking/cni/libcni"
	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/cniwire"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

const program = "allocnet-cni-alone"

var logger = hclog.New(&hclog.LoggerOptions{Name: program, Level: hclog.Warn, Output: os.Stderr})

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
		Socket     string `json:"socket"`
		Settings   string `json:"settings"`
	}
	_ = json.Unmarshal(config, &keys) // the service says what is wrong with it
	if caller := os.Getenv(pluginexec.CallerVariable); caller != "" && env.Command != cniwire.Version {
		return keys.CNIVersion, below(caller, env.Command)
	}
	if err := os.Setenv(pluginexec.CallerVariable, program); err != nil {
		return keys.CNIVersion, failure(err)
	}
	s, err := load(keys.Socket, keys.Settings)
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
	return keys.CNIVersion, service.Serve(ctx, cniwire.Request{Env: env, Config: config, Conflists: true, Root: true})
}

// below is the answer to one whose plugins run for the sake of this one. There is
// never anything to take away.
func below(caller, command string) (r cniwire.Response) {
	if command != cniwire.Del && command != cniwire.GC {
		r.Error = &cniwire.Error{
			Code: cniwire.CodeInvalidConfig, Msg: program + " was called for a plugin of " + caller,
			Details: "use it in configurations of the runtime alone",
		}
	}
	return r
}

// load gives what was in force in the daemon of that socket, or else what a daemon
// would start with that has the file.
func load(socket, file string) (settings.Settings, error) {
	if !filepath.IsAbs(socket) {
		socket = settings.Default().Socket.Path
	}
	s, err := settings.Read(settings.InForce(socket))
	if err == nil {
		return s, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		logger.Warn("what the daemon has left of its settings is not used", "error", err)
	}
	return settings.Source{File: file, Environ: os.Environ(), Wary: true, Foreign: true}.Load()
}

func failure(err error) cniwire.Response {
	var e *cniwire.Error
	if !errors.As(err, &e) {
		e = &cniwire.Error{Code: cniwire.CodeInternal, Msg: err.Error()}
	}
	return cniwire.Response{Error: e}
}

func newService(s *settings.Settings) (*cni.Service, error) {
	libcni.CacheDir = filepath.Join(s.StateDir, "cni-cache")
	cfg := s.Configurator()
	cfg.Logger, cfg.OneShot = logger, true
	c, err := configurator.New(cfg)
	if err != nil {
		return nil, err
	}
	return cni.New(cni.Options{
		Backend:  func() cni.Backend { return c },
		Ready:    c.ReadyFor,
		NotReady: func(configurator.Allocation) error { return readinessFile(s.Manager.ReadinessFile) },
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
