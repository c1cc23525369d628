package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	gocni "github.com/containerd/go-cni"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// system is one way to create allocations. add and del are safe for concurrent
// use on different slots.
type system interface {
	name() string
	add(context.Context, *slot) error
	del(context.Context, *slot) error
	// close removes the shared objects of the network that the benchmark
	// created.
	close(context.Context) error
}

// The names of the systems.
const (
	baselineName = "baseline"
	nativeName   = "native"
	execName     = "exec"
	goCNIName    = "go-cni"
)

// environment is what all measurements of a run share.
type environment struct {
	pool
	plugins  string // directory of the reference plugins; "" measures without them
	module   string // directory of the module
	programs string // directory of the built programs; "" for not yet
	networks int    // number of networks so far
	progress func(format string, args ...any)
}

// errNoNative: configurator.New refuses EngineNative, or the engine lacks a
// plugin.
var errNoNative = errors.New("this build cannot do it without plugin binaries")

// newNetwork returns a network that no other system has.
func (e *environment) newNetwork(system, kind string, dual bool) *network {
	e.networks++
	return &network{name: fmt.Sprintf("%s-%d", system, e.networks), kind: kind, number: e.networks, dual: dual}
}

// open creates a system with its own network.
func (e *environment) open(ctx context.Context, name, kind string, dual bool) (system, error) {
	n := e.newNetwork(name, kind, dual)
	switch name {
	case baselineName:
		return newBaseline(ctx, n)
	case nativeName:
		return e.newConfigured(ctx, n, name, configurator.EngineNative)
	case execName:
		return e.newConfigured(ctx, n, name, configurator.EngineExec)
	case goCNIName:
		return e.newBare(n)
	}
	return nil, fmt.Errorf("there is no system %q", name)
}

// openAll creates those of the named systems that this build supports. It
// reports each other one in every measurement, except those whose plugins are
// missing.
func (e *environment) openAll(ctx context.Context, kind string, dual bool, names ...string) (map[string]system, error) {
	systems := map[string]system{}
	for _, name := range names {
		if e.plugins == "" && slices.Contains([]string{execName, goCNIName}, name) {
			continue
		}
		s, err := e.open(ctx, name, kind, dual)
		if errors.Is(err, errNoNative) {
			e.progress("  without %s: %v", name, err)
			continue
		}
		if err != nil {
			return nil, errors.Join(err, closeAll(ctx, systems))
		}
		systems[name] = s
	}
	return systems, nil
}

func closeAll(ctx context.Context, systems map[string]system) error {
	var errs []error
	for _, s := range systems {
		errs = append(errs, s.close(ctx))
	}
	return errors.Join(errs...)
}

// configured is the configurator with one of its engines.
type configured struct {
	*configurator.Configurator
	label, bridge string
}

func (e *environment) newConfigured(ctx context.Context, n *network, label string, engine configurator.Engine, change ...func(*configurator.Config)) (*configured, error) {
	if err := n.write(); err != nil {
		return nil, err
	}
	cfg := configurator.Config{
		Network: n.name, ConfDir: confDir, PluginDirs: []string{e.plugins},
		StateDir: workDir + "/state-" + n.name, Engine: engine,
		// An ADD that succeeds only in a second attempt counts as failed.
		Retry: configurator.RetryPolicy{Attempts: 1},
		// A Teardown returns when everything is deleted, as that of the other systems.
		Backlog: -1,
	}
	for _, f := range change {
		f(&cfg)
	}
	if engine == configurator.EngineNative {
		// Without binaries, the engine cannot fall back to them, which would be
		// measured instead.
		cfg.PluginDirs = []string{workDir + "/no-plugins"}
	}
	c, err := configurator.New(cfg)
	if err == nil {
		err = c.Ready(ctx)
	}
	absent := errors.Is(err, configurator.ErrInvalidConfig) || errors.Is(err, configurator.ErrPluginNotInstalled)
	if engine == configurator.EngineNative && absent {
		return nil, fmt.Errorf("%w: %w", errNoNative, err)
	}
	if err != nil {
		return nil, err
	}
	s := &configured{Configurator: c, label: label}
	if n.kind == "bridge" {
		s.bridge = n.bridge()
	}
	return s, nil
}

func (c *configured) name() string { return c.label }

func (c *configured) add(ctx context.Context, s *slot) error {
	return c.setup(ctx, configurator.Allocation{ID: s.id, Netns: s.netns, Ports: s.ports()})
}

func (c *configured) setup(ctx context.Context, a configurator.Allocation) error {
	if _, err := c.Setup(ctx, a); err != nil {
		return fmt.Errorf("%s: set up %q: %w", c.label, a.ID, err)
	}
	return nil
}

func (c *configured) del(ctx context.Context, s *slot) error {
	if err := c.Teardown(ctx, configurator.Allocation{ID: s.id, Netns: s.netns}); err != nil {
		return fmt.Errorf("%s: tear down %q: %w", c.label, s.id, err)
	}
	return nil
}

func (c *configured) close(context.Context) error { return removeBridge(c.bridge) }

// bare is go-cni itself.
type bare struct {
	cni    gocni.CNI
	bridge string
}

func (e *environment) newBare(n *network) (*bare, error) {
	conf, err := n.conflist()
	if err != nil {
		return nil, err
	}
	cni, err := gocni.New(gocni.WithPluginDir([]string{e.plugins}), gocni.WithConfListBytes(conf))
	if err != nil {
		return nil, fmt.Errorf("load network %q: %w", n.name, err)
	}
	b := &bare{cni: cni}
	if n.kind == "bridge" {
		b.bridge = n.bridge()
	}
	return b, nil
}

func (b *bare) name() string { return goCNIName }

func (b *bare) add(ctx context.Context, s *slot) error {
	ports, err := portmap.Mappings(s.ports(), portmap.Options{})
	if err != nil {
		return err
	}
	if _, err := b.cni.SetupSerially(ctx, s.id, s.netns, gocni.WithCapability("portMappings", ports)); err != nil {
		return fmt.Errorf("go-cni: set up %q: %w", s.id, err)
	}
	return nil
}

func (b *bare) del(ctx context.Context, s *slot) error {
	ports, err := portmap.Mappings(s.ports(), portmap.Options{})
	if err != nil {
		return err
	}
	if err := b.cni.Remove(ctx, s.id, s.netns, gocni.WithCapability("portMappings", ports)); err != nil {
		return fmt.Errorf("go-cni: remove %q: %w", s.id, err)
	}
	return nil
}

func (b *bare) close(context.Context) error { return removeBridge(b.bridge) }

// removeBridge removes the bridge that plugins leave, if there is one.
func removeBridge(name string) error {
	if name == "" {
		return nil
	}
	if _, err := os.Stat("/sys/class/net/" + name); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	sockets, err := (&baseline{}).take()
	if err != nil {
		return err
	}
	return errors.Join(sockets.links.do(delLinkMessage(name)), sockets.links.close(), sockets.rules.close())
}
