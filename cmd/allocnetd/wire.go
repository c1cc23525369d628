package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/confmanager"
	"github.com/allocnet/allocnet/cmd/internal/server"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// newAPI is what is served.
func (h *host) newAPI(l *server.Listener) *api.API {
	s := h.inForce().settings
	cni := cni.New(cni.Options{
		Backend:  func() allocnet.Service { return h.inForce().service },
		Ready:    h.readyFor,
		NotReady: h.notReady,
	})
	return api.New(api.Options{
		Service:        func() allocnet.Service { return h.inForce().service },
		Sandboxes:      api.Pooled(h.pool, s.Pool.Dir),
		Ready:          h.ready,
		CNI:            cni.Serve,
		Events:         h.telemetry.Events().Subscribe,
		Metrics:        h.telemetry.Handler(),
		Groups:         h.groups(l),
		AllowConflists: s.AllowConflists,
		Limits:         limits(&s.Limits),
		Queue:          h.telemetry.Queue(),
		Logger:         h.logger.Named("api"),
	})
}

// groups are those whose members may use the daemon: that of the socket. Root's
// own group says nothing: it is what a socket has by default.
func (h *host) groups(l *server.Listener) []uint32 {
	gid, ok := l.Group()
	if !ok || gid == 0 {
		return nil
	}
	dir := filepath.Dir(l.Path())
	if info, err := os.Stat(dir); err == nil && info.Mode()&0o011 == 0 {
		h.logger.Warn("only root can reach the socket, not its group: let others search the directory (chmod go+x)", "directory", dir)
	}
	return []uint32{gid}
}

func limits(l *settings.Limits) api.Limits {
	return api.Limits{
		Operations: l.Operations, Queue: l.Queue, PerAllocation: l.PerAllocation,
		Streams: l.Streams, Connections: l.Connections, Body: l.Body,
		HeaderTimeout: l.HeaderTimeout, OperationTimeout: l.OperationTimeout,
	}
}

func (h *host) replaceManager(g *generation) error {
	s := &g.settings
	if !s.Manager.Enabled {
		h.manager.replace(nil)
		if own := filepath.Join(s.ConfDir, s.Manager.OwnFile); confmanager.Wrote(own) {
			h.logger.Warn("the configuration manager is off, and runtimes go on by its file, which nobody keeps up to date: remove it when no container needs it any more", "file", own)
		}
		return nil
	}
	m, err := confmanager.New(confmanager.Options{
		ConfDir: s.ConfDir, OwnFile: s.Manager.OwnFile, Owner: s.Socket.Path, Primary: s.Manager.Primary, Embedded: g.embedded,
		Name: s.Manager.Name, Plugin: h.pluginKeys(s), PluginDirs: s.PluginDirs, Usable: h.installed(s),
		ReadinessFile: s.Manager.ReadinessFile,
		// What the manager has seen is in force also for who was never asked for it.
		OnRead: func() { g.service.Networks(context.Background()) },
		OnChange: func(now confmanager.State) {
			h.telemetry.Configured(now.Primary, now.File, now.NotReady, now.Problems)
		},
		Logger: h.logger.Named("manager"),
	})
	if err != nil {
		return err
	}
	h.manager.replace(m)
	return nil
}

// managedScope is that of what runtimes attach by the manager's configuration, also
// when that is called otherwise, because another network has become the primary one.
const managedScope = "allocnetd"

// pluginKeys name the scope, and lead the plugin here, where that is not where it
// looks by itself.
func (h *host) pluginKeys(s *settings.Settings) map[string]any {
	keys := map[string]any{"scope": managedScope}
	if s.Socket.Path != settings.Default().Socket.Path {
		keys["socket"] = s.Socket.Path
	}
	if h.source.Path() != settings.DefaultFile {
		keys["settings"] = h.source.Path()
	}
	return keys
}

// installed finds the plugins of a network that the engine does not run itself.
func (h *host) installed(s *settings.Settings) func(*conflist.Network) error {
	engine := native.New(h.logger, "") // asked what it runs, and nothing else
	if s.Engine == configurator.EngineExec {
		engine = native.NewForBinaries(h.logger, "")
	}
	return func(n *conflist.Network) error {
		var errs []error
		for _, t := range engine.Binaries(n) {
			dirs := pluginexec.Dirs(s.VendorDir, s.PluginDirs, t)
			if _, err := invoke.FindInPath(t, dirs); err != nil {
				errs = append(errs, fmt.Errorf("network %q needs plugin %q, which is in none of %q: install it there or name its directory", n.Name, t, dirs))
			}
		}
		return errors.Join(errs...)
	}
}

// notReady says why no ADD of an allocation's networks is to be begun now. What the
// manager waits for beside the readiness file matters to its primary network alone.
func (h *host) notReady(a configurator.Allocation) error {
	m := h.manager.now()
	if m == nil {
		return h.readinessFile()
	}
	err := m.Ready()
	if err == nil || h.wantsPrimary(a, m) {
		return err
	}
	return h.readinessFile()
}

// wantsPrimary reports whether an allocation is to have the manager's primary network,
// or names none.
func (h *host) wantsPrimary(a configurator.Allocation, m keeper) bool {
	if len(a.Conflists) > 0 {
		return false
	}
	primary := cmp.Or(h.inForce().settings.Manager.Primary, m.State().Primary)
	return len(a.Networks) == 0 || slices.Contains(a.Networks, primary)
}

// readinessFile says that the file is not there.
func (h *host) readinessFile() error {
	file := h.inForce().settings.Manager.ReadinessFile
	if file == "" {
		return nil
	}
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("readiness file: %w: whoever provides the network has to create it", err)
	}
	return nil
}

// ready is the manager's readiness and that of each network that files or settings
// name. Files that cannot be used, or only as they were, are told.
func (h *host) ready(ctx context.Context) []api.Check {
	checks := []api.Check{{Name: "configuration", Err: h.notReady(configurator.Allocation{})}}
	names, skipped := h.inForce().names(ctx)
	for _, s := range skipped {
		checks = append(checks, api.Check{Name: "file", Warning: s})
	}
	if len(names) == 0 {
		return append(checks, api.Check{Name: "network", Err: h.inForce().service.Ready(ctx)})
	}
	found := make(chan api.Check, len(names))
	for _, name := range names {
		go func() {
			err := h.readyFor(ctx, configurator.Allocation{Networks: []string{name}})
			found <- api.Check{Name: "network", Network: name, Err: err}
		}()
	}
	for range names {
		checks = append(checks, <-found)
	}
	slices.SortStableFunc(checks, func(a, b api.Check) int { return strings.Compare(a.Network, b.Network) })
	return checks
}

func (h *host) readyFor(ctx context.Context, a configurator.Allocation) error {
	return h.inForce().service.ReadyFor(ctx, a)
}

// names are the networks that can be expected to be asked for: not the embedded
// one, unless the settings name it.
func (g *generation) names(ctx context.Context) (names []string, skipped []*configurator.NetworkError) {
	s := &g.settings
	names = slices.Clone(s.Networks)
	if s.Manager.Enabled && s.Manager.Primary != "" {
		names = append(names, s.Manager.Primary)
	}
	networks, skipped := g.service.Networks(ctx)
	for _, n := range networks {
		if n.File != "" {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), skipped
}
