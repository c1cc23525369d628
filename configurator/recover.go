package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Recover tears down allocations whose Setup or Teardown was interrupted or returned
// ErrIncomplete, and removes temporary files. Call it when a program starts, because its
// predecessor may have been killed. If an operation is working on an allocation, Recover waits
// for it, and keeps the allocation if the operation succeeds. Recover works on several
// allocations at a time.
//
// After a reboot, Recover also reclaims the leases of earlier boots, in the embedded network
// and in those whose configuration has reclaimOnBoot.
//
// Recover leaves alone what belongs to allocations that have lost their record, because it
// cannot know whether they are live. GC removes them.
//
// Recover joins the errors of the teardowns. An allocation with an error keeps its record.
// Recover returns the report with an error, too.
func (c *Configurator) Recover(ctx context.Context) (*RecoverReport, error) {
	return c.RecoverScope(ctx, Scope{})
}

// RecoverScope is Recover of the allocations of one scope, for hosts on which several programs
// manage allocations. It removes temporary files only for the scope "", because they have no
// scope. It always removes what the pools of ended processes have left.
func (c *Configurator) RecoverScope(ctx context.Context, s Scope) (report *RecoverReport, err error) {
	err = c.operation(ctx, "recover", "", func(ctx context.Context) error {
		report, err = c.recoverAll(ctx, s)
		return err
	})
	return report, err
}

func (c *Configurator) recoverAll(ctx context.Context, s Scope) (*RecoverReport, error) {
	report, before := &RecoverReport{Removed: []string{}}, new(summaries)
	if err := c.requirePrivileges(); err != nil {
		return report, err
	}
	ids, err := c.within(s)
	errs := []error{err}
	for _, o := range each(ctx, c.concurrency, ids, func(id string) (bool, error) { return c.recoverOne(ctx, s, id, before) }) {
		if o.done && o.err == nil {
			report.Removed = append(report.Removed, o.id)
		}
		errs = append(errs, about(o.id, o.err))
	}
	report.Records = before.of(report.Removed)
	if ctx.Err() != nil {
		return report, errors.Join(append(errs, ctx.Err())...)
	}
	errs = append(errs, c.sweepSlotNotes(ctx))
	if s.Name == "" {
		errs = append(errs, c.store.Sweep(ctx), c.sweepPolicies(ctx, nil), c.reclaimLeases(ctx))
	} else {
		errs = append(errs, c.store.SweepPools())
	}
	return report, errors.Join(errs...)
}

func (c *Configurator) recoverOne(ctx context.Context, s Scope, id string, before *summaries) (unfinished bool, err error) {
	if r, err := c.store.Get(id); err == nil && (r.Phase == record.Ready && r.Update == nil && r.Pending == nil || c.isSlot(r)) {
		return false, nil // without the lock, which another operation may hold for long
	}
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return false, err
	}
	defer unlock()
	r, err := c.store.Get(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil // another operation has torn it down
	case err != nil, !covers(s, r):
		return false, err
	case r.Phase == record.Ready:
		return false, c.recoverUpdate(ctx, c.planOf(r))
	}
	p, interrupted := c.planOfRemoval(r)
	if !interrupted {
		return false, c.remove(ctx, p)
	}
	if r.Pool != "" {
		c.cfg.Logger.Info("removing what a prepared network namespace of an ended process has left", "alloc", id)
	} else {
		c.cfg.Logger.Warn("an earlier operation was interrupted; removing its leftovers", "alloc", id, "phase", r.Phase)
	}
	before.add(plan.Summary(r))
	return true, c.remove(ctx, p)
}

// recoverUpdate finishes an interrupted update of an allocation that is set up. Without its
// network namespace there is nothing to change.
func (c *Configurator) recoverUpdate(ctx context.Context, p *plan.Plan) error {
	release, err := netns.Open(p.Record)
	defer release()
	switch {
	case netns.IsLost(err):
		return nil
	case err != nil:
		return fmt.Errorf("finish the change of allocation %q: %w", p.ID, err)
	}
	unlock, err := c.lockNetworks(ctx, p.Record)
	if err != nil {
		return err
	}
	defer unlock()
	return c.finishUpdate(ctx, p)
}
