package configurator

import (
	"context"
	"errors"
	"fmt"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/record"
)

// attach is the loop of ADD and roll-back, and records the result. The record
// of the intent stands already; it is gone after a roll-back.
func (c *Configurator) attach(ctx context.Context, p *plan) (*Status, error) {
	var failures attempts
	for {
		status, err := c.add(ctx, p)
		if err == nil {
			return status, nil
		}
		failures.add(err)
		if err := c.rollBack(ctx, p, err); err != nil {
			return nil, failures.join(fmt.Errorf("roll back: %w", err))
		}
		if failures.count >= c.cfg.Retry.Attempts || !transient(err) || ctx.Err() != nil {
			return nil, failures.join(c.store.Delete(p.ID))
		}
		wait := c.cfg.Retry.Delay + c.jitter(c.cfg.Retry.Jitter)
		c.cfg.Logger.Warn("ADD failed and was rolled back; trying again", "alloc", p.ID,
			"attempt", failures.count, "of", c.cfg.Retry.Attempts, "in", wait, "error", redact.Text(err.Error()))
		if err := c.step(ctx, StepWait, p.Record, func(ctx context.Context) error { return c.sleep(ctx, wait) }); err != nil {
			return nil, failures.join(err, c.store.Delete(p.ID))
		}
		if err := c.recordIntent(p); err != nil {
			return nil, failures.join(err, c.store.Delete(p.ID))
		}
	}
}

// rollBack undoes an attempt that ended with addErr, if it did anything. A caller
// that has lost interest gets it undone all the same; one whose deadline has passed
// had part of its time kept for this.
func (c *Configurator) rollBack(ctx context.Context, p *plan, addErr error) error {
	if errors.Is(addErr, engine.ErrNothingDone) {
		return nil
	}
	return c.step(ctx, StepRollBack, p.Record, func(ctx context.Context) error {
		if errors.Is(ctx.Err(), context.Canceled) {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), rollBackTime)
			defer cancel()
		}
		return c.detachAfter(ctx, p, addErr)
	})
}

// add is one attempt: ADD, the selection of the status, and the record of it.
// On an error, the record has the results that are known.
func (c *Configurator) add(ctx context.Context, p *plan) (*Status, error) {
	var results []*types100.Result
	err := c.step(ctx, StepAdd, p.Record, func(ctx context.Context) (err error) {
		req, requestErr := c.request(p)
		e, engineErr := c.engine(p)
		if err := errors.Join(requestErr, engineErr); err != nil {
			return fmt.Errorf("%w: %w", engine.ErrNothingDone, err)
		}
		ctx, cancel := c.withAddTimeout(ctx)
		defer cancel()
		done, err := c.prepareForBinaries(ctx, p)
		if err != nil {
			return fmt.Errorf("%w: %w", engine.ErrNothingDone, err)
		}
		results, err = e.Add(ctx, req)
		return done(err)
	})
	if err := errors.Join(err, keepResults(p, results)); err != nil {
		return nil, err
	}
	status, err := statusFrom(p.Record, results)
	if status, err = withAddress(p.Record, status, err); err != nil {
		return nil, err
	}
	ready := *p.Record
	ready.Phase, ready.Updated = record.Ready, c.now()
	if err := c.step(ctx, StepRecord, p.Record, func(context.Context) error { return c.store.Update(&ready) }); err != nil {
		return nil, err
	}
	return status, nil
}

// prepareForBinaries does what the reference plugins leave to others, or cannot do several at
// a time. The caller calls done with the error of ADD, and goes on with done's.
func (c *Configurator) prepareForBinaries(ctx context.Context, p *plan) (done func(error) error, err error) {
	if c.runsInProcess(p) {
		return func(err error) error { return err }, nil
	}
	if err := p.Sandbox.LoopbackUp(); err != nil {
		return nil, err
	}
	first, err := c.store.First(ctx, sharedObjects(p.Record)...)
	if err != nil {
		return nil, err
	}
	return func(err error) error {
		if err == nil {
			err = c.allowForwarding(ctx, p)
		}
		first(err == nil)
		return err
	}, nil
}

// keepResults puts what ADD returned into the record.
func keepResults(p *plan, results []*types100.Result) error {
	for i, result := range results {
		if result == nil {
			continue
		}
		encoded, err := engine.EncodeResult(result)
		if err != nil {
			return fmt.Errorf("encode result of network %q: %w", p.Attachments[i].Network, err)
		}
		p.Attachments[i].Result = encoded
	}
	return nil
}

// kinds are the things that the first ADD of them creates for all: what a
// network shares, and what its port mappings do.
func sharedObjects(r *record.Record) []string {
	var names []string
	for _, a := range r.Attachments {
		names = append(names, a.Network)
		if len(r.Ports) > 0 {
			names = append(names, a.Network+"+ports")
		}
	}
	return names
}

const rollBackTime = 5 * time.Second

// withAddTimeout ends an ADD early enough for a DEL within the caller's
// deadline.
func (c *Configurator) withAddTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithTimeout(ctx, c.cfg.Timeout)
	}
	left := deadline.Sub(c.now())
	return context.WithTimeout(ctx, min(left-min(left/4, rollBackTime), c.cfg.Timeout))
}

// intend records a further ADD of an allocation that was detached. DEL of a crash
// goes by the record, so nothing stays in it that an earlier ADD made.
func (c *Configurator) recordIntent(p *plan) error {
	p.BeginAdd()
	c.noteBinaries(p)
	return c.put(p.Record)
}

// undoTimeout is what it may take to undo a Setup that nobody waits for.
const undoTimeout = 10 * time.Second

// undo takes down what was set up for a context that has ended.
func (c *Configurator) undo(ctx context.Context, p *plan) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	ready := &plan{Record: new(record.Record), networks: p.networks, unreadable: p.unreadable}
	*ready.Record = *p.Record
	ready.Phase = record.Ready
	return c.step(ctx, StepRollBack, p.Record, func(ctx context.Context) error { return c.removeLocked(ctx, ready) })
}
