package configurator

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/cniexec"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/portmap"
)

// Configurator gives allocations their networks and takes them away again. It
// is safe for concurrent use, also beside other processes on the same StateDir:
// operations on one allocation run one after the other, on different ones at
// once.
type Configurator struct {
	cfg   Config
	confs *conflist.Dir
	store *record.Store
	mark  string
	// instance is that of the owners of what is made; formerInstances are those that
	// older versions gave to the same directory.
	instance        string
	formerInstances []string

	exec   engine.Engine
	native nativeEngine
	// steps runs binaries one by one, where go-cni cannot: see inSteps.
	steps engine.Engine
	// ownsHost says that capabilities of the process count on the host.
	ownsHost *atomic.Bool
	recent   *recentTeardowns

	warned  *warnings
	engines *lastEngines

	// What tests replace.
	now        func() time.Time
	jitter     func(most time.Duration) time.Duration
	sleep      sleeper
	gcPatience time.Duration
	together   int
}

// New makes a Configurator. Neither directory needs to exist: the state
// directory is made by the first Setup, the configuration directory is read
// whenever a network is looked for. The error is ErrInvalidConfig.
func New(cfg Config) (*Configurator, error) {
	if cfg.Network != "" && len(cfg.Networks) > 0 {
		return nil, fmt.Errorf("%w: Network %q and Networks %q: give either Network or Networks", ErrInvalidConfig, cfg.Network, cfg.Networks)
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	// From here on nothing goes by how the path is spelt.
	state, err := statedir.Resolve(cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("%w: StateDir: %w", ErrInvalidConfig, err)
	}
	spelt := cfg.StateDir
	cfg.StateDir = state.Path
	embedded, err := conflist.Embedded(conflist.EmbeddedOptions{
		StateDir: cfg.StateDir, Subnets: cfg.Subnets, ForBinaries: cfg.Engine == EngineExec,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	return &Configurator{
		cfg:   cfg,
		confs: conflist.New(cfg.ConfDir, embedded),
		store: record.Open(cfg.StateDir),
		mark:  engine.Mark(state.Key),

		instance:        state.Instance,
		formerInstances: []string{statedir.FormerInstance(state.Path), statedir.FormerInstance(spelt)},

		exec:   cniexec.Engine{},
		native: native.New(cfg.Logger, state.Instance).Lasting(!cfg.OneShot),
		steps:  native.NewForBinaries(cfg.Logger, state.Instance),

		ownsHost: new(atomic.Bool),
		recent:   new(recentTeardowns),

		warned:  new(warnings),
		engines: new(lastEngines),

		now:    time.Now,
		jitter: randomJitter,
		sleep:  sleep,

		gcPatience: gcPatience,
		together:   together,
	}, nil
}

func randomJitter(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	return rand.N(most)
}

// plan turns an allocation into the record of what is asked for it. It does not
// look at the host.
func (c *Configurator) plan(a *Allocation) (*record.Record, error) {
	ports, portErr := c.mappings(a)
	if err := errors.Join(validateAllocation(a), portErr); err != nil {
		return nil, err
	}
	r, err := c.newRecord(a, ports)
	if err != nil {
		return nil, err
	}
	return r, errors.Join(validateBounds(r), c.planConflists(r, a))
}

// mappings are the ports of an allocation, one per protocol.
func (c *Configurator) mappings(a *Allocation) ([]portmap.Mapping, error) {
	mappings, err := portmap.Mappings(a.Ports, portmap.Options{IgnoreHostIP: c.cfg.IgnorePortMappingHostIP})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidAllocation, err)
	}
	return mappings, nil
}

func (c *Configurator) newRecord(a *Allocation, ports []portmap.Mapping) (*record.Record, error) {
	capabilities, err := capabilityArgs(a, ports)
	return &record.Record{
		ID: a.ID, ContainerID: containerID(a), Scope: a.Scope, Netns: a.Netns, Phase: record.Adding, Engine: string(c.cfg.Engine),
		Asked: a.Networks, AskedPorts: a.Ports, Args: cniArgs(a), Capabilities: capabilities,
		Inline: len(a.Conflists) > 0, PluginDirs: a.PluginDirs, NetnsOverride: a.NetnsOverride, Interface: a.Interface, Previous: a.PrevResult, Instance: &c.instance, RequireAddress: a.RequireAddress,
		InterfacePrefix: c.cfg.InterfacePrefix, Ports: ports, Created: c.now(),
	}, err
}

// planConflists plans the networks that an allocation brings along.
func (c *Configurator) planConflists(r *record.Record, a *Allocation) error {
	for i, text := range a.Conflists {
		if err := validateDocument(fmt.Sprintf("conflists[%d]", i), text); err != nil {
			return err
		}
		n, err := conflist.Parse(text)
		if err != nil {
			return fmt.Errorf("%w: conflists[%d]: %w", ErrInvalidAllocation, i, err)
		}
		if n.IsOurs() {
			return fmt.Errorf("%w: conflists[%d]: type %q would call itself", ErrInvalidAllocation, i, conflist.OwnType)
		}
		if err := planNetwork(r, n); err != nil {
			return err
		}
	}
	return nil
}

// planNetworks finds the networks that a record asks for: its own, or those of
// the Config.
func (c *Configurator) planNetworks(r *record.Record) error {
	if r.Inline {
		return nil
	}
	names := r.Asked
	if len(names) == 0 {
		names = c.cfg.Networks
	}
	for _, name := range names {
		n, err := c.lookup(name)
		if err != nil {
			return err
		}
		if err := planNetwork(r, n); err != nil {
			return err
		}
	}
	return nil
}

// planNetwork adds a network to a record.
func planNetwork(r *record.Record, n *conflist.Network) error {
	for _, earlier := range r.Attachments {
		if earlier.Network == n.Name {
			return fmt.Errorf("%w: network %q is named twice", ErrInvalidAllocation, n.Name)
		}
	}
	declared, err := declaredBefore(r)
	if err := errors.Join(err, validateNetworkName(n)); err != nil {
		return err
	}
	if n, err = n.WithoutCapabilities(declared...); err != nil {
		return err
	}
	r.Attachments = append(r.Attachments, record.Attachment{
		Network: n.Name, IfName: interfaceName(r, n), Config: n.Bytes, Loopback: n.IsLoopback(),
	})
	return nil
}

// interfaceName is that of the next attachment of a record. A loopback network has
// the interface that every namespace has, and takes no number. What was asked for
// the first of the others is not given again.
func interfaceName(r *record.Record, n *conflist.Network) string {
	if n.IsLoopback() {
		return rtnl.LoopbackName
	}
	i := 0
	for _, a := range r.Attachments {
		if !a.Loopback {
			i++
		}
	}
	numbered := func(i int) string { return r.InterfacePrefix + strconv.Itoa(i) }
	switch {
	case r.Interface == "":
		return numbered(i)
	case i == 0:
		return r.Interface
	case numbered(i) == r.Interface:
		return numbered(0)
	}
	return numbered(i)
}

// primaryOf is the index of a record's primary attachment, the first one that is
// not a loopback network; 0 where all are.
func primaryOf(r *record.Record) int {
	return max(0, slices.IndexFunc(r.Attachments, func(a record.Attachment) bool { return !a.Loopback }))
}

func (c *Configurator) lookup(name string) (*conflist.Network, error) {
	n, err := c.confs.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknownNetwork, err)
	}
	return n, nil
}

// installed finds the plugins of a record that need a binary and have none.
func (c *Configurator) installed(r *record.Record) error {
	e, err := c.engine(r)
	errs := []error{err}
	if err != nil {
		return err
	}
	for _, a := range r.Attachments {
		n, err := conflist.Parse(a.Config)
		if err != nil {
			return err
		}
		for _, t := range e.Binaries(n.List) {
			dirs := c.pluginDirs(r.PluginDirs, t)
			path, err := invoke.FindInPath(t, dirs)
			if err != nil {
				errs = append(errs, fmt.Errorf("%w: network %q needs plugin %q, which is in none of %q; install it there or name its directory",
					ErrPluginNotInstalled, a.Network, t, dirs))
			} else if err := unix.Access(path, unix.X_OK); err != nil {
				errs = append(errs, fmt.Errorf("%w: network %q needs plugin %q, and %s cannot be executed: %w",
					ErrPluginNotInstalled, a.Network, t, path, err))
			}
		}
	}
	return errors.Join(errs...)
}

// request is a record as the engine wants it.
func (c *Configurator) request(r *record.Record) (*engine.Request, error) {
	req := &engine.Request{
		ID: r.Container(), Sandbox: r.Sandbox, Instance: c.instanceOf(r), Mark: c.markOf(r), Args: r.Args, Capabilities: r.Capabilities, InterfacePrefix: r.InterfacePrefix,
	}
	// Else it is gone, or, worse, its path leads to another one by now: the
	// specification has plugins do what they can without it.
	if r.Sandbox != nil {
		req.Netns = r.Netns
	}
	previous, err := previousOf(r)
	if err != nil { // of an earlier version, which did not look; no plugin has gone on from it
		previous = nil
	}
	var types []string
	for i, a := range r.Attachments {
		n, err := conflist.Parse(a.Config)
		if err != nil {
			return nil, fmt.Errorf("recorded configuration of network %q: %w", a.Network, err)
		}
		types = append(types, pluginTypes(n)...)
		attachment := engine.Attachment{List: n.List, Bytes: a.Config, IfName: a.IfName, Loopback: a.Loopback, Binaries: a.Binaries}
		if i == primaryOf(r) {
			attachment.Previous = previous
		}
		if a.Result != nil {
			// A result that contradicts itself was never acknowledged; DEL goes
			// without it.
			if result, err := engine.ParseResult(a.Result); err == nil {
				attachment.Result = result
			}
		}
		req.Attachments = append(req.Attachments, attachment)
	}
	req.PluginDirs = c.pluginDirs(r.PluginDirs, types...)
	return req, nil
}

// previousOf is the result that a record's first plugin goes on from. It is read
// anew for every operation, because an ADD may change it.
func previousOf(r *record.Record) (*types100.Result, error) {
	if r.Previous == nil {
		return nil, nil
	}
	result, err := engine.ParseResult(r.Previous)
	if err != nil {
		return nil, fmt.Errorf("%w: prevResult: %w", ErrInvalidAllocation, err)
	}
	return result, nil
}

// markOf tells the processes of a record's plugins from those of others that are
// for the same container.
func (c *Configurator) markOf(r *record.Record) string {
	if r.ContainerID == "" {
		return c.mark
	}
	return filepath.Join(c.mark, r.ID)
}
