package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Audit lists the objects of an allocation on the host. It finds them by the ID and the record
// or, without a record, by the current configuration. It changes nothing. If the allocation is
// set up, the objects are its network, not leftovers. It returns ErrSetUp for the container ID of
// another allocation.
func (c *Configurator) Audit(ctx context.Context, a Allocation) ([]Leftover, error) {
	p, unlock, err := c.lockRecord(ctx, a)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return c.audit(ctx, c.cleanupTarget(p))
}

// AuditWithRecord is Audit that also returns the record with which the objects belong together:
// Setup and Teardown change neither until both are read. r is nil, without an error, only if the
// allocation has no record. For a record that cannot be read, the error is a *RecordError of the
// ID, and found is what Audit returns. A record whose results are invalid comes with an error.
func (c *Configurator) AuditWithRecord(ctx context.Context, a Allocation) (found []Leftover, r *Record, err error) {
	p, unlock, err := c.lockRecord(ctx, a)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	if found, err = c.audit(ctx, c.cleanupTarget(p)); err != nil {
		return found, nil, err
	}
	if r, err = c.Get(ctx, a.ID); errors.Is(err, ErrNotFound) {
		err = nil
	}
	return found, r, err
}

// Force removes an allocation without running plugins. It kills plugin processes of the
// allocation that still run, removes its objects from the host, deletes its record, and
// returns the removed objects. Use it if Teardown cannot succeed, because a plugin is missing
// or always fails.
//
// Force returns ErrSetUp if the allocation is set up and its namespace exists: call Teardown
// first. It returns ErrIncomplete, and keeps the record, if something is left.
func (c *Configurator) Force(ctx context.Context, a Allocation) ([]Leftover, error) {
	p, unlock, err := c.lockRecord(ctx, a)
	if err != nil {
		return nil, err
	}
	defer unlock()
	target := c.cleanupTarget(p)
	var networks []string
	for _, at := range target.Attachments {
		networks = append(networks, at.Network)
	}
	release, err := c.store.Share(ctx, networks)
	if err != nil {
		return nil, err
	}
	defer release()
	// Read the record again under the lock: a Setup may have ended meanwhile.
	if r, err := c.store.Get(a.ID); err == nil && r.Phase == record.Ready {
		release, err := netns.Open(r)
		release()
		if err == nil {
			return nil, fmt.Errorf("%w: %q in %q; tear it down", ErrSetUp, a.ID, r.Netns)
		}
	}
	p.Phase = record.Deleting
	stopErr := c.stopPlugins(p.Record)
	removed, err := c.removeLeftovers(ctx, target)
	if err = joinDistinct(stopErr, err, c.flushConntrack(ctx, target)); err == nil {
		err = c.requireClean(ctx, a.ID, target)
	}
	if err == nil {
		err = c.native.CollectPolicies(ctx, func(o names.Owner) bool {
			return o.ID == p.Container() && (target.IfNames == nil || slices.Contains(target.IfNames, o.IfName))
		})
	}
	if err != nil {
		return removed, wrapIncomplete(a.ID, err)
	}
	return removed, c.deleteRecord(a.ID)
}

// requireNoNamesake returns an error if another allocation owns what has the ID of one without a record.
func (c *Configurator) requireNoNamesake(p *plan.Plan) error {
	other, err := c.store.Namesake(p.Record)
	if err == nil && other != "" {
		err = fmt.Errorf("%w: %q is the container of allocation %q", ErrSetUp, p.Container(), other)
	}
	return err
}

// requireClean returns an error if leftovers of an allocation exist or may exist.
func (c *Configurator) requireClean(ctx context.Context, id string, target cleanup.Target) error {
	left, err := c.audit(ctx, target)
	if err == nil && len(left) > 0 {
		err = &LeftoverError{ID: id, Leftovers: left}
	}
	return err
}

// lockRecord locks an allocation and plans from its record or, without one, from the
// Allocation and the current configuration.
func (c *Configurator) lockRecord(ctx context.Context, a Allocation) (*plan.Plan, func(), error) {
	if err := plan.ValidateID(a.ID); err != nil {
		return nil, nil, err
	}
	unlock, err := c.lock(ctx, a.ID)
	if err != nil {
		return nil, nil, err
	}
	r, err := c.store.Get(a.ID)
	var p *plan.Plan
	switch {
	case err == nil:
		p = c.planToRemove(r)
	case errors.Is(err, fs.ErrNotExist) || unreadable(err):
		p = c.planWithoutRecord(a)
		p.Slot = c.takenSlot(a.ID)
		if err = c.requireNoNamesake(p); err == nil {
			err = c.retrace(ctx, p, &a)
			c.chooseEngine(p)
		}
		if err == nil {
			_, err = c.dropForeignNetns(ctx, p)
		}
	}
	release := func() {}
	if err == nil {
		if release, err = netns.Open(p.Record); netns.IsLost(err) {
			err = nil
		}
	}
	if err != nil {
		release()
		unlock()
		return nil, nil, err
	}
	return p, func() { release(); unlock() }, nil
}
