package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// Setup attaches an allocation to its networks and returns what came of it.
//
// It is idempotent: an allocation that is set up already is CHECKed, and where
// it is not as it was set up, it is taken down and set up again, on the same
// networks but maybe with another address. Where it cannot be checked it is left
// as it is (ErrNotChecked). A different allocation under the same ID is
// ErrDifferent. Status.Created tells which of the two happened; with MustBeNew, an
// allocation that exists is ErrExists.
//
// A request that plugins cannot be given, or that none of them serves
// (ErrUnserved), and a process without the privileges (ErrUnprivileged) are refused
// before anything is done or recorded.
//
// The namespace must be the allocation's own: one that another allocation has,
// or in which an interface of the wanted name exists, is ErrInUse. An allocation that is
// set up in another namespace is ErrDifferent while that one lives. After it was destroyed,
// with the interfaces in it, the allocation is torn down and set up in the new one.
//
// An ADD that fails is rolled back, and tried again if its error can pass (CNI
// codes 1 to 7, a broken result and the end of the context cannot). When an ADD
// failed for good, nothing of the allocation is left on the host, unless the
// error is ErrIncomplete: then its record is kept, for Teardown or GC to go on.
// The same applies if the context ends before Setup returns, even if every plugin
// succeeded. An allocation that already existed is left in place.
//
// The deadline of the context is divided between the attempts and the clean-up: each
// ADD ends a quarter of the time that is left before the deadline, at most 5 seconds,
// so that its DEL fits in, and after Config.Timeout at the latest. Waits between attempts
// end with the context. A caller that cancels gets the DEL all the same, within 5
// seconds. The removal by force, which runs no plugin, may take up to 3 seconds longer
// than the context.
//
// Errors, beside those and the ones of errors.go: *portmap.ConflictError names
// the allocation that has a port already; *types.Error is what a plugin said.
func (c *Configurator) Setup(ctx context.Context, a Allocation) (status *Status, err error) {
	err = c.operation(ctx, "setup", a.ID, func(ctx context.Context) error {
		p, unlock, err := c.lockForSetup(ctx, &a)
		if err != nil {
			return err
		}
		defer unlock()
		made, err := c.makeNetns(&a)
		if err != nil {
			return err
		}
		if status, err = c.setup(ctx, a, p); err != nil && made {
			err = c.unmakeNetns(&a, err)
		}
		return err
	})
	return status, err
}

// lockForSetup plans what an allocation requests, and locks the allocation.
func (c *Configurator) lockForSetup(ctx context.Context, a *Allocation) (p *plan, unlock func(), err error) {
	if err := c.nameNetns(a); err != nil {
		return nil, nil, err
	}
	p, err = c.planSetup(a)
	if err := errors.Join(err, ctx.Err()); err != nil {
		return nil, nil, err
	}
	if err := c.requirePrivileges(); err != nil {
		return nil, nil, err
	}
	if unlock, err = c.lock(ctx, a.ID); err != nil {
		return nil, nil, err
	}
	if err := c.requireNew(a); err != nil {
		unlock()
		return nil, nil, err
	}
	return p, unlock, nil
}

// requireNew returns ErrExists for an allocation that must be new, if one is set up under
// its ID or its record does not tell. The caller holds the lock of the allocation.
func (c *Configurator) requireNew(a *Allocation) error {
	if !a.MustBeNew {
		return nil
	}
	r, err := c.store.Get(a.ID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("set up allocation %q: %w, or may do so: %w", a.ID, ErrExists, err)
	case r.Phase == record.Ready:
		return fmt.Errorf("set up allocation %q: %w", a.ID, ErrExists)
	}
	return nil
}

// setup is Setup of an allocation that is locked, and whose network namespace exists. It
// reserves ports and namespace, records the intent, runs ADD and records the result.
func (c *Configurator) setup(ctx context.Context, a Allocation, p *plan) (*Status, error) {
	c.teardowns.forget(a.ID)
	release, netnsErr := bindNetns(p.Record)
	defer release()
	current, err := c.currentPlan(ctx, a)
	if err != nil {
		return nil, err
	}
	if current != nil && !c.lostNetns(current, p.Record) {
		return c.setupExisting(ctx, current, p.Record)
	}
	if current != nil {
		c.cfg.Logger.Warn("the network namespace of the allocation was replaced and the old one is gone; setting it up again", "alloc", p.ID, "netns", p.Netns)
		if err := c.remove(ctx, current); err != nil {
			return nil, err
		}
	}
	if netnsErr != nil {
		return nil, netnsErr
	}
	if err := c.step(ctx, StepPlan, p.Record, func(context.Context) error { return c.complete(p) }); err != nil {
		return nil, err
	}
	look, err := c.lookForListeners(p.Record)
	if err != nil {
		return nil, err
	}
	unlock, err := c.lockNetworks(ctx, p.Record)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := c.step(ctx, StepClaim, p.Record, func(ctx context.Context) error { return c.reserve(ctx, p) }); err != nil {
		return nil, err
	}
	status, err := c.attach(ctx, p)
	if err != nil {
		return nil, err
	}
	// As long as the record is locked nobody else can have found it.
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("allocation %q was set up too late: %w", p.ID, errors.Join(err, c.undo(ctx, p)))
	}
	status.Created, status.Warnings = true, c.warnings(look, p.Record, status)
	return status, nil
}

// currentPlan returns the plan of an allocation that is set up, nil if it is not. It removes
// what an earlier operation left unfinished.
func (c *Configurator) currentPlan(ctx context.Context, a Allocation) (*plan, error) {
	current, err := c.store.Get(a.ID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case unreadable(err):
		c.cfg.Logger.Warn("record cannot be read; removing what it may stand for", "alloc", a.ID, "error", err)
		return nil, c.removeUnrecorded(ctx, a)
	case err != nil:
		return nil, err
	case current.Phase == record.Ready:
		return c.planOf(current), nil
	}
	c.cfg.Logger.Warn("an earlier operation did not end; removing what it left", "alloc", a.ID, "phase", current.Phase)
	return nil, c.remove(ctx, c.planOf(current))
}

// confirm is Setup of an allocation that is set up: CHECK, and repair.
func (c *Configurator) setupExisting(ctx context.Context, current *plan, wanted *record.Record) (*Status, error) {
	if !current.SameNetns(wanted) {
		return nil, fmt.Errorf("%w: allocation %q is in another network namespace, which was at %s; tear it down, or destroy that namespace, before it is set up in %s",
			ErrDifferent, current.ID, current.Netns, wanted.Netns)
	}
	if what := difference(current.Record, wanted); what != "" {
		return nil, fmt.Errorf("%w: allocation %q was set up with another %s; tear it down first", ErrDifferent, current.ID, what)
	}
	if err := c.requireServed(current); err != nil {
		return nil, err
	}
	unlock, err := c.lockNetworks(ctx, current.Record)
	if err != nil {
		return nil, err
	}
	defer unlock()
	current.Sandbox = wanted.Sandbox // the same namespace, whatever its path is by now
	_, err = c.checkAndRepair(ctx, current)
	current.RequireAddress = wanted.RequireAddress
	if err == nil {
		status, err := statusOf(current.Record)
		return withAddress(current.Record, status, err)
	}
	if !errors.Is(err, ErrUnhealthy) {
		return nil, err
	}
	c.cfg.Logger.Warn("network is not as it was set up; setting it up again", "alloc", current.ID, "error", redact.Text(err.Error()))
	release, err := bindNetns(current.Record)
	defer release()
	if err != nil {
		return nil, err
	}
	if err := c.detach(ctx, current); err != nil {
		return nil, err
	}
	if err := c.recordIntent(current); err != nil {
		return nil, err
	}
	return c.attach(ctx, current)
}

// complete finds what a record asks for: networks, engine and plugins.
func (c *Configurator) complete(p *plan) error {
	if err := c.planNetworks(p); err != nil {
		return err
	}
	if err := c.requireServed(p); err != nil {
		return err
	}
	noteUnserved(p)
	c.chooseEngine(p)
	c.noteBinaries(p)
	if err := errors.Join(c.installed(p), c.requireInside(p)); err != nil {
		return err
	}
	if c.runsInProcess(p) { // the engine looks, and DEL takes nothing foreign
		return nil
	}
	return unused(p.Record)
}

// reserve records the intent, if no other record has the network namespace or one
// of the ports.
func (c *Configurator) reserve(ctx context.Context, p *plan) error {
	p.Updated = c.now()
	err := c.store.Reserve(ctx, p.Record, func(err error) { // may have a port, and then ADD fails
		c.cfg.Logger.Warn("looking for port conflicts without a record that cannot be read", "error", err)
	})
	var taken *record.NetnsError
	if errors.As(err, &taken) {
		return &NetnsError{Netns: taken.Netns, ID: p.ID, OtherID: taken.OtherID}
	}
	var conflict *portmap.ConflictError
	if errors.As(err, &conflict) && conflict.OtherID != p.ID {
		other, otherErr := c.store.Get(conflict.OtherID)
		if otherErr == nil && isGone(other) {
			return fmt.Errorf("%w, whose network namespace %q is gone: tear that allocation down", err, other.Netns)
		}
	}
	return err
}

// put writes a record and sets its time.
func (c *Configurator) put(r *record.Record) error {
	r.Updated = c.now()
	return c.store.Put(r)
}
