package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/subnets"
)

// addWithRetries runs attempts until one succeeds or fails permanently. The caller has written the
// record of the intent. addWithRetries deletes it when it gives up.
func (c *Configurator) addWithRetries(ctx context.Context, p *plan.Plan) (*Status, error) {
	var failures attempts
	settled := false
	for {
		since := c.backlog.moment()
		status, err := c.add(ctx, p)
		if err == nil {
			return status, nil
		}
		failures.add(err)
		if err := c.rollBack(ctx, p, err); err != nil {
			return nil, failures.join(fmt.Errorf("roll back: %w", err))
		}
		held := c.isHeld(p, err)
		if !settled && !held && ctx.Err() == nil && lacks(err) && (c.backlog.settle(ctx, since) || c.yieldSlots(p)) {
			settled = true // for one more ADD, whatever Retry says
			if err := c.recordIntent(p); err != nil {
				return nil, failures.join(err, c.deleteRecord(p.ID))
			}
			continue
		}
		if failures.count >= c.cfg.Retry.Attempts || held || !transient(err) || c.isFull(p, err) || c.mayGiveRoom(err) || ctx.Err() != nil {
			return nil, failures.join(c.deleteRecord(p.ID))
		}
		wait := c.cfg.Retry.Delay + c.jitter(c.cfg.Retry.Jitter)
		c.cfg.Logger.Warn("ADD failed and was rolled back; trying again", "alloc", p.ID,
			"attempt", failures.count, "of", c.cfg.Retry.Attempts, "in", wait, "error", redact.Text(err.Error()))
		if err := c.step(ctx, StepWait, p.Record, func(ctx context.Context) error { return c.sleep(ctx, wait) }); err != nil {
			return nil, failures.join(err, c.deleteRecord(p.ID))
		}
		if err := c.recordIntent(p); err != nil {
			return nil, failures.join(err, c.deleteRecord(p.ID))
		}
	}
}

// lacks reports whether an ADD has failed because something was not free that removals behind their
// Teardown, or prepared network namespaces, still have: an address, or a port of a bridge.
func lacks(addErr error) bool {
	return errors.Is(addErr, ErrExhausted) || errors.Is(addErr, ErrBridgeFull) ||
		errors.Is(addErr, ErrAddressUnavailable) && !errors.Is(addErr, lease.ErrNotInRange)
}

// rollBack undoes an attempt that failed with addErr. If the caller cancels the context, also during
// the roll-back, it continues for rollBackTime; if the deadline has passed, withAddTimeout has
// reserved time for it.
func (c *Configurator) rollBack(ctx context.Context, p *plan.Plan, addErr error) error {
	if errors.Is(addErr, engine.ErrNothingDone) {
		return nil
	}
	return c.step(ctx, StepRollBack, p.Record, func(ctx context.Context) error {
		ctx, cancel := outlast(ctx, rollBackTime, 0)
		defer cancel()
		return c.removeNetworksAfter(ctx, p, addErr)
	})
}

// add is one attempt: it runs ADD, selects the status and records the result. If it fails,
// p has the results that plugins have returned.
func (c *Configurator) add(ctx context.Context, p *plan.Plan) (*Status, error) {
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
		if err = errors.Join(err, keepResults(p, results)); err == nil {
			err = c.markForBinaries(ctx, p, results)
		}
		return done(err)
	})
	if err != nil {
		return nil, err
	}
	status, err := plan.StatusFrom(p.Record, results)
	if status, err = plan.WithAddress(p.Record, status, err); err != nil {
		return nil, err
	}
	c.noteDifferences(ctx, p)
	ready := *p.Record
	ready.Phase, ready.Updated = record.Ready, c.now()
	if p.Pool != "" {
		ready.Phase = record.Pooled
	}
	if err := c.step(ctx, StepRecord, p.Record, func(context.Context) error { return c.store.Update(&ready) }); err != nil {
		return nil, err
	}
	return status, nil
}

// prepareForBinaries does what plugin binaries expect of a runtime: it brings the loopback
// interface up and serializes the first ADDs, because reference plugins create shared objects
// without a lock. The caller calls done with the error of ADD and continues with the error
// that done returns.
func (c *Configurator) prepareForBinaries(ctx context.Context, p *plan.Plan) (done func(error) error, err error) {
	if c.runsInProcess(p) {
		return func(err error) error { return err }, nil
	}
	if err := p.Sandbox.LoopbackUp(); err != nil {
		return nil, err
	}
	if err := c.reclaimForBinaries(ctx, p); err != nil {
		return nil, err
	}
	if err := c.forwardForBinaries(p); err != nil {
		return nil, err
	}
	created, err := c.noteBridges(p)
	if err != nil {
		return nil, err
	}
	first, err := c.store.First(ctx, sharedObjects(p.Record)...)
	if err != nil {
		return nil, err
	}
	return func(err error) error {
		if err == nil {
			err = errors.Join(created(), c.allowForwarding(ctx, p))
		}
		first(err == nil)
		return err
	}, nil
}

// forwardForBinaries makes the host forward what the binaries of bridge and ptp would make it forward, so that it is
// recorded and loses no route.
func (c *Configurator) forwardForBinaries(p *plan.Plan) error {
	var v4, v6 bool
	for _, n := range p.Networks {
		for _, s := range subnets.Of(n) {
			v4, v6 = v4 || s.Gateway && s.Prefix.Addr().Is4(), v6 || s.Gateway && s.Prefix.Addr().Is6()
		}
	}
	err := c.switches.Forward(v4, v6)
	if errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6, which the binaries report
		return nil
	}
	return err
}

// noteBridges records the bridges that the binaries are going to create. The caller calls created after the ADD.
func (c *Configurator) noteBridges(p *plan.Plan) (created func() error, err error) {
	if err := c.bridges.Begin(); err != nil {
		return nil, err
	}
	var missing []string
	for _, n := range p.Networks {
		name := subnets.BridgeOf(n)
		if name == "" {
			continue
		}
		if _, err := netlink.LinkByName(name); errors.As(err, &netlink.LinkNotFoundError{}) {
			missing = append(missing, name)
			if err := c.bridges.Add(name, 0); err != nil {
				return nil, err
			}
		}
	}
	return func() (err error) {
		for _, name := range missing {
			link, linkErr := netlink.LinkByName(name)
			switch {
			case errors.As(linkErr, &netlink.LinkNotFoundError{}): // the binary has another default
			case linkErr != nil:
				err = errors.Join(err, linkErr)
			default:
				err = errors.Join(err, c.bridges.Add(name, link.Attrs().Index))
			}
		}
		return err
	}, nil
}

// keepResults copies the results of ADD into the record.
func keepResults(p *plan.Plan, results []*types100.Result) error {
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

// sharedObjects are the names of the sets of shared objects that the first ADD creates: those
// of a network, and those of its port mappings.
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

// rollBackTime is the time that is reserved for the roll-back of an ADD.
const rollBackTime = 5 * time.Second

// withAddTimeout returns the context of an ADD. It ends early enough for a roll-back before
// the deadline of the caller.
func (c *Configurator) withAddTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithTimeout(ctx, c.cfg.Timeout)
	}
	left := deadline.Sub(c.now())
	return context.WithTimeout(ctx, min(left-min(left/4, rollBackTime), c.cfg.Timeout))
}

// recordIntent records another ADD of an allocation that was detached. After a crash, DEL
// uses the record, so recordIntent removes the results of earlier attempts from it.
func (c *Configurator) recordIntent(p *plan.Plan) error {
	p.BeginAdd()
	c.noteBinaries(p)
	return c.put(p.Record)
}

// intendAgain is recordIntent before an allocation is set up again. If an update of it could not
// be finished, it returns the plan at which that aims.
func (c *Configurator) intendAgain(p *plan.Plan) (*plan.Plan, error) {
	if p.Update == nil {
		return p, c.recordIntent(p)
	}
	aim, err := p.After(p.Update)
	if err != nil {
		return nil, err
	}
	aim.BeginAdd()
	c.noteBinaries(aim)
	aim.Updated = c.now()
	return aim, c.store.EndUpdate(aim.Record, p.Ports)
}

// undoTimeout bounds the removal of a successful Setup whose context has ended.
const undoTimeout = 10 * time.Second

// undo removes a network that was set up successfully after its context had ended.
func (c *Configurator) undo(ctx context.Context, p *plan.Plan) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	ready := p.Changed(func(r *record.Record) { r.Phase = record.Ready }) // DEL begins with everything that ADD made
	return c.step(ctx, StepRollBack, p.Record, func(ctx context.Context) error { return c.removeLocked(ctx, ready) })
}

// forceTimeout bounds the cleanup after the context of the caller has ended.
const forceTimeout = 3 * time.Second

// withTimeAfter returns a context that ends some time after ctx has ended, or that time from now if
// it has ended already.
func withTimeAfter(ctx context.Context, more time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		return context.WithTimeout(context.WithoutCancel(ctx), more)
	}
	return outlast(ctx, more, more)
}

// outlast returns a context that ends the given times after ctx is canceled or its deadline passes.
func outlast(ctx context.Context, canceled, expired time.Duration) (context.Context, context.CancelFunc) {
	longer := context.WithoutCancel(ctx)
	var cancel context.CancelFunc
	if deadline, ok := ctx.Deadline(); ok {
		longer, cancel = context.WithDeadline(longer, deadline.Add(expired))
	} else {
		longer, cancel = context.WithCancel(longer)
	}
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			time.AfterFunc(canceled, cancel)
		}
	})
	return longer, func() { stop(); cancel() }
}
