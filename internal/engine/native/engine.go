package native

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/bridges"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/state/policystate"
	"github.com/allocnet/allocnet/internal/state/subnetenv"
	"github.com/allocnet/allocnet/internal/state/switches"
)

// Engine implements engine.Engine. It opens its sockets at first use, in the
// network namespace of the process. Close, or the garbage collector, closes
// them. Until then, what the process holds of the guard stays, if the engine is
// long-lived: also if another engine has made it.
type Engine struct {
	log       hclog.Logger
	instance  string
	plugins   map[string]sdk.Factory
	longLived bool
	boot      func() (string, error)
	policies  *policystate.Store
	rulesSeen string // a directory: see RecordRulesIn
	switches  *switches.Store
	bridges   *bridges.Store
	mu        sync.Mutex
	host      *sdk.Host
	hold      *sdk.GuardHold  // nil unless the engine is long-lived
	forget    runtime.Cleanup // closes the host when the engine is collected
}

var _ engine.Engine = (*Engine)(nil)

// New returns the engine of an instance: see package statedir. It opens nothing
// yet.
func New(log hclog.Logger, instance string) *Engine {
	return &Engine{log: log, instance: instance, plugins: builtin.Plugins}
}

// LongLived sets whether the process continues after an operation, and returns
// the engine. Call it before the first operation.
func (e *Engine) LongLived(longLived bool) *Engine {
	if e.longLived = longLived; longLived {
		e.share()
	}
	return e
}

// share gets a share in the guard that the process holds.
func (e *Engine) share() {
	e.hold = sdk.NewGuardHold()
	runtime.AddCleanup(e, func(g *sdk.GuardHold) { _ = g.Release() }, e.hold)
}

// InBoot sets the function that returns the ID of this boot of the host, and returns the
// engine. The default is boot.ID. Call it before the first operation.
func (e *Engine) InBoot(id func() (string, error)) *Engine {
	e.boot = id
	return e
}

// WithPolicies sets the store of network policies, and returns the engine. The default has none.
// Call it before the first operation.
func (e *Engine) WithPolicies(store *policystate.Store) *Engine {
	e.policies = store
	return e
}

// RecordRulesIn sets the directory in which the engine records complete rules of iptables, so that it, and
// later processes, recognise them without running iptables; and returns the engine. The default is none.
// Call it before the first operation.
func (e *Engine) RecordRulesIn(dir string) *Engine {
	e.rulesSeen = dir
	return e
}

// RecordHostIn sets the records of the switches of the host that the engine changes, and of the bridges that it creates,
// and returns the engine. The default is none. Call it before the first operation.
func (e *Engine) RecordHostIn(s *switches.Store, b *bridges.Store) *Engine {
	e.switches, e.bridges = s, b
	return e
}

// NewForBinaries returns an engine that runs all plugins as binaries.
func NewForBinaries(log hclog.Logger, instance string) *Engine {
	return &Engine{log: log, instance: instance}
}

// open returns the host. It opens the sockets on the first call.
func (e *Engine) open() (*sdk.Host, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.host != nil {
		return e.host, nil
	}
	host, err := sdk.OpenHost(e.log)
	if err != nil {
		return nil, err
	}
	// The cleanup has a copy without the fields that may refer to the engine, which would never
	// be collected.
	opened := *host
	e.forget = runtime.AddCleanup(e, func(h *sdk.Host) { h.Close() }, &opened)
	if e.longLived && e.hold == nil {
		e.share()
	}
	host.Accept.CacheIn(e.rulesSeen)
	host.Cache, host.Hold, host.Policies = &sdk.TTLCache{}, e.hold, e.policies
	host.Switches, host.Bridges = e.switches, e.bridges
	if e.policies != nil {
		policed := &sdk.Host{Kernel: host.Kernel, Rules: host.Rules, Conntrack: host.Conntrack, Policies: e.policies, Log: host.Log}
		host.AfterRules(func(ctx context.Context) error { return policy.EndDenied(ctx, policed) })
	}
	if e.boot != nil {
		host.Boot = e.boot
	}
	e.host = host
	return host, nil
}

// Close closes the engine's sockets. No operation may be running; a later
// operation opens them again.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	host, hold := e.host, e.hold
	e.host, e.hold = nil, nil
	if host == nil {
		return hold.Release()
	}
	e.forget.Stop()
	return host.Close() // which releases the hold
}

// exec returns the runner of one operation.
func (e *Engine) exec(r *engine.Request) (*sdk.Exec, error) {
	host, err := e.open()
	if err != nil {
		return nil, err
	}
	instance := e.instance
	if r.Instance != nil {
		instance = *r.Instance
	}
	return &sdk.Exec{Plugins: e.plugins, Host: host, Instance: instance, Binary: &pluginexec.Exec{}, Netns: r.Netns, Open: r.Sandbox}, nil
}

// Add implements engine.Engine.
func (e *Engine) Add(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
	exec, err := e.exec(r)
	if err != nil {
		return nil, fmt.Errorf("ADD allocation %q: %w: %w", r.ID, engine.ErrNothingDone, err)
	}
	defer exec.Close()
	if err := prepareSandbox(exec, r); err != nil {
		return nil, fmt.Errorf("ADD allocation %q: %w: %w", r.ID, engine.ErrNothingDone, err)
	}
	results := make([]*types100.Result, len(r.Attachments))
	for i, a := range r.Attachments {
		c, result, err := e.newChain(exec, r, i), a.Previous, error(nil)
		if err = c.network.err; err != nil {
			return results, fmt.Errorf("ADD allocation %q: network %q: %w", r.ID, a.Network.Name, err)
		}
		c.others = func(result *types100.Result) ([]attached, error) {
			if a.Loopback {
				return nil, nil
			}
			soFar := slices.Clone(results)
			soFar[i] = result
			return e.attachments(ctx, exec, r, soFar)
		}
		if result, err = c.add(ctx, result); err == nil {
			err = engine.Validate(result)
		}
		if err != nil {
			return results, fmt.Errorf("ADD allocation %q: network %q: %w", r.ID, a.Network.Name, err)
		}
		results[i] = result
	}
	return results, nil
}

// prepareSandbox brings up loopback if no plugin does it, and verifies that the
// interface names are free.
func prepareSandbox(exec *sdk.Exec, r *engine.Request) error {
	s, err := exec.Sandbox(r.Netns)
	if err != nil {
		return err
	}
	for i, a := range r.Attachments {
		if a.Loopback || a.Previous != nil { // the interface is expected to exist
			continue
		}
		taken, err := s.Has(r.IfName(i))
		if err != nil {
			return err
		}
		if taken {
			return fmt.Errorf("%w: %q has an interface %q already", engine.ErrInUse, r.Netns, r.IfName(i))
		}
	}
	for _, a := range r.Attachments {
		for _, p := range a.Network.List.Plugins {
			if p.Network.Type == "loopback" {
				return nil
			}
		}
	}
	return s.SetUp(rtnl.Loopback)
}

// Check implements engine.Engine.
func (e *Engine) Check(ctx context.Context, r *engine.Request) error {
	exec, err := e.exec(r)
	if err != nil {
		return fmt.Errorf("CHECK allocation %q: %w", r.ID, err)
	}
	defer exec.Close()
	var unsupported []error
	for i, a := range r.Attachments {
		err := e.checkChain(ctx, e.newChain(exec, r, i), a)
		if err == nil {
			continue
		}
		err = fmt.Errorf("CHECK allocation %q: network %q: %w", r.ID, a.Network.Name, err)
		if !errors.Is(err, engine.ErrCheckUnsupported) {
			return err
		}
		unsupported = append(unsupported, err)
	}
	shared, err := e.crossingsOf(ctx, exec, r)
	for i := 0; i < len(shared) && err == nil; i++ {
		err = exec.Host.Rules.Check(ctx, shared[i])
	}
	if err != nil {
		return fmt.Errorf("CHECK allocation %q: %w", r.ID, err)
	}
	return errors.Join(unsupported...)
}

// checkChain runs CHECK of one network. CNI has no CHECK before version 0.4.0, but native plugins
// have one in every version, with which they are checked if all plugins run in-process. A binary of
// such a version may have changed what the plugins before it report, because nothing compares that.
// Results of versions before 0.3.0 have no interfaces, so nothing can be compared with them.
func (e *Engine) checkChain(ctx context.Context, c *chain, a engine.Attachment) error {
	if a.Network.List.DisableCheck {
		return nil
	}
	oldest := "0.4.0"
	if len(a.Binaries) == 0 && len(e.Binaries(a.Network)) == 0 {
		oldest = "0.3.0"
	}
	since, err := version.GreaterThanOrEqualTo(a.Network.List.CNIVersion, oldest)
	if err == nil && !since {
		err = fmt.Errorf("%w: cniVersion %s", engine.ErrCheckUnsupported, a.Network.List.CNIVersion)
	}
	for i := 0; i < len(a.Network.List.Plugins) && err == nil; i++ {
		err = c.check(ctx, i, a.Result)
	}
	return err
}

// Del implements engine.Engine. It continues after errors of plugins and joins them. It runs no
// plugin before the processes of an interrupted ADD have ended, which could make again what DEL
// removes, and before the elements of crossings are removed: DEL releases addresses that the
// allocation could still use by them, and another one gets.
func (e *Engine) Del(ctx context.Context, r *engine.Request) error {
	if r.Interrupted && e.ranBinaries(r) {
		if err := pluginexec.KillOrphans(r.Work()); err != nil {
			return fmt.Errorf("DEL allocation %q: %w", r.ID, err)
		}
	}
	exec, err := e.exec(r)
	if err != nil {
		return fmt.Errorf("DEL allocation %q: %w", r.ID, err)
	}
	defer exec.Close()
	if err := e.delCrossings(ctx, exec, r); err != nil {
		return fmt.Errorf("DEL allocation %q: %w", r.ID, err)
	}
	var errs []error
	for i, a := range slices.Backward(r.Attachments) {
		c := e.newChain(exec, r, i)
		for j, p := range slices.Backward(a.Network.List.Plugins) {
			if err := c.run(ctx, "DEL", j, a.Result); err != nil {
				at := engine.Place{Attachment: i, Plugin: j}
				errs = append(errs, &engine.DelError{Place: at, Network: a.Network.Name, Config: p.Bytes, Err: err})
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("DEL allocation %q: %w", r.ID, err)
	}
	return nil
}

// Disconnect disconnects an allocation before DEL: see sdk.Disconnecter. If a plugin
// cannot, or if one runs as a binary, the error is sdk.ErrNeedsDel.
func (e *Engine) Disconnect(ctx context.Context, r *engine.Request) error {
	if slices.ContainsFunc(r.Attachments, func(a engine.Attachment) bool { return len(e.Binaries(a.Network)) > 0 }) {
		return sdk.ErrNeedsDel
	}
	exec, err := e.exec(r)
	if err != nil {
		return fmt.Errorf("disconnect allocation %q: %w", r.ID, err)
	}
	defer exec.Close()
	if err := e.delCrossings(ctx, exec, r); err != nil {
		return fmt.Errorf("disconnect allocation %q: %w", r.ID, err)
	}
	for i, a := range slices.Backward(r.Attachments) {
		if err := disconnectChain(ctx, e.newChain(exec, r, i), a); err != nil {
			return fmt.Errorf("disconnect allocation %q: network %q: %w", r.ID, a.Network.Name, err)
		}
	}
	return nil
}

func disconnectChain(ctx context.Context, c *chain, a engine.Attachment) error {
	c.common.Removals = &sdk.Removals{}
	for i := range slices.Backward(a.Network.List.Plugins) {
		if err := c.run(ctx, sdk.Disconnect, i, a.Result); err != nil {
			return err
		}
	}
	return c.common.Removals.Apply(ctx, c.exec.Host)
}

// ranBinaries reports whether a plugin of the request may have run as a binary.
func (e *Engine) ranBinaries(r *engine.Request) bool {
	return slices.ContainsFunc(r.Attachments, func(a engine.Attachment) bool {
		return len(a.Binaries) > 0 || a.Binaries == nil && len(e.Binaries(a.Network)) > 0
	})
}

// Repair restores what another program removed from the host: rules, addresses
// of gateways, sysctls; and what it changed of the container's interface, if all plugins
// run in-process, else only its source rules and accept_ra. CHECK reports what Repair cannot restore. Plugin binaries have
// no such command. What Restore can restore comes
// first and at once, so that no rule that opens the way for packets is there before the policy.
func (e *Engine) Repair(ctx context.Context, r *engine.Request) error {
	if _, err := e.Restore(ctx, []*engine.Request{r}); err != nil {
		return err
	}
	exec, err := e.exec(r)
	if err != nil {
		return fmt.Errorf("repair allocation %q: %w", r.ID, err)
	}
	defer exec.Close()
	exec.Host.Cache.Clear()
	errs := []error{exec.Host.Rules.Repair(ctx)}
	for i, a := range r.Attachments {
		c := e.newChain(exec, r, i)
		for i := range a.Network.List.Plugins {
			err := c.run(ctx, sdk.Repair, i, a.Result)
			if err != nil {
				errs = append(errs, fmt.Errorf("network %q: %w", a.Network.Name, err))
			}
			if errors.Is(err, lease.ErrTaken) || errors.Is(err, ruleset.ErrAddressTaken) {
				break // the rules for the address are those of another container
			}
		}
	}
	shared, err := e.crossingsOf(ctx, exec, r)
	errs = append(errs, err)
	for _, elements := range shared {
		errs = append(errs, exec.Host.Rules.Add(ctx, elements))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("repair allocation %q: %w", r.ID, err)
	}
	return nil
}

// GuardLoopback protects the host's loopback addresses from other hosts, as the
// native portmap plugin does, if a binary publishes the ports.
func (e *Engine) GuardLoopback(ctx context.Context) error {
	host, err := e.open()
	if err != nil {
		return err
	}
	return errors.Join(host.Guard(ctx, ruleset.IPv4), host.Rules.Repair(ctx))
}

// Status implements engine.Engine. STATUS exists since CNI version 1.1.0. The native flannel
// reports in every version that there is no subnet: nothing else would.
func (e *Engine) Status(ctx context.Context, dirs []string, n *conflist.Network) error {
	exec, err := e.exec(&engine.Request{})
	if err != nil {
		return fmt.Errorf("STATUS of network %q: %w", n.Name, err)
	}
	defer exec.Close()
	since, err := version.GreaterThanOrEqualTo(n.List.CNIVersion, "1.1.0")
	c := e.newChain(exec, &engine.Request{PluginDirs: dirs, Attachments: []engine.Attachment{{Network: n}}}, 0)
	binaries := e.Binaries(n)
	for i, p := range n.List.Plugins {
		ownFlannel := p.Network.Type == subnetenv.Type && !slices.Contains(binaries, subnetenv.Type)
		if err == nil && (since || ownFlannel) {
			err = c.run(ctx, "STATUS", i, nil)
		}
	}
	if err != nil {
		return fmt.Errorf("STATUS of network %q: %w", n.Name, err)
	}
	return nil
}

// GC implements engine.Engine. Native plugins support GC in every CNI version, binaries
// since 1.1.0.
func (e *Engine) GC(ctx context.Context, dirs []string, n *conflist.Network, valid []types.GCAttachment) error {
	if n.List.DisableGC {
		return nil
	}
	exec, err := e.exec(&engine.Request{})
	if err != nil {
		return err
	}
	defer exec.Close()
	binaries := e.Binaries(n)
	knows, err := version.GreaterThanOrEqualTo(n.List.CNIVersion, "1.1.0")
	errs := []error{err}
	c := e.newChain(exec, &engine.Request{PluginDirs: dirs, Attachments: []engine.Attachment{{Network: n}}}, 0)
	for i, p := range n.List.Plugins {
		if knows || !slices.Contains(binaries, p.Network.Type) {
			errs = append(errs, c.collect(ctx, i, valid))
		}
	}
	return errors.Join(errs...)
}
