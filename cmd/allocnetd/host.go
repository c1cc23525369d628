package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/allocnet/allocnet/cmd/internal/doctor"
	"github.com/allocnet/allocnet/cmd/internal/dropin"
	"github.com/allocnet/allocnet/cmd/internal/heal"
	"github.com/allocnet/allocnet/cmd/internal/hoststatus"
	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/cmd/internal/telemetry"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/buildinfo"
	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/subnets"
	"github.com/allocnet/allocnet/sandbox"
	"github.com/hashicorp/go-hclog"
)

// host holds the parts of the daemon.
type host struct {
	source    settings.Source
	logger    hclog.Logger
	current   atomic.Pointer[generation]
	telemetry *telemetry.Telemetry
	recent    hoststatus.Recent // for the overview of the host
	checker   atomic.Pointer[heal.Checker]
	started   time.Time
	links     *rtnl.Host       // for the metrics and the traffic
	reloads   settings.Source  // what reload reads; only reload uses it
	conns     *conntrack.Conn  // for the traffic
	rules     *ruleset.Ruleset // for the counters of network policies; nil if the kernel has no nftables
	manager   *supervisor
	pool      *sandbox.Pool
	dropin    *dropin.Service // for plugins that runtimes start as binaries
	optional  []*optional
	// retired are replaced services whose operations still run, or that still delete what allocations
	// have left.
	retired []*generation
	// reconciled is closed when reconcile has ended.
	reconciled chan struct{}

	activeFile string // the file that a reload writes the active settings to; "" for none
	activeMu   sync.Mutex
	unwritten  bool // the last attempt to write it has failed
}

// generation holds everything that a reload replaces. A running operation ends with the
// generation in which it began.
type generation struct {
	settings settings.Settings
	service  *configurator.Configurator
	running  *atomic.Int64 // operations of the service
	networks *conflist.Dir // for the metrics
	embedded *conflist.Network
}

func (h *host) active() *generation { return h.current.Load() }

func newHost(source settings.Source, s settings.Settings, logger hclog.Logger) (h *host, err error) {
	// The default directory also holds the cached results of other runtimes.
	libcni.CacheDir = filepath.Join(s.StateDir, "cni-cache")
	h = &host{source: source, started: time.Now(), logger: logger, manager: newSupervisor(), links: rtnl.OpenHost(), conns: conntrack.New(), reconciled: make(chan struct{}), dropin: dropin.New(logger.Named("plugins"))}
	if h.rules, err = netpolicy.OpenRules(); err != nil {
		return nil, err
	}
	if h.telemetry, err = h.newTelemetry(&s); err != nil {
		return nil, err
	}
	if err := h.apply(nil, &s); err != nil {
		return nil, err
	}
	if err := h.holdGuard(); err != nil {
		logger.Error("cannot hold the source guard of existing allocations: a flush of the ruleset would remove it for a moment", "error", err)
	}
	h.reloads = source.Settled()
	h.telemetry.Reloaded(nil)
	h.pool, err = sandbox.NewPool(sandbox.PoolOptions{Dir: s.Pool.Dir, Size: s.Pool.Size, OnError: func(err error) {
		h.logger.Warn("a network namespace for the pool could not be created", "error", err)
	}})
	if err != nil {
		return nil, errors.Join(err, h.active().service.Close())
	}
	return h, nil
}

// holdGuard holds the guard for the allocations of earlier runs, before the first request is served.
func (h *host) holdGuard() error {
	ctx, cancel := context.WithTimeout(context.Background(), h.active().settings.Timeout)
	defer cancel()
	return h.active().service.HoldGuard(ctx)
}

func (h *host) newTelemetry(s *settings.Settings) (*telemetry.Telemetry, error) {
	b := newBuild(buildinfo.Read())
	records := record.Open(s.StateDir)
	return telemetry.New(telemetry.Options{
		Version: b.Version, Revision: b.Revision,
		Networks: func() ([]*conflist.Network, []*conflist.FileError) { return h.active().networks.Networks() },
		Allocations: func() (int, error) {
			ids, err := records.IDs()
			n := len(ids)
			for _, p := range h.pools() { // their records are not those of allocations
				n -= p.Ready
			}
			return max(n, 0), err
		},
		Pending:       h.pending,
		Pools:         h.pools,
		Conntrack:     conntrack.Fill,
		Ownerless:     func() (map[string]int, error) { return h.leasesWithoutOwner(records) },
		Findings:      h.findings,
		Ready:         h.readyNetworks,
		Listeners:     h.listeners,
		NoHealth:      !checks(s),
		Links:         h.links,
		Denied:        h.dropped,
		TraceEndpoint: s.Telemetry.OTLPEndpoint,
		Logger:        h.logger.Named("telemetry"),
	})
}

// leasesWithoutOwner counts the leases without an owner, by network.
func (h *host) leasesWithoutOwner(records *record.Store) (map[string]int, error) {
	g := h.active()
	ctx, cancel := context.WithTimeout(context.Background(), g.settings.Timeout)
	defer cancel()
	networks, _ := g.networks.Networks()
	return doctor.LeasesWithoutOwner(ctx, networks, doctor.Records{IDs: records.IDs, List: g.service.List}, g.settings.Pool.Dir)
}

// apply activates settings; after an error everything is as before. Parts whose
// settings have not changed stay, with their state.
func (h *host) apply(before *generation, s *settings.Settings) (err error) {
	g := &generation{settings: *s}
	defer func() {
		if err != nil && g.service != nil && (before == nil || g.service != before.service) {
			err = errors.Join(err, g.service.Close())
		}
	}()
	if before != nil && reflect.DeepEqual(before.settings.Configurator(), s.Configurator()) {
		g.service, g.running, g.networks, g.embedded = before.service, before.running, before.networks, before.embedded
	} else if err := h.configure(g); err != nil {
		return err
	}
	if before == nil || g.service != before.service || !reflect.DeepEqual(before.settings.Manager, s.Manager) {
		if err := errors.Join(g.keepsNetworks(before), g.requireRoom(before)); err != nil {
			return err
		}
		if err := h.replaceManager(g); err != nil {
			return err
		}
	}
	h.logger.SetLevel(s.Log.Level)
	h.current.Store(g)
	h.retire(before, g)
	h.logEngineChanges(before, g)
	return nil
}

// retire keeps the service of a replaced generation while its operations run and it deletes what
// allocations have left, so that close waits for that. It is not closed before: the garbage
// collector closes its sockets. The guard that it holds stays with the new service.
func (h *host) retire(before, now *generation) {
	h.retired = slices.DeleteFunc(h.retired, func(g *generation) bool {
		return g.running.Load() == 0 && g.service.Pending() == 0 // an operation ends after it has left something
	})
	if before == nil || before.service == now.service {
		return
	}
	h.retired = append(h.retired, before)
	if err := before.service.ClosePools(); err != nil {
		h.logger.Warn("prepared network namespaces could not be removed; the next start removes them", "error", err)
	}
}

// pools returns the state of the pools of networks.
func (h *host) pools() []configurator.PoolStatus {
	if g := h.active(); g != nil {
		return g.service.Pools()
	}
	return nil
}

// pending returns the number of allocations whose teardown was acknowledged and that are
// not yet deleted.
func (h *host) pending() int {
	if g := h.active(); g != nil {
		return g.service.Pending()
	}
	return 0
}

// logEngineChanges logs the networks whose engine differs between two generations.
func (h *host) logEngineChanges(before, g *generation) {
	if before == nil || before.service == g.service {
		return
	}
	engines := map[string]configurator.Engine{}
	networks, _ := before.service.Networks(context.Background()) // invalid files are reported elsewhere
	for _, n := range networks {
		engines[n.Name] = n.Engine
	}
	networks, _ = g.service.Networks(context.Background())
	for _, n := range networks {
		if previous, known := engines[n.Name]; known && previous != n.Engine {
			h.logger.Info("the engine of the network has changed; existing allocations keep theirs",
				"network", n.Name, "engine", n.Engine, "before", previous)
		}
	}
}

// configure creates the parts that depend on the Configurator's settings.
func (h *host) configure(g *generation) (err error) {
	g.running = new(atomic.Int64)
	if g.service, err = h.newService(g.settings.Configurator(), g.running); err != nil {
		return err
	}
	cfg := g.settings.Configurator()
	options := conflist.EmbeddedOptions{
		StateDir: cfg.StateDir, Subnets: cfg.Subnets, SubnetsFrom: cfg.SubnetsFrom, Routes: conflist.EmbeddedRoutes(cfg.Routes), Policy: cfg.Policy, ForBinaries: cfg.Engine == configurator.EngineExec,
	}
	if g.embedded, err = subnets.Embedded(options); err != nil {
		return err
	}
	if g.networks, err = subnets.Networks(g.settings.ConfDir, options); err != nil {
		return err
	}
	if cfg.Engine != configurator.EngineExec {
		g.networks.Resolving()
	}
	return err
}

// requireRoom returns an error if the host would lose something that it has in the subnet of a network that the
// generation before did not have.
func (g *generation) requireRoom(before *generation) error {
	if before == nil || g.service == before.service { // a daemon that starts serves its other networks
		return nil
	}
	former, _ := before.networks.Networks() // invalid files are reported elsewhere
	networks, _ := g.networks.Networks()
	changed := slices.DeleteFunc(slices.Clone(networks), func(n *conflist.Network) bool {
		return slices.ContainsFunc(former, func(f *conflist.Network) bool { return bytes.Equal(f.Bytes, n.Bytes) })
	})
	taken, err := subnets.OfHost(subnets.Announced(networks))
	if err != nil {
		return err
	}
	return subnets.RequireRoom(changed, taken)
}

// keepsNetworks returns an error if the new generation would lose a network. That is so
// while the file of a network is invalid and its last valid content is active.
func (g *generation) keepsNetworks(before *generation) error {
	if before == nil || g.settings.ConfDir != before.settings.ConfDir {
		return nil
	}
	active, _ := before.service.Networks(context.Background())
	read, invalid := conflist.New(g.settings.ConfDir, g.embedded).Networks()
	var errs []error
	for _, f := range invalid {
		isActive := slices.ContainsFunc(active, func(n configurator.Network) bool { return n.File == f.File })
		if isActive && !slices.ContainsFunc(read, func(n *conflist.Network) bool { return n.File == f.File }) {
			errs = append(errs, fmt.Errorf("%w; its last valid content is active and would be lost: repair the file, then reload", f))
		}
	}
	return errors.Join(errs...)
}

// counter is an Observer that also counts the operations that run.
type counter struct {
	configurator.Observer
	running *atomic.Int64
}

func (c counter) Begin(ctx context.Context, s configurator.Step) context.Context {
	if s.Name == "" {
		c.running.Add(1)
	}
	return c.Observer.Begin(ctx, s)
}

func (c counter) End(ctx context.Context, s configurator.Step, err error) {
	c.Observer.End(ctx, s, err)
	if s.Name == "" {
		c.running.Add(-1)
	}
}

func (h *host) newService(cfg configurator.Config, running *atomic.Int64) (*configurator.Configurator, error) {
	cfg.Logger = h.logger
	cfg.Observer = counter{findings{failures{h.telemetry.Observer(), h.logger, &h.recent}, &h.checker}, running}
	cfg.OnForced = h.telemetry.OnForced
	return configurator.New(cfg)
}

// reload reads the settings again and applies them.
func (h *host) reload(context.Context) (err error) {
	var live, restart []string
	defer func() { h.telemetry.Reloaded(err, restart...) }()
	next, err := loadSettings(h.reloads)
	if err != nil {
		return err
	}
	before := h.active()
	live, restart = next.Changes(&before.settings)
	next.Keep(&before.settings)
	if err := h.apply(before, &next); err != nil {
		return err
	}
	if err := h.writeActive(); err != nil {
		return fmt.Errorf("%w; the new settings are active, but the plugin uses the previous ones while the daemon is not running", err)
	}
	h.reloads = h.reloads.Settled()
	if len(live) > 0 {
		h.logger.Info("settings have changed", "settings", live)
	}
	if len(restart) > 0 {
		h.logger.Warn("settings have changed that need a restart: the previous values stay active", "settings", restart)
	}
	return nil
}

// writeActive writes the active settings for the plugin, which reads them while the
// daemon is not running.
func (h *host) writeActive() error {
	if h.activeFile == "" {
		return nil
	}
	h.activeMu.Lock()
	defer h.activeMu.Unlock()
	err := h.active().settings.Write(h.activeFile)
	h.unwritten = err != nil
	return err
}

// writeFirstActive is writeActive at the start. A full file system does not keep the daemon from
// starting, because teardowns need no space; writeActiveLater tries again.
func (h *host) writeFirstActive() error {
	err := h.writeActive()
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS} {
		if errors.Is(err, full) {
			h.logger.Warn("the active settings cannot be written: while the daemon is not running, the plugin and the command line use the previous ones or the defaults; trying again", "error", err)
			return nil
		}
	}
	return err
}

// againTime is the pause between attempts of writeActiveLater. Tests replace it.
var againTime = time.Minute

// writeActiveLater writes active settings that could not be written, until the context ends.
func (h *host) writeActiveLater(ctx context.Context) error {
	missing := func() bool {
		h.activeMu.Lock()
		defer h.activeMu.Unlock()
		return h.unwritten
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(againTime):
		}
		if missing() && h.writeActive() == nil {
			h.logger.Info("the active settings are written")
		}
	}
}

func (h *host) grace() time.Duration { return h.active().settings.ShutdownGrace }

// closeTime is the maximum time for delivering the last spans.
const closeTime = 5 * time.Second

func (h *host) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if err := h.telemetry.Shutdown(ctx); err != nil {
		h.logger.Warn("not all spans were delivered", "error", err)
	}
	var errs []error
	h.links.Close()
	errs = append(errs, h.conns.Close())
	if h.rules != nil {
		errs = append(errs, h.rules.Close())
	}
	for _, o := range h.optional {
		errs = append(errs, o.close())
	}
	for _, g := range append(h.retired, h.active()) {
		errs = append(errs, g.service.Close())
	}
	if err := h.pool.Close(); err != nil {
		errs = append(errs, fmt.Errorf("close the pool of network namespaces: %w", err))
	}
	return errors.Join(append(errs, h.dropin.Close())...)
}

// reconcile compares the records with the kernel, and repairs unless the settings say
// to report only.
func (h *host) reconcile(ctx context.Context) error {
	defer close(h.reconciled)
	g := h.active()
	if g.settings.Reconcile.Mode == settings.ReconcileReport {
		return g.report(ctx)
	}
	recovered, recoverErr := g.service.Recover(ctx)
	if recovered != nil && len(recovered.Removed) > 0 {
		h.logger.Warn("removed unfinished allocations of an earlier run", "allocs", recovered.Removed)
	}
	found, err := g.service.Repair(ctx)
	if found != nil {
		h.logger.Info("compared records with the kernel",
			"healthy", len(found.Healthy), "repaired", len(found.Repaired), "broken", len(found.Broken))
	}
	return errors.Join(recoverErr, err)
}

// report checks all allocations and returns what is wrong with them.
func (g *generation) report(ctx context.Context) error {
	records, err := g.service.List(ctx)
	errs := []error{err}
	for _, r := range records {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := g.service.CheckOnly(ctx, configurator.Allocation{ID: r.ID, Netns: r.Netns})
		if err != nil && !errors.Is(err, configurator.ErrNotFound) { // torn down meanwhile
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
