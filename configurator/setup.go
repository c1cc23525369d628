package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/engine"
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
	c.recent.forget(a.ID)
	release, netnsErr := claimNetns(p.Record)
	defer release()
	current, err := c.settle(ctx, a)
	if err != nil {
		return nil, err
	}
	if current != nil && !c.lostNetns(current, p.Record) {
		return c.confirm(ctx, current, p.Record)
	}
	if current != nil {
		c.cfg.Logger.Warn("the network namespace of the allocation was replaced and the old one is gone; setting it up again", "alloc", p.ID, "netns", p.Netns)
		if err := c.takeDown(ctx, current); err != nil {
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
	unlock, err := c.share(ctx, p.Record)
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

// settle returns the plan of an allocation that is set up, nil if it is not. It removes
// what an earlier operation left unfinished.
func (c *Configurator) settle(ctx context.Context, a Allocation) (*plan, error) {
	current, err := c.store.Get(a.ID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case unreadable(err):
		c.cfg.Logger.Warn("record cannot be read; removing what it may stand for", "alloc", a.ID, "error", err)
		return nil, c.forget(ctx, a)
	case err != nil:
		return nil, err
	case current.Phase == record.Ready:
		return c.planOf(current), nil
	}
	c.cfg.Logger.Warn("an earlier operation did not end; removing what it left", "alloc", a.ID, "phase", current.Phase)
	return nil, c.takeDown(ctx, c.planOf(current))
}

// confirm is Setup of an allocation that is set up: CHECK, and repair.
func (c *Configurator) confirm(ctx context.Context, current *plan, wanted *record.Record) (*Status, error) {
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
	unlock, err := c.share(ctx, current.Record)
	if err != nil {
		return nil, err
	}
	defer unlock()
	current.Sandbox = wanted.Sandbox // the same namespace, whatever its path is by now
	_, err = c.mend(ctx, current)
	current.RequireAddress = wanted.RequireAddress
	if err == nil {
		status, err := statusOf(current.Record)
		return withAddress(current.Record, status, err)
	}
	if !errors.Is(err, ErrUnhealthy) {
		return nil, err
	}
	c.cfg.Logger.Warn("network is not as it was set up; setting it up again", "alloc", current.ID, "error", redact.Text(err.Error()))
	release, err := claimNetns(current.Record)
	defer release()
	if err != nil {
		return nil, err
	}
	if err := c.detach(ctx, current); err != nil {
		return nil, err
	}
	if err := c.intend(current); err != nil {
		return nil, err
	}
	return c.attach(ctx, current)
}

// difference names the part in which two requests for one ID differ, but for the network
// namespace.
func difference(a, b *record.Record) string {
	for _, part := range []struct {
		name string
		a, b any
	}{
		{fmt.Sprintf("list of networks (%s)", strings.Join(a.Asked, ", ")), a.Asked, b.Asked},
		{"list of networks (of its own)", inlined(a), inlined(b)},
		{"interface (" + a.Interface + ")", a.Interface, b.Interface},
		{"container ID (" + a.ContainerID + ")", a.ContainerID, b.ContainerID},
		{"scope (" + a.Scope + ")", a.Scope, b.Scope},
		{"prevResult", a.Previous, b.Previous},
		{"set of ports", unlabelled(a.AskedPorts), unlabelled(b.AskedPorts)},
		{"set of CNI_ARGS", a.Args, b.Args},
		{"set of capability arguments", withoutPorts(a.Capabilities), withoutPorts(b.Capabilities)},
	} {
		if !sameJSON(part.a, part.b) {
			return part.name
		}
	}
	return ""
}

// inlined are the configurations that an allocation brought along.
func inlined(r *record.Record) []string {
	var texts []string
	for _, a := range r.Attachments {
		if r.Inline {
			texts = append(texts, string(a.Config))
		}
	}
	return texts
}

// unlabelled leaves out what is only for people.
func unlabelled(ports []portmap.Port) []portmap.Port {
	ports = slices.Clone(ports)
	for i := range ports {
		ports[i].Label = ""
	}
	return ports
}

// withoutPorts leaves out what is compared by itself.
func withoutPorts(capabilities map[string]json.RawMessage) map[string]json.RawMessage {
	others := maps.Clone(capabilities)
	delete(others, "portMappings")
	if len(others) == 0 {
		return nil
	}
	return others
}

// sameJSON compares what one side may have read back from a file.
func sameJSON(a, b any) bool {
	var decoded [2]any
	for i, v := range []any{a, b} {
		data, err := json.Marshal(v)
		if err != nil || json.Unmarshal(data, &decoded[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(decoded[0], decoded[1])
}

// undoTime is what it may take to undo a Setup that nobody waits for.
const undoTime = 10 * time.Second

// undo takes down what was set up for a context that has ended.
func (c *Configurator) undo(ctx context.Context, p *plan) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	ready := &plan{Record: new(record.Record), networks: p.networks, unreadable: p.unreadable}
	*ready.Record = *p.Record
	ready.Phase = record.Ready
	return c.step(ctx, StepRollBack, p.Record, func(ctx context.Context) error { return c.takeDownShared(ctx, ready) })
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
	err := c.store.Claim(ctx, p.Record, func(err error) { // may have a port, and then ADD fails
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

// intend records a further ADD of an allocation that was detached. DEL of a crash
// goes by the record, so nothing stays in it that an earlier ADD made.
func (c *Configurator) intend(p *plan) error {
	p.BeginAdd()
	c.noteBinaries(p)
	return c.put(p.Record)
}

// put writes a record and sets its time.
func (c *Configurator) put(r *record.Record) error {
	r.Updated = c.now()
	return c.store.Put(r)
}

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
		if err := c.intend(p); err != nil {
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
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), rollbackShare)
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
		ctx, cancel := c.leaveTimeToRollBack(ctx)
		defer cancel()
		done, err := c.beforeBinaries(ctx, p)
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

// beforeBinaries does what the reference plugins leave to others, or cannot do several at
// a time. The caller calls done with the error of ADD, and goes on with done's.
func (c *Configurator) beforeBinaries(ctx context.Context, p *plan) (done func(error) error, err error) {
	if c.runsInProcess(p) {
		return func(err error) error { return err }, nil
	}
	if err := p.Sandbox.LoopbackUp(); err != nil {
		return nil, err
	}
	first, err := c.store.First(ctx, kinds(p.Record)...)
	if err != nil {
		return nil, err
	}
	return func(err error) error {
		if err == nil {
			err = c.openForwarding(ctx, p)
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
func kinds(r *record.Record) []string {
	var names []string
	for _, a := range r.Attachments {
		names = append(names, a.Network)
		if len(r.Ports) > 0 {
			names = append(names, a.Network+"+ports")
		}
	}
	return names
}

const rollbackShare = 5 * time.Second

// leaveTimeToRollBack ends an ADD early enough for a DEL within the caller's
// deadline.
func (c *Configurator) leaveTimeToRollBack(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithTimeout(ctx, c.cfg.Timeout)
	}
	left := deadline.Sub(c.now())
	return context.WithTimeout(ctx, min(left-min(left/4, rollbackShare), c.cfg.Timeout))
}
