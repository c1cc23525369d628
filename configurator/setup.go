package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/hostports"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/portmap"
)

// Setup attaches an allocation to its networks and returns their Status.
//
// Setup is idempotent. Calling Setup on an existing allocation runs CHECK and repairs the
// network if necessary. If an object that ADD has made is gone and cannot be restored (an interface, an
// address or a route in the namespace, a lease that another container has, rules of plugin binaries), Setup
// tears the allocation down and sets it up again: on the same networks, possibly with another address. Then
// it sets Status.SetUpAgain, and a text in Status.Warnings names both addresses. If CHECK reports anything
// else that cannot be repaired, Setup leaves the allocation unchanged and returns ErrUnhealthy with the
// finding. What CHECK has reported right after ADD is no finding. If CHECK cannot be
// completed, Setup leaves the allocation unchanged and returns ErrNotChecked. If the
// existing allocation has other parameters, Setup returns ErrDifferent. Status.Created
// reports whether Setup created the allocation. With Allocation.MustBeNew, Setup returns
// ErrExists for an existing allocation.
//
// Setup refuses a request before it changes or records anything if no plugin declares a
// requested capability (ErrUnserved), if the request exceeds the limits for plugin
// arguments (ErrInvalidAllocation), if the process lacks privileges (ErrUnprivileged), or if the
// host would lose an address, a next hop or a network that it has in a subnet of a network
// (ErrSubnetTaken; seen at most ten seconds late, or 500 times as long as looking takes).
//
// A network namespace belongs to one allocation. If another allocation has it, or if it
// already contains an interface with the requested name, Setup returns ErrInUse. If the
// allocation is set up in another namespace that still exists, Setup returns ErrDifferent.
// If that namespace was destroyed, with its interfaces, Setup tears the allocation down and
// sets it up in the new one.
//
// An allocation that was set up before the host was rebooted is set up again. On the embedded
// network, and on networks with reclaimOnBoot in the configuration of host-local, it gets the
// same addresses, unless another allocation has requested them or no others were free.
//
// For ports without a number (Value 0), Setup picks free host ports of Config.DynamicPorts.
// Status.Ports has their numbers, and a further Setup of the allocation keeps them. If no port is
// free, Setup returns ErrNoPort.
//
// Setup rolls back an ADD that fails. It then tries again, up to Retry.Attempts times,
// unless the error is permanent: the CNI codes 1 to 7, ErrInvalidResult, ErrNoAddress,
// ErrInUse, ErrPortTaken, ErrBridgeFull, ErrSubnetTaken, ErrLimit, ErrUnprivileged, a missing plugin
// or file, or the end of the context; ErrAddressUnavailable, if the network does not lease the
// address or another allocation that is set up has it; and ErrExhausted, if no allocation of the
// network is being removed. If no address or no port of a bridge is free while links are deleted behind
// their Teardown, Setup waits for them, five seconds at most, and runs one more ADD. After the
// last attempt, nothing of the allocation is left on the host, unless the error is
// ErrIncomplete: then the record is kept, so that Teardown or GC can continue. The same applies
// if the context ends before Setup returns, even if every plugin succeeded. An allocation that
// already existed is left in place: if the context ends during its repair, Setup returns
// ErrUnhealthy with the error of the context.
//
// The deadline of the context is divided between attempts and roll-backs:
//
//   - An ADD gets the remaining time less a reserve for its roll-back. The reserve is a
//     quarter of the remaining time, at most 5 seconds. Config.Timeout is an upper bound.
//   - The DEL of the roll-back gets the time until the deadline, at most Config.Timeout.
//   - The wait before the next attempt ends with the context.
//   - If the caller cancels the context, the roll-back still runs, for at most 5 seconds.
//     If the context ends after every plugin has succeeded, it runs for at most 10 seconds.
//   - If the time is over before everything is removed, the final clean-up, which runs no
//     plugin, gets another 3 seconds.
//
// Setup returns the errors of package allocnet. *portmap.ConflictError names the
// allocation that already has a host port; *types.Error is the error of a plugin.
func (c *Configurator) Setup(ctx context.Context, a Allocation) (status *Status, err error) {
	err = c.operation(ctx, "setup", a.ID, func(ctx context.Context) error {
		if k := c.pickerFor(a.ID, a.Ports, nil); k != nil {
			status, err = c.setUpPicked(ctx, a, k)
		} else {
			status, err = c.setUpNumbered(ctx, a)
		}
		return err
	})
	return status, err
}

// setUpNumbered is Setup of an allocation whose host ports have numbers.
func (c *Configurator) setUpNumbered(ctx context.Context, a Allocation) (*Status, error) {
	p, unlock, err := c.lockForSetup(ctx, &a)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if status, err := c.setupFromPool(ctx, &a, p); status != nil || err != nil {
		return status, err
	}
	made, err := c.netns.Make(ctx, &a)
	if err != nil {
		return nil, err
	}
	status, err := c.setup(ctx, a, p)
	if err != nil && made {
		err = c.netns.Unmake(&a, err)
	}
	return status, err
}

// lockForSetup makes the plan of an allocation and locks the allocation.
func (c *Configurator) lockForSetup(ctx context.Context, a *Allocation) (p *plan.Plan, unlock func(), err error) {
	if err := plan.ValidateID(a.ID); err != nil { // before it becomes part of a path
		return nil, nil, err
	}
	if err := c.netns.Name(a); err != nil {
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
	p.Created = c.now() // not before the wait for the lock: GC keeps what was created since it began
	return p, unlock, nil
}

// requireNew returns ErrExists if the allocation must be new, and one is set up under its
// ID or has a record that cannot be read. The caller holds the lock of the allocation.
func (c *Configurator) requireNew(a *Allocation) error {
	if !a.MustBeNew {
		return nil
	}
	r, err := c.store.Get(a.ID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("set up allocation %q: %w, or may do so: %w", a.ID, ErrExists, err)
	case r.Phase == record.Ready && !r.FormerBoot:
		return fmt.Errorf("set up allocation %q: %w", a.ID, ErrExists)
	}
	return nil
}

// setup sets up an allocation whose network namespace exists. It reserves ports and
// namespace, records the intent, runs ADD and records the result. The caller holds the lock
// of the allocation.
func (c *Configurator) setup(ctx context.Context, a Allocation, p *plan.Plan) (*Status, error) {
	c.teardowns.forget(a.ID)
	release, netnsErr := netns.Bind(p.Record)
	defer release()
	current, err := c.currentPlan(ctx, a)
	if err != nil {
		return nil, err
	}
	c.backlog.removed(a.ID)
	if current != nil && !c.lostNetns(ctx, current, p.Record) {
		return c.setupExisting(ctx, current, p.Record)
	}
	if current != nil {
		c.cfg.Logger.Warn("the network namespace of the allocation is gone; setting it up again", "alloc", p.ID, "netns", p.Netns)
		if err := c.remove(ctx, current); err != nil {
			return nil, err
		}
	}
	if netnsErr != nil {
		return nil, netnsErr
	}
	if err := c.awaitNetns(ctx, p.Record); err != nil {
		return nil, err
	}
	if err := c.step(ctx, StepPlan, p.Record, func(context.Context) error { return c.complete(p) }); err != nil {
		return nil, err
	}
	listeners := c.searchListeners(p.Record)
	if err := c.refuseListeners(ctx, listeners, p.ID); err != nil {
		return nil, err
	}
	unlock, err := c.lockNetworks(ctx, p.Record)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := c.step(ctx, StepReserve, p.Record, func(ctx context.Context) error { return c.reserve(ctx, p) }); err != nil {
		return nil, err
	}
	status, err := c.addWithRetries(ctx, p)
	if err != nil {
		return nil, err
	}
	// The allocation is still locked, so no other operation can have used it.
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("allocation %q was set up too late: %w", p.ID, errors.Join(err, c.undo(ctx, p)))
	}
	status.Created, status.Warnings = true, c.portWarnings(ctx, p.Record, listeners, status)
	return status, nil
}

// currentPlan returns the plan of the allocation if it is set up, else nil. It removes
// what an interrupted operation left.
func (c *Configurator) currentPlan(ctx context.Context, a Allocation) (*plan.Plan, error) {
	current, err := c.store.Get(a.ID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, statedir.ErrNotOurs): // the allocation may be healthy
		return nil, err
	case unreadable(err):
		c.cfg.Logger.Warn("record cannot be read; removing everything that belongs to the allocation", "alloc", a.ID, "error", err)
		return nil, c.removeUnrecorded(ctx, a)
	case err != nil:
		return nil, err
	case current.Phase == record.Ready:
		return c.planOf(current), nil
	}
	p, interrupted := c.planOfRemoval(current)
	if interrupted {
		c.cfg.Logger.Warn("an earlier operation was interrupted; removing its leftovers", "alloc", a.ID, "phase", current.Phase)
	}
	return nil, c.remove(ctx, p)
}

// setupExisting is Setup of an allocation that is set up: it runs CHECK, and repairs the
// network, or sets it up again if something of it is lost.
func (c *Configurator) setupExisting(ctx context.Context, current *plan.Plan, wanted *record.Record) (*Status, error) {
	if !current.SameNetns(wanted) && !current.FormerBoot {
		return nil, fmt.Errorf("%w: allocation %q is in another network namespace, which was at %s; tear it down, or destroy that namespace, before it is set up in %s",
			ErrDifferent, current.ID, current.Netns, wanted.Netns)
	}
	unlock, err := c.lockNetworks(ctx, current.Record)
	if err != nil {
		return nil, err
	}
	defer unlock()
	current.Sandbox = wanted.Sandbox // the same namespace, possibly at another path
	aim, err := c.finishForSetup(ctx, current)
	if err != nil {
		return nil, err
	}
	if what := plan.Difference(aim.Record, c.requesting(aim, wanted)); what != "" {
		return nil, fmt.Errorf("%w: allocation %q was set up with another %s; tear it down first", ErrDifferent, current.ID, what)
	}
	if err := c.requireServed(aim); err != nil {
		return nil, err
	}
	listeners := c.searchListeners(aim.Record) // they cannot be refused any more
	if current.Update == nil {
		_, err = c.checkAndRepair(ctx, current)
	} else {
		err = c.checkRecord(ctx, current)
	}
	current.RequireAddress = wanted.RequireAddress
	if err == nil {
		status, err := plan.StatusOf(current.Record)
		if status, err = plan.WithAddress(current.Record, status, err); err == nil {
			status.Warnings = c.portWarnings(ctx, current.Record, listeners, status)
		}
		return status, err
	}
	// The end of a context says nothing about whether the network can be repaired.
	if !errors.Is(err, ErrUnhealthy) || ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	if !c.isLost(ctx, current, err) {
		return nil, fmt.Errorf("%w; its interfaces and addresses exist, so it was left as it is: undo what has changed it, or tear it down and set it up again", err)
	}
	return c.replace(ctx, current, listeners, redact.Text(err.Error()))
}

// replace sets up an allocation again whose network cannot be repaired, because of cause. If
// the context ends meanwhile, it continues for rollBackTime, because the allocation would be lost.
// If the state directory cannot be written, nothing is changed. The caller holds the locks of the
// allocation and its networks.
func (c *Configurator) replace(ctx context.Context, current *plan.Plan, listeners *hostports.Search, cause string) (*Status, error) {
	c.cfg.Logger.Warn("network is not as it was set up; setting it up again", "alloc", current.ID, "error", cause)
	release, err := netns.Bind(current.Record)
	defer release()
	if err != nil {
		return nil, err
	}
	before, _ := plan.StatusOf(current.Record) // only the warning needs it
	if err := c.noteDeleting(current.Record); err != nil {
		return nil, err
	}
	ctx, cancel := withTimeAfter(ctx, rollBackTime)
	defer cancel()
	if err := c.removeNetworks(ctx, current); err != nil {
		return nil, err
	}
	if current, err = c.intendAgain(current); err != nil {
		return nil, err
	}
	status, err := c.addWithRetries(ctx, current)
	if err != nil {
		return nil, err
	}
	status.SetUpAgain = true
	status.Warnings = append([]string{setUpAgain(before, status, cause)}, c.portWarnings(ctx, current.Record, listeners, status)...)
	return status, nil
}

// setUpAgain returns the warning for the caller of a Setup that had to replace the
// interfaces of an allocation.
func setUpAgain(before, after *Status, cause string) string {
	text := "the network was set up again, with new interfaces"
	if is, was := shownAddresses(after), shownAddresses(before); is != was && was != "" {
		text += fmt.Sprintf("; its addresses are now %s (before: %s)", is, was)
	}
	return text + "; the reason: " + strings.ReplaceAll(cause, "\n", "; ")
}

// shownAddresses returns the addresses of a status, which may be nil.
func shownAddresses(s *Status) string {
	if s == nil {
		return ""
	}
	both := []string{s.Address, s.AddressIPv6}
	return strings.Join(slices.DeleteFunc(slices.Compact(both), func(address string) bool { return address == "" }), ", ")
}

// complete adds networks, engine and plugins to a plan. It returns an error if Setup must
// refuse the allocation.
func (c *Configurator) complete(p *plan.Plan) error {
	if err := c.planNetworks(p, c.lookupToUse); err != nil {
		return err
	}
	if err := c.requireServed(p); err != nil {
		return err
	}
	if err := c.requireRoom(p.Networks...); err != nil {
		return err
	}
	p.NoteUnserved()
	c.chooseEngine(p)
	c.noteBinaries(p)
	if err := errors.Join(c.installed(p), c.requireInside(p)); err != nil {
		return err
	}
	if c.runsInProcess(p) { // native plugins check it themselves, and their DEL removes only their own interfaces
		return nil
	}
	return unused(p.Record)
}

// reserve records the intent. It returns an error if another record has the network
// namespace or one of the ports.
func (c *Configurator) reserve(ctx context.Context, p *plan.Plan) error {
	return c.reserveWith(ctx, p, c.store.Reserve)
}

// reserveWith is reserve with a function that records the intent.
func (c *Configurator) reserveWith(ctx context.Context, p *plan.Plan, write func(context.Context, *record.Record, func(error)) error) error {
	p.Updated = c.now()
	reserve := func() error {
		return write(ctx, p.Record, func(err error) { // if it has a requested port, ADD fails
			c.cfg.Logger.Warn("record cannot be read; its ports are ignored in the search for conflicts", "error", err)
		})
	}
	err := reserve()
	if other := holderOf(err); other != "" && c.finishAcknowledged(ctx, other) {
		err = reserve()
	}
	return c.conflictError(p, err)
}

// holderOf returns the allocation that has the network namespace or the container of another one; "" if
// the error is another one.
func holderOf(err error) string {
	var taken *record.NetnsError
	var namesake *record.ContainerError
	switch {
	case errors.As(err, &taken):
		return taken.OtherID
	case errors.As(err, &namesake):
		return namesake.OtherID
	}
	return ""
}

// conflictError returns the public error of a conflict with another allocation, and other errors as they are.
func (c *Configurator) conflictError(p *plan.Plan, err error) error {
	var taken *record.NetnsError
	var namesake *record.ContainerError
	var ports *portmap.ConflictError
	switch {
	case errors.As(err, &taken):
		return &NetnsError{Netns: taken.Netns, ID: p.ID, OtherID: taken.OtherID}
	case errors.As(err, &namesake) && namesake.Interface:
		return fmt.Errorf("%w: %w", ErrInUse, namesake)
	case errors.As(err, &namesake):
		return fmt.Errorf("%w: %w: tear that one down before, or choose another ID", ErrInvalidAllocation, namesake)
	case errors.As(err, &ports) && ports.OtherID != p.ID:
		other, otherErr := c.store.Get(ports.OtherID)
		if otherErr == nil && netns.IsGone(other) {
			return fmt.Errorf("%w, whose network namespace %q is gone: tear that allocation down", err, other.Netns)
		}
	}
	return err
}

// put sets the time of a record and writes it.
func (c *Configurator) put(r *record.Record) error {
	r.Updated = c.now()
	return c.store.Put(r)
}
