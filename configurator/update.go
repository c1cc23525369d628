package configurator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/hostports"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// Update changes an allocation while it is set up, and returns its Status. All host ports of
// the change are published and unpublished in one transaction of nftables: there is no moment
// at which both or neither of the former and the latter answer. Connections to host ports that
// stay published go on, and those of the others end. If a host port leads to another port of
// the allocation from then on, its TCP connections stay where they are, and clients of UDP and
// SCTP follow. The interface, its addresses and all other connections do not change.
//
// Limits of bandwidth change in place: where one rate follows another, there is no moment
// without a limit, and packets that wait are not lost. On several networks, they change one
// after the other.
//
// Labels change with the ports and limits, or alone. Without network policies they are part of
// the record only, so allocations of the exec engine can change them, too. In networks with the
// plugin policy, the policies of other allocations select by the new labels from then on.
//
// For a port without a number (Value 0), Update picks a free one, as Setup does. Repeated, it
// publishes another one; a Change with the Revision from before is refused then.
//
// The policy of the change replaces that of the allocation, in one step: a packet meets either of
// them. Tracked connections that the policy or the labels deny from then on end.
//
// Update first repairs what another program has removed, as CheckAndRepair does. If it cannot, it
// changes the allocation nevertheless, and the Status has a warning. Update applies the Change to the
// kernel even if the record already contains it. The Revision changes only if the record changes. If
// the network cannot be changed (ErrCannotUpdate), such a Change runs CHECK instead, and Update
// returns the errors of Check.
//
// A later Setup of the ID must request the ports, labels, bandwidth and policy that the
// allocation has then, else it returns ErrDifferent.
//
// A change of ports needs the native plugin portmap with its own backend, and one of bandwidth
// the native plugin bandwidth without limits in its configuration; otherwise Update returns
// ErrCannotUpdate, or an *UnservedError if no plugin declares the capability. It returns
// ErrNotFound if the allocation is not set up or its network namespace is gone (then also
// ErrInvalidAllocation), a *RevisionError if it has another revision than the Change, and for host ports the errors of Setup. After an error nothing has changed,
// unless the change could not be undone. Then, and after the death of the process, Recover,
// Repair, Setup and the next Update of the allocation finish it: the allocation has either all
// that it had before the change or all that it has after it.
func (c *Configurator) Update(ctx context.Context, id string, change Change) (status *Status, err error) {
	err = c.operation(ctx, "update", id, func(ctx context.Context) error {
		if k := c.pickerFor(id, change.Publish, change.Unpublish); k != nil {
			status, err = c.updatePicked(ctx, change, k)
		} else {
			status, err = c.update(ctx, id, change)
		}
		return err
	})
	return status, err
}

// updatePicked is Update with ports to publish that have no number.
func (c *Configurator) updatePicked(ctx context.Context, change Change, k *hostports.Picker) (status *Status, err error) {
	for {
		if change.Publish, err = k.Pick(ctx); err != nil {
			return nil, err
		}
		if status, err = c.update(ctx, k.ID, change); err == nil || !k.Again(err) {
			return status, err
		}
	}
}

func (c *Configurator) update(ctx context.Context, id string, change Change) (*Status, error) {
	return c.change(ctx, id, change.Revision, "", func(p *plan.Plan) (*Status, error) {
		target, err := p.Aim(change, c.portOptions())
		switch {
		case err != nil:
			return nil, err
		case target.Enforce || !target.KeepsPorts || target.Bandwidth != nil:
			return c.changeTo(ctx, p, target)
		case !target.KeepsRevision:
			return c.recordLabelsAndPolicy(ctx, p, target)
		}
		return plan.StatusOf(p.Record)
	})
}

// recordLabelsAndPolicy changes only the record: the networks of the allocation do not enforce
// policies, so the kernel knows neither its labels nor a policy, which the change can only remove.
func (c *Configurator) recordLabelsAndPolicy(ctx context.Context, p *plan.Plan, target *record.Aim) (*Status, error) {
	done := *p.Record
	plan.SetLabelsAndPolicy(&done, target)
	done.Updated = c.now()
	done.Revision++
	if err := c.step(ctx, StepRecord, &done, func(context.Context) error { return c.put(&done) }); err != nil {
		return nil, err
	}
	return plan.StatusOf(&done)
}

// change calls act with the plan of an allocation that is set up and has the revision, or any
// revision if that is "". It first finishes an interrupted change. act runs under the locks of
// withLive.
func (c *Configurator) change(ctx context.Context, id, revision, network string, act func(*plan.Plan) (*Status, error)) (*Status, error) {
	return c.withLive(ctx, id, network, func(p *plan.Plan) (*Status, error) {
		if err := c.beginChange(ctx, p, revision); err != nil {
			return nil, err
		}
		return act(p)
	})
}

// beginChange finishes an interrupted change of an allocation, if there is one, and compares the
// revision unless that is "".
func (c *Configurator) beginChange(ctx context.Context, p *plan.Plan, revision string) error {
	if err := c.finishUpdate(ctx, p); err != nil {
		return err
	}
	if is := plan.RevisionOf(p.Record); revision != "" && revision != is {
		return &RevisionError{ID: p.ID, Wanted: revision, Current: is}
	}
	return nil
}

// withLive calls act with the plan of an allocation that is set up, and with its network namespace
// open. act runs under the locks of the allocation, of its networks and, unless that is "", of one
// more network.
func (c *Configurator) withLive(ctx context.Context, id, network string, act func(*plan.Plan) (*Status, error)) (*Status, error) {
	if err := errors.Join(plan.ValidateID(id), c.requirePrivileges()); err != nil {
		return nil, err
	}
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p, err := c.planToUpdate(id)
	if err != nil {
		return nil, err
	}
	release, err := netns.Open(p.Record)
	defer release()
	switch {
	case netns.IsLost(err):
		return nil, fmt.Errorf("change allocation %q: %w: %w", id, ErrNotFound, err)
	case err != nil:
		return nil, fmt.Errorf("change allocation %q: %w", id, err)
	}
	locked := *p.Record
	if network != "" {
		locked.Attachments = append(slices.Clone(locked.Attachments), record.Attachment{Network: network})
	}
	unlockNetworks, err := c.lockNetworks(ctx, &locked)
	if err != nil {
		return nil, err
	}
	defer unlockNetworks()
	return act(p)
}

// planToUpdate returns the plan of an allocation that is set up.
func (c *Configurator) planToUpdate(id string) (*plan.Plan, error) {
	r, err := c.load(id)
	if err != nil {
		return nil, err
	}
	if r.FormerBoot {
		return nil, fmt.Errorf("%w: allocation %q was set up before the host was rebooted; set it up again", ErrNotFound, id)
	}
	if r.Phase != record.Ready || r.Pool != "" {
		return nil, fmt.Errorf("%w: allocation %q is in phase %q", ErrNotFound, id, r.Phase)
	}
	p := c.planOf(r)
	if p.Unreadable != nil {
		return nil, p.Unreadable
	}
	return p, nil
}

// changeTo changes the host ports, limits, policy and labels of an allocation: it records the intent,
// with the ports from before and after, changes what the kernel has, and records the result.
func (c *Configurator) changeTo(ctx context.Context, p *plan.Plan, target *record.Aim) (*Status, error) {
	before, err := p.AimBefore(target)
	if err != nil {
		return nil, err
	}
	intent, err := p.Updating(target)
	if err != nil {
		return nil, err
	}
	if err := c.canUpdate(ctx, intent); errors.Is(err, ErrCannotUpdate) && target.KeepsRevision {
		return c.checkedStatus(ctx, p)
	} else if err != nil {
		return nil, err
	}
	unhealthy := c.repairBefore(ctx, p)
	more := plan.Added(before.Ports, target.Ports)
	listeners := c.searchListeners(&record.Record{ID: p.ID, ContainerID: p.ContainerID, Ports: more})
	if err := c.refuseListeners(ctx, listeners, p.ID); err != nil {
		return nil, err
	}
	if err := c.step(ctx, StepReserve, p.Record, func(ctx context.Context) error { return c.beginUpdate(ctx, p, intent) }); err != nil {
		return nil, err
	}
	done, err := c.carryOut(ctx, intent)
	if err != nil {
		return nil, errors.Join(err, c.undoUpdate(ctx, intent, before))
	}
	status, err := plan.StatusOf(done)
	if err == nil {
		status.Warnings = append(unhealthy, c.hostPorts().Warnings(ctx, more, listeners, p.ID, status)...)
	}
	return status, err
}

// repairBefore restores, before an update, what another program has removed of the allocation: without
// it, what the update makes may have no effect. If that is not possible, the update goes on, because it
// may take something away; the returned warning says what is wrong.
func (c *Configurator) repairBefore(ctx context.Context, p *plan.Plan) (warnings []string) {
	if _, err := c.checkAndRepair(ctx, p); errors.Is(err, ErrUnhealthy) {
		warnings = append(warnings, err.Error())
	}
	return warnings
}

// canUpdate returns an error if the recorded update of a plan cannot be carried out.
func (c *Configurator) canUpdate(ctx context.Context, p *plan.Plan) error {
	if err := p.RequireNative(); err != nil {
		return fmt.Errorf("update allocation %q: %w", p.ID, err)
	}
	return errors.Join(plan.ValidateBounds(p.Record), c.canPublish(ctx, p), c.canLimit(ctx, p))
}

// checkedStatus returns the Status of an allocation for which CHECK succeeds.
func (c *Configurator) checkedStatus(ctx context.Context, p *plan.Plan) (*Status, error) {
	if err := c.checkRecord(ctx, p); err != nil {
		return nil, err
	}
	return plan.StatusOf(p.Record)
}

// canPublish returns an *UnservedError or ErrCannotUpdate if the host ports at which the update
// of a plan aims cannot be published.
func (c *Configurator) canPublish(ctx context.Context, p *plan.Plan) error {
	if p.Update.KeepsPorts {
		return nil
	}
	if len(p.Update.Ports) > 0 && !p.Declares(portmap.Capability) {
		return p.UnservedError(portmap.Capability)
	}
	request, err := c.request(p)
	if err == nil {
		err = c.native.CanPublish(ctx, request)
	}
	if errors.Is(err, native.ErrCannotPublish) {
		return fmt.Errorf("update allocation %q: %w: %w", p.ID, ErrCannotUpdate, err)
	}
	return err
}

// beginUpdate records the intent of an update, and reserves its host ports. If another
// allocation has one, the record is as before.
func (c *Configurator) beginUpdate(ctx context.Context, p, intent *plan.Plan) error {
	if intent.Update.KeepsPorts {
		intent.Updated = c.now()
		return c.store.BeginUpdate(intent.Record)
	}
	first := *p.Record
	first.Update = intent.Update
	err := c.store.BeginUpdate(&first)
	if err == nil {
		err = c.reserve(ctx, intent)
	}
	if err != nil {
		err = errors.Join(err, c.dropUpdate(&first))
	}
	return err
}

// dropUpdate records that an update has changed nothing.
func (c *Configurator) dropUpdate(r *record.Record) error {
	reserved := slices.Concat(r.Ports, r.Update.Ports)
	r.Update = nil
	return c.store.EndUpdate(r, reserved)
}

// carryOut gives an allocation the host ports, limits, policy and labels at which its recorded
// update aims, and records that it has them. The caller holds the locks of the allocation and
// its networks.
func (c *Configurator) carryOut(ctx context.Context, p *plan.Plan) (*record.Record, error) {
	after, err := p.After(p.Update)
	if err != nil {
		return nil, err
	}
	if !p.Update.KeepsPorts {
		err = c.publish(ctx, p, after)
	}
	if err == nil && p.Update.Bandwidth != nil {
		err = c.limit(ctx, after)
	}
	if err == nil && p.Update.Enforce {
		err = c.enforce(ctx, after)
	}
	if err != nil {
		return nil, err
	}
	done := after.Record
	done.Updated = c.now()
	return done, c.step(ctx, StepRecord, done, func(context.Context) error { return c.store.EndUpdate(done, p.Ports) })
}

// apply runs a step of an update with the request of a plan, in Config.Timeout.
func (c *Configurator) apply(ctx context.Context, step string, p *plan.Plan, act func(context.Context, *engine.Request) error) error {
	return c.step(ctx, step, p.Record, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
		request, err := c.request(p)
		if err != nil {
			return err
		}
		return act(ctx, request)
	})
}

// enforce makes the policy and the labels of a plan active.
func (c *Configurator) enforce(ctx context.Context, after *plan.Plan) error {
	return c.apply(ctx, StepEnforce, after, c.native.Enforce)
}

// publish changes the host ports in the kernel from those of one plan to those of another.
func (c *Configurator) publish(ctx context.Context, before, after *plan.Plan) error {
	return c.apply(ctx, StepPublish, after, func(ctx context.Context, request *engine.Request) error {
		if !c.runsInProcess(after) {
			if err := c.allowForwarding(ctx, after); err != nil {
				return err
			}
		}
		return c.native.Publish(ctx, request, before.Capabilities)
	})
}

// undoUpdate gives an allocation what it had before an update that failed. If that fails, the
// record keeps it as the aim of an update.
func (c *Configurator) undoUpdate(ctx context.Context, p *plan.Plan, before *record.Aim) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	p.Update = before
	if err := c.put(p.Record); err != nil { // the record still has the change as its aim
		return fmt.Errorf("what the allocation had before could not be restored, because that could not be recorded; Repair completes the change: %w", record.Unfinished(err))
	}
	if _, err := c.carryOut(ctx, p); err != nil {
		return fmt.Errorf("what the allocation had before could not be restored; Repair tries it again: %w", record.Unfinished(err))
	}
	return nil
}

// finishUpdate finishes an update, attach or detach that was interrupted, if there is one. The caller holds the
// locks of the allocation and its networks, and has opened its network namespace.
func (c *Configurator) finishUpdate(ctx context.Context, p *plan.Plan) error {
	if err := c.finishPending(ctx, p); err != nil || p.Update == nil {
		return err
	}
	if p.LacksPorts() {
		return c.dropUpdate(p.Record)
	}
	c.cfg.Logger.Warn("an update was interrupted; finishing it", "alloc", p.ID)
	done, err := c.carryOut(ctx, p)
	if err != nil {
		return fmt.Errorf("finish the update of allocation %q that was interrupted: %w", p.ID, record.Unfinished(err))
	}
	*p.Record = *done
	return nil
}

// finishForSetup finishes an interrupted change before a Setup, and returns the plan with which
// its request is compared. If an update cannot be finished because an interface is gone, that is
// the plan at which it aims, and Setup sets the allocation up again with it. The caller holds the
// locks of the allocation and its networks, and has opened its network namespace if it exists.
func (c *Configurator) finishForSetup(ctx context.Context, p *plan.Plan) (*plan.Plan, error) {
	if p.Update != nil && p.LacksPorts() {
		if err := c.dropUpdate(p.Record); err != nil {
			return nil, err
		}
	}
	if p.Sandbox != nil && !p.FormerBoot {
		err := c.finishUpdate(ctx, p)
		if err != nil && (p.Pending != nil || !isFault(checkInterfaces(p.Record))) {
			return nil, fmt.Errorf("%w: %w", ErrNotChecked, err)
		}
	}
	if p.Update == nil {
		return p, nil
	}
	return p.After(p.Update)
}
