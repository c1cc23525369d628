package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Audit lists everything that an allocation has on the host, found by its ID,
// its record and, where that is gone, today's configuration. It changes
// nothing. Of an allocation that is set up these are no leftovers but its
// network.
func (c *Configurator) Audit(ctx context.Context, a Allocation) ([]Leftover, error) {
	p, unlock, err := c.lockRecord(ctx, a)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return cleanup.Audit(ctx, c.cleanupTarget(p))
}

// Force kills the plugins that are still at work for an allocation, removes
// everything that it has on the host without running any, and then its record. It is for what Teardown cannot do: a plugin
// that is gone, or fails for ever. An allocation that is set up, in a namespace
// that is still there, is ErrSetUp: call Teardown first. It returns what it
// removed; when something is left the record is kept and the error is
// ErrIncomplete.
func (c *Configurator) Force(ctx context.Context, a Allocation) ([]Leftover, error) {
	p, unlock, err := c.lockRecord(ctx, a)
	if err != nil {
		return nil, err
	}
	defer unlock()
	target := c.cleanupTarget(p)
	var names []string
	for _, at := range target.Attachments {
		names = append(names, at.Network)
	}
	release, err := c.store.Share(ctx, names)
	if err != nil {
		return nil, err
	}
	defer release()
	// Looked at under the lock: a Setup may have ended meanwhile.
	if r, err := c.store.Get(a.ID); err == nil && r.Phase == record.Ready {
		release, err := openNetns(r)
		release()
		if err == nil {
			return nil, fmt.Errorf("%w: %q in %q; tear it down", ErrSetUp, a.ID, r.Netns)
		}
	}
	p.Phase = record.Deleting
	stopErr := c.stopPlugins(p.Record)
	removed, err := cleanup.Force(ctx, target)
	if err = joinDistinct(stopErr, err, cleanup.FlushConntrack(ctx, target)); err == nil {
		err = requireClean(ctx, a.ID, target)
	}
	if err != nil {
		return removed, wrapIncomplete(a.ID, err)
	}
	return removed, c.store.Delete(a.ID)
}

// requireClean is an error if something of an allocation is left, or may be.
func requireClean(ctx context.Context, id string, target cleanup.Target) error {
	left, err := cleanup.Audit(ctx, target)
	if err == nil && len(left) > 0 {
		err = &LeftoverError{ID: id, Leftovers: left}
	}
	return err
}

// lockRecord locks an allocation and plans by its record or, without one, by its
// Allocation and today's configuration.
func (c *Configurator) lockRecord(ctx context.Context, a Allocation) (*plan, func(), error) {
	if err := validateID(a.ID); err != nil {
		return nil, nil, err
	}
	unlock, err := c.lock(ctx, a.ID)
	if err != nil {
		return nil, nil, err
	}
	r, err := c.store.Get(a.ID)
	var p *plan
	switch {
	case err == nil:
		p = c.planOf(r)
	case errors.Is(err, fs.ErrNotExist) || unreadable(err):
		p = c.planWithoutRecord(a)
		if err = c.retrace(ctx, p, &a); err == nil {
			_, err = c.dropForeignNetns(ctx, p)
		}
	}
	release := func() {}
	if err == nil {
		if release, err = openNetns(p.Record); isLost(err) {
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
