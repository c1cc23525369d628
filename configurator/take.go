package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/record"
)

// setupFromPool is Setup of a new allocation with a slot of a pool. It returns nil without
// an error if there is no slot for the request; then the caller continues with an ordinary
// Setup. The caller holds the lock of the allocation.
func (c *Configurator) setupFromPool(ctx context.Context, a *Allocation, p *plan) (*Status, error) {
	pool := c.poolFor(a)
	if pool == nil || c.hasRecord(a.ID) {
		return nil, nil
	}
	if _, err := os.Lstat(a.Netns); !errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	s := c.nextSlot(pool, a)
	if s == nil {
		return nil, nil
	}
	c.teardowns.forget(a.ID)
	var status *Status
	err := c.step(ctx, StepTake, p.Record, func(ctx context.Context) (err error) {
		status, err = c.take(ctx, pool, s, a, p)
		return err
	})
	return status, err
}

// poolFor returns the pool of an allocation's network, nil if there is none or if the
// allocation requests anything that slots do not have.
func (c *Configurator) poolFor(a *Allocation) *pool {
	if len(c.pools) == 0 || !a.OwnNetns || len(a.Networks) > 1 || len(a.Conflists) > 0 || len(a.PluginDirs) > 0 ||
		a.PrevResult != nil || a.ContainerID != "" && a.ContainerID != a.ID || a.Interface != "" || a.NetnsOverride ||
		a.DNS != nil || a.Bandwidth != nil || len(a.IPs) > 0 || len(a.IPRanges) > 0 || a.MAC != "" || a.CgroupPath != "" ||
		len(a.Capabilities) > 0 || readByPlugins(a.Args) || readByPlugins(a.SchedulerArgs) {
		return nil
	}
	networks := a.Networks
	if len(networks) == 0 {
		networks = c.cfg.Networks
	}
	if len(networks) != 1 {
		return nil
	}
	i := slices.IndexFunc(c.pools, func(p *pool) bool { return p.Network == networks[0] })
	if i < 0 {
		return nil
	}
	return c.pools[i]
}

// readByPlugins reports whether native plugins use one of the CNI_ARGS.
func readByPlugins(args map[string]string) bool {
	for _, key := range []string{"IP", "GATEWAY", "MAC"} {
		if _, ok := args[key]; ok {
			return true
		}
	}
	return false
}

// nextSlot takes a slot of the network's current configuration out of the pool; nil if there
// is none, or if the allocation gets its addresses of an earlier boot. Slots of other
// configurations stay for watchPool.
func (c *Configurator) nextSlot(p *pool, a *Allocation) *slot {
	n, err := c.lookup(p.Network)
	if err != nil || c.hasFormer(a, n) {
		return nil
	}
	s := p.take()
	if s != nil && !s.isOf(n) {
		p.putBack(s)
		return nil
	}
	return s
}

// take binds a slot to an allocation: it records the intent, gives the namespace its name and
// the network its owner and host ports, and records the result. If something of the slot is
// missing, take discards it and returns nil without an error.
func (c *Configurator) take(ctx context.Context, pool *pool, s *slot, a *Allocation, p *plan) (*Status, error) {
	former := *s.Record // the record of the slot
	p.Netns, p.Namespace, p.Slot, p.Engine = a.Netns, s.Namespace, s.ID, s.Engine
	p.networks, p.Attachments = s.networks, slices.Clone(s.Attachments)
	for i := range p.Attachments {
		p.Attachments[i].Result = nil // nothing has this allocation's names yet
	}
	listeners, err := c.admitTake(p)
	if err != nil {
		pool.putBack(s)
		return nil, err
	}
	unlock, err := c.lockNetworks(ctx, p.Record)
	if err != nil {
		pool.putBack(s)
		return nil, err
	}
	defer unlock()
	if err := c.reserve(ctx, p); err != nil {
		pool.putBack(s)
		return nil, err
	}
	p.Sandbox = s.sandbox
	results, err := c.handOver(ctx, s.request, a, p)
	if err != nil {
		return nil, c.undoTake(ctx, pool, s, a, p, err)
	}
	status, err := c.recordTaken(p, results)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = c.store.DeleteSlot(&former)
	}
	if err != nil {
		p.Phase = record.Ready
		return nil, c.undoTake(ctx, pool, s, a, p, err)
	}
	p.Sandbox = nil
	if err := s.sandbox.Close(); err != nil {
		c.cfg.Logger.Warn("a descriptor of a network namespace could not be closed", "alloc", p.ID, "error", err)
	}
	pool.release()
	status.Created, status.Warnings = true, c.warnings(listeners, p.Record, status)
	return status, nil
}

// admitTake returns the errors with which an ordinary Setup refuses an allocation.
func (c *Configurator) admitTake(p *plan) (*listenerSearch, error) {
	if err := c.requireServed(p); err != nil {
		return nil, err
	}
	noteUnserved(p)
	return c.searchListeners(p.Record)
}

// handOver mounts the network namespace of a slot at its path, and gives its network to the
// allocation.
func (c *Configurator) handOver(ctx context.Context, from *engine.Request, a *Allocation, to *plan) ([]*types100.Result, error) {
	wants := *from
	wants.ID, wants.Netns, wants.Tag = to.Container(), to.Netns, c.processTagOf(to.Record)
	wants.Args, wants.Capabilities = to.Args, to.Capabilities
	if err := c.noteNetns(a.ID, record.Sandbox{Path: a.Netns, Identity: to.Namespace, Scope: a.Scope}); err != nil {
		return nil, err
	}
	if _, err := to.Sandbox.Mount(c.cfg.NetnsDir, filepath.Base(a.Netns)); err != nil {
		return nil, err
	}
	ctx, cancel := c.withAddTimeout(ctx)
	defer cancel()
	return c.native.Handover(ctx, from, &wants)
}

// recordTaken selects the status and records that the allocation is set up.
func (c *Configurator) recordTaken(p *plan, results []*types100.Result) (*Status, error) {
	if err := keepResults(p, results); err != nil {
		return nil, err
	}
	status, err := statusFrom(p.Record, results)
	if status, err = withAddress(p.Record, status, err); err != nil {
		return nil, err
	}
	ready := *p.Record
	ready.Phase, ready.Updated = record.Ready, c.now()
	return status, c.store.Update(&ready)
}

// undoTake removes what a failed take has made, under both names, and the slot. It returns an
// error only if something may be left, or if the context has ended: otherwise an ordinary
// Setup finds the cause.
func (c *Configurator) undoTake(ctx context.Context, pool *pool, s *slot, a *Allocation, p *plan, cause error) error {
	c.cfg.Logger.Warn("a prepared network namespace could not be used; setting the allocation up without it", "alloc", p.ID, "error", redact.Text(cause.Error()))
	ended := ctx.Err()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	errs := []error{ended, c.removeLocked(ctx, p)}
	p.Sandbox = nil
	errs = append(errs, c.discard(pool, []*slot{s}))
	pool.release()
	_, err := c.destroyNotedNetns(a.ID, every)
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("set up allocation %q from a pool: %w", p.ID, errors.Join(cause, err))
	}
	p.drop()
	fresh, err := c.planSetup(a)
	if err == nil {
		*p = *fresh
	}
	return err
}
