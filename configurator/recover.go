package configurator

import (
	"context"
	"errors"
	"io/fs"

	"github.com/allocnet/allocnet/internal/state/record"
)

// Recover takes down what was left unfinished: allocations whose Setup or Teardown
// ended with its process, or as ErrIncomplete, and removes files that were left half
// written. It is for the start of a program that was killed. What an operation works
// on is waited for, and stays if that operation ends well; that keeps Recover from no
// other allocation, as it works on several at a time.
//
// Errors are those of Teardown, joined; what one of them is about keeps its record. The
// report is there with an error as well.
func (c *Configurator) Recover(ctx context.Context) (*RecoverReport, error) {
	return c.RecoverScope(ctx, Scope{})
}

// RecoverScope is Recover of the allocations of one scope: what several programs have on
// a host, each recovers for itself. Files that were left half written, which have no
// scope, stay.
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
	for _, o := range c.each(ctx, ids, func(id string) (bool, error) { return c.recoverOne(ctx, s, id, before) }) {
		if o.done && o.err == nil {
			report.Removed = append(report.Removed, o.id)
		}
		errs = append(errs, about(o.id, o.err))
	}
	report.Records = before.of(report.Removed)
	if ctx.Err() != nil {
		return report, errors.Join(append(errs, ctx.Err())...)
	}
	if s.Name == "" {
		errs = append(errs, c.store.Sweep(ctx))
	}
	return report, errors.Join(errs...)
}

func (c *Configurator) recoverOne(ctx context.Context, s Scope, id string, before *summaries) (unfinished bool, err error) {
	if r, err := c.store.Get(id); err == nil && r.Phase == record.Ready {
		return false, nil // without a lock, that others may hold for long
	}
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return false, err
	}
	defer unlock()
	r, err := c.store.Get(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil // it was torn down meanwhile
	case err != nil, r.Phase == record.Ready, !covers(s, r):
		return false, err
	}
	c.cfg.Logger.Warn("an earlier operation did not end; taking down what it left", "alloc", id, "phase", r.Phase)
	before.add(summaryOf(r))
	return true, c.remove(ctx, c.planOf(r))
}
