package configurator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/exhausted"
	"github.com/allocnet/allocnet/internal/hostports"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
)

// setupFromPool is Setup of a new allocation with a slot of a pool. It returns nil without
// an error if there is no slot for the request; then the caller continues with an ordinary
// Setup. The caller holds the lock of the allocation.
func (c *Configurator) setupFromPool(ctx context.Context, a *Allocation, p *plan.Plan) (*Status, error) {
	pool := c.poolFor(a)
	if pool == nil || c.store.Has(a.ID) {
		return nil, nil
	}
	if _, err := os.Lstat(a.Netns); !errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	s := c.nextSlot(pool, a)
	if s == nil {
		return nil, nil
	}
	if plan.NeedsAddress(p.Record) && len(s.request.Attachments[0].Result.IPs) == 0 {
		c.putBack(pool, s)
		return nil, nil
	}
	locked, unlock, err := c.store.TryLocks([]string{s.ID})
	if err != nil || len(locked) == 0 { // another operation may be removing the slot
		c.putBack(pool, s)
		return nil, err
	}
	c.teardowns.forget(a.ID)
	t := &taking{Plan: p.Changed(func(*record.Record) {}), alloc: a, pool: pool, slot: s, unlockSlot: sync.OnceFunc(unlock)}
	defer t.unlockSlot()
	var status *Status
	err = c.step(ctx, StepTake, t.Record, func(ctx context.Context) (err error) {
		status, err = c.take(ctx, t)
		return err
	})
	return status, err
}

// taking is the Setup of an allocation with a slot of a pool. The plan is a copy of that of the
// allocation, with which an ordinary Setup begins if the slot cannot be used.
type taking struct {
	*plan.Plan
	alloc *Allocation
	pool  *pool
	slot  *slot
	// unlockSlot releases the lock of the slot's ID, which excludes its removal until its
	// record is that of the allocation. It may be called again.
	unlockSlot func()
}

// poolFor returns the pool of an allocation's network, nil if there is none or if the
// allocation requests anything that slots do not have.
func (c *Configurator) poolFor(a *Allocation) *pool {
	if len(c.pools) == 0 || !a.OwnNetns || a.WaitForPorts || len(a.Networks) > 1 || len(a.Conflists) > 0 || len(a.PluginDirs) > 0 ||
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
		i = slices.IndexFunc(c.pools, func(p *pool) bool { return c.isDefault(p.Network, networks[0]) })
	}
	if i < 0 {
		return nil
	}
	return c.pools[i]
}

// isDefault reports whether one of two names is "", the default network, and the other one is
// the name of that network.
func (c *Configurator) isDefault(a, b string) bool {
	if a != "" && b != "" {
		return false
	}
	n, err := c.lookup("")
	return err == nil && n.Name == a+b
}

// readByPlugins reports whether native plugins use one of the CNI_ARGS.
func readByPlugins(args map[string]string) bool {
	for _, key := range engine.AddressArgs {
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
		c.putBack(p, s)
		return nil
	}
	return s
}

// take binds a slot to an allocation: it records the intent, gives the namespace its name,
// publishes the host ports, and records the result. The network keeps the container ID of the
// slot. If something of the slot is missing, take discards it and returns nil without an error.
func (c *Configurator) take(ctx context.Context, t *taking) (*Status, error) {
	t.Netns, t.Namespace, t.Slot, t.Engine = t.alloc.Netns, t.slot.Namespace, t.slot.ID, t.slot.Engine
	t.Networks, t.Attachments = t.slot.Networks, slices.Clone(t.slot.Attachments)
	results := t.slot.resultsAt(t.Plan)
	listeners, err := c.admitTake(ctx, t.Plan)
	var unlock func()
	if err == nil {
		unlock, err = c.lockNetworks(ctx, t.Record)
	}
	if err != nil {
		c.putBack(t.pool, t.slot)
		return nil, err
	}
	defer unlock()
	err = c.reserveWith(ctx, t.Plan, t.slot.file.Take)
	t.unlockSlot()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.putBack(t.pool, t.slot)
		return nil, err
	}
	t.Sandbox = t.slot.sandbox
	if err != nil { // the record of the slot is missing
		return nil, c.undoTake(ctx, t, err)
	}
	status, err := c.bind(ctx, t, results)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, c.undoTake(ctx, t, err)
	}
	t.Sandbox = nil
	t.slot.file.Close()
	if err := t.slot.sandbox.Close(); err != nil {
		c.cfg.Logger.Warn("a descriptor of a network namespace could not be closed", "alloc", t.ID, "error", err)
	}
	t.pool.bound()
	status.Created, status.Warnings = true, c.hostPorts().Warnings(ctx, t.Ports, listeners, t.ID, status)
	return status, nil
}

// resultsAt returns the results of a slot with the path that its network namespace gets, and
// writes them into the record of the allocation.
func (s *slot) resultsAt(p *plan.Plan) []*types100.Result {
	path, _ := json.Marshal(s.Netns) // a string: there is no error
	now, _ := json.Marshal(p.Netns)
	var results []*types100.Result
	for i, a := range s.request.Attachments {
		p.Attachments[i].Result = bytes.ReplaceAll(s.Attachments[i].Result, path, now)
		r := *a.Result
		r.Interfaces = nil
		for _, itf := range a.Result.Interfaces {
			one := *itf
			if one.Sandbox == s.Netns {
				one.Sandbox = p.Netns
			}
			r.Interfaces = append(r.Interfaces, &one)
		}
		results = append(results, &r)
	}
	return results
}

// admitTake returns the errors with which an ordinary Setup refuses an allocation.
func (c *Configurator) admitTake(ctx context.Context, p *plan.Plan) (*hostports.Search, error) {
	if err := c.requireServed(p); err != nil {
		return nil, err
	}
	p.NoteUnserved()
	listeners := c.searchListeners(p.Record)
	return listeners, c.refuseListeners(ctx, listeners, p.ID)
}

// noteTaken notes that the network namespace of a slot is that of an allocation.
func (c *Configurator) noteTaken(s *slot, a *Allocation) error {
	if a.Scope == "" && a.Netns == filepath.Join(c.cfg.NetnsDir, a.ID) && c.store.MoveSandboxes(s.ID, a.ID) == nil {
		return nil
	}
	err := c.netns.Add(a.ID, record.Sandbox{Path: a.Netns, Identity: s.Namespace, Scope: a.Scope, Container: s.ID})
	return errors.Join(err, c.store.PutSandboxes(s.ID, nil))
}

// bind mounts the network namespace of a slot at its path, publishes the host ports, and
// records that the allocation is set up.
func (c *Configurator) bind(ctx context.Context, t *taking, results []*types100.Result) (*Status, error) {
	if err := c.noteTaken(t.slot, t.alloc); err != nil {
		return nil, err
	}
	if _, err := t.Sandbox.Mount(ctx, c.cfg.NetnsDir, filepath.Base(t.Netns)); err != nil {
		return nil, err
	}
	arguments, err := t.Arguments()
	if err != nil {
		return nil, err
	}
	request := *t.slot.request
	request.Netns, request.Args, request.Capabilities = t.Netns, t.Args, arguments
	addCtx, cancel := c.withAddTimeout(ctx)
	defer cancel()
	if err := c.native.Bind(addCtx, t.slot.prepared, &request, c.isUnchanged(t.slot)); err != nil {
		return nil, err
	}
	c.holdForTaker(t.slot, t.alloc)
	status, err := plan.StatusFrom(t.Record, results)
	if status, err = plan.WithAddress(t.Record, status, err); err != nil {
		return nil, err
	}
	ready := *t.Record
	ready.Phase, ready.Updated = record.Ready, c.now()
	return status, t.slot.file.Update(&ready)
}

// undoTake removes what a failed take has made, under both names, and the slot. It returns an
// error only if something may be left, or if the context has ended: otherwise an ordinary
// Setup finds the cause.
func (c *Configurator) undoTake(ctx context.Context, t *taking, cause error) error {
	c.cfg.Logger.Warn("a prepared network namespace could not be used; setting the allocation up without it", "alloc", t.ID, "error", redact.Text(cause.Error()))
	ended := ctx.Err()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	errs := []error{ended, c.removeLocked(ctx, t.Plan)}
	t.Sandbox = nil
	errs = append(errs, c.discard(t.pool, []*slot{t.slot}))
	if ended == nil && !errors.Is(cause, ErrPortTaken) && !exhausted.Is(cause) {
		t.pool.discardAll()
	}
	_, err := c.netns.Destroy(t.ID, netns.Every)
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("set up allocation %q from a pool: %w", t.ID, errors.Join(cause, err))
	}
	return nil
}
