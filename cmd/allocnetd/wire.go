package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/confmanager"
	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/cmd/internal/server"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// newAPI returns the API that is served on l.
func (h *host) newAPI(l *server.Listener) *api.API {
	s := h.active().settings
	cni := cni.New(cni.Options{
		Backend:  func() allocnet.Service { return h.active().service },
		Ready:    h.readyFor,
		NotReady: h.notReady,
	})
	return api.New(api.Options{
		Service:        func() allocnet.Service { return h.active().service },
		Sandboxes:      api.Pooled(h.pool, s.Pool.Dir),
		Ready:          h.ready,
		Status:         h.status,
		Traffic:        h.traffic,
		Denials:        h.denials,
		CNI:            cni.Serve,
		Plugin:         h.dropin.Serve,
		Events:         h.telemetry.Events().Subscribe,
		Incoming:       h.telemetry.Incoming,
		Metrics:        h.telemetry.Handler(),
		Groups:         h.groups(l),
		AllowConflists: s.AllowConflists,
		Limits:         limits(&s.Limits),
		Queue:          h.telemetry.Queue(),
		Logger:         h.logger.Named("api"),
	})
}

// groups returns the groups whose members may use the daemon: the group of the socket.
// Root's group does not count, because a socket has it by default.
func (h *host) groups(l *server.Listener) []uint32 {
	gid, ok := l.Group()
	if !ok || gid == 0 {
		return nil
	}
	dir := filepath.Dir(l.Path())
	if info, err := os.Stat(dir); err == nil && info.Mode()&0o011 == 0 {
		h.logger.Warn("only root can reach the socket, its group cannot: make the directory searchable (chmod go+x)", "directory", dir)
	}
	return []uint32{gid}
}

func limits(l *settings.Limits) api.Limits {
	return api.Limits{
		Operations: l.Operations, Queue: l.Queue, PerAllocation: l.PerAllocation,
		Streams: l.Streams, Connections: l.Connections, Body: l.Body,
		OperationTimeout: l.OperationTimeout,
	}
}

// replaceManager replaces the manager by one with the settings of g, or by none if they
// disable it. In the second case it logs a warning if the manager's file still exists.
func (h *host) replaceManager(g *generation) error {
	s := &g.settings
	if !s.Manager.Enabled {
		h.manager.replace(nil)
		if own := filepath.Join(s.ConfDir, s.Manager.OwnFile); confmanager.Wrote(own) {
			h.logger.Warn("the configuration manager is off, but its file still exists: runtimes use it, and it is no longer updated; remove it when no container needs it", "file", own)
		}
		return nil
	}
	m, err := confmanager.New(confmanager.Options{
		ConfDir: s.ConfDir, OwnFile: s.Manager.OwnFile, Owner: s.Socket.Path, Primary: s.Manager.Primary, Embedded: g.embedded,
		Name: s.Manager.Name, Plugin: h.pluginKeys(s), Capabilities: pluginCapabilities(s), PluginDirs: s.PluginDirs, Usable: h.installed(s),
		ReadinessFile: s.Manager.ReadinessFile,
		// The service reads the files as well, so that the networks that the manager
		// has found are active in the service, too.
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

// managedScope is the scope of all attachments that runtimes make with the manager's
// configuration. It stays the same when another network becomes the primary one.
const managedScope = "allocnetd"

// pluginKeys returns the plugin's keys in the manager's configuration: the scope, where labels
// and policies come from, and the socket and the file of settings unless they are the defaults.
func (h *host) pluginKeys(s *settings.Settings) map[string]any {
	keys := map[string]any{"scope": managedScope}
	if s.Socket.Path != settings.Default().Socket.Path {
		keys["socket"] = s.Socket.Path
	}
	if h.source.Path() != settings.DefaultFile {
		keys["settings"] = h.source.Path()
	}
	if sources := s.Manager.LabelsFrom; len(sources) > 0 {
		from := map[string]string{}
		for _, source := range sources {
			from[source.Key] = source.Argument
		}
		keys["labelsFrom"] = from
	}
	if s.Manager.PolicyFrom != "" {
		keys["policyFrom"] = s.Manager.PolicyFrom
	}
	return keys
}

// pluginCapabilities returns the capabilities that the plugin has in every network.
func pluginCapabilities(s *settings.Settings) []string {
	if s.Manager.PodAnnotations {
		return []string{conflist.PodAnnotationsCapability}
	}
	return nil
}

// installed returns a function that returns an error if a plugin binary of a network is missing, or a plugin that
// the engine runs itself, which needs no binary, refuses its configuration.
func (h *host) installed(s *settings.Settings) func(*conflist.Network) error {
	engine := native.New(h.logger, "") // used only to list the binaries
	if s.Engine == configurator.EngineExec {
		engine = native.NewForBinaries(h.logger, "")
	}
	return func(n *conflist.Network) error {
		errs := []error{engine.Validate(n, false)}
		for _, t := range engine.Binaries(n) {
			dirs := pluginexec.Dirs(s.VendorDir, s.PluginDirs, t)
			if _, err := invoke.FindInPath(t, dirs); err != nil {
				errs = append(errs, fmt.Errorf("network %q needs plugin %q, which is in none of %q: install it there or name its directory", n.Name, t, dirs))
			}
		}
		return errors.Join(errs...)
	}
}

// notReady returns why an ADD of an allocation's networks cannot begin now, or nil. The
// readiness file matters to all networks, the manager's other conditions only to its
// primary network.
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

// wantsPrimary reports whether an allocation names the manager's primary network or no
// network at all.
func (h *host) wantsPrimary(a configurator.Allocation, m keeper) bool {
	if len(a.Conflists) > 0 {
		return false
	}
	primary := cmp.Or(h.active().settings.Manager.Primary, m.State().Primary)
	return len(a.Networks) == 0 || slices.Contains(a.Networks, primary)
}

// readinessFile returns an error while the readiness file is missing.
func (h *host) readinessFile() error {
	return readiness.CheckFile(h.active().settings.Manager.ReadinessFile)
}

// ready checks the manager and each network that the files or the settings name, or the default one if they name
// none. Invalid files, and listeners that could not be made, are reported as warnings.
func (h *host) ready(ctx context.Context) []api.Check {
	checks := []api.Check{{Name: "configuration", Err: h.notReady(configurator.Allocation{})}}
	names, skipped := h.active().names(ctx)
	for _, s := range skipped {
		checks = append(checks, api.Check{Name: readiness.File, Warning: s})
	}
	for _, o := range h.optional {
		if err := o.fault(); err != nil {
			checks = append(checks, api.Check{Name: readiness.Listener, Warning: err})
		}
	}
	return append(checks, readiness.Networks(ctx, h.active().service, names)...)
}

func (h *host) readyFor(ctx context.Context, a configurator.Allocation) error {
	return h.active().service.ReadyFor(ctx, a)
}

// names returns the networks whose readiness matters: those of the files and of the
// settings. The embedded network is among them only if the settings name it.
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
