package configurator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
)

// RestoreReport is the result of a Restore: IDs of allocations, from the oldest to the newest.
type RestoreReport struct {
	// Restored are the allocations of which something was missing and has been restored.
	Restored []string
	// Unchecked are the other allocations of which Restore cannot tell whether they are
	// complete: those with rules outside of allocnet's tables, or with plugin binaries.
	Unchecked []string
	// Failed are the allocations of which something could not be restored.
	Failed []string
	// Busy are the allocations that another operation was working on.
	Busy []string
}

// Restore restores, for all allocations at once, what another program removed from the host:
// elements of allocnet's tables in one transaction, and objects that allocations share once.
// With IDs, it does so for these allocations only. It does not run CHECK, so it does not report
// an allocation as healthy: CheckAndRepair does. Restore leaves out allocations that another
// operation is working on, and those whose network namespace is gone.
//
// Without IDs, Restore also has the slots of the pools checked in the background; damaged ones
// are discarded.
//
// Restore is quick: with nothing to restore, it takes some hundred microseconds per
// allocation.
func (c *Configurator) Restore(ctx context.Context, ids ...string) (*RestoreReport, error) {
	all := len(ids) == 0
	if all {
		var err error
		if ids, err = c.store.IDs(); err != nil {
			return nil, err
		}
	}
	for _, id := range ids {
		if err := plan.ValidateID(id); err != nil {
			return nil, err
		}
	}
	began := c.now()
	restored, order, err := c.restoreAll(iptables.CheckOnce(ctx), Scope{}, ids)
	took := c.now().Sub(began)
	if all {
		c.recheckSlots()
	}
	report := &RestoreReport{}
	for _, id := range ids {
		if _, tried := restored[id]; !tried {
			report.Busy = append(report.Busy, id)
		}
	}
	for _, id := range order {
		switch r := restored[id]; {
		case r.Changed:
			report.Restored = append(report.Restored, id)
			c.noteRestored(ctx, id, took, nil, r.Err)
		case r.Err != nil:
			report.Failed = append(report.Failed, id)
			c.noteRestored(ctx, id, took, nil, r.Err)
		case r.Check:
			report.Unchecked = append(report.Unchecked, id)
		}
	}
	return report, err
}

// HoldGuard makes this process hold the source guard of the host, unless Config.OneShot is set: if another
// program flushes the ruleset, packets of allocations with a policy are dropped until their rules are
// restored. Setup and Repair do that for what they make. HoldGuard does it for what other processes have
// made, and changes nothing if no allocation needs a guard.
func (c *Configurator) HoldGuard(ctx context.Context) error { return c.native.HoldGuard(ctx) }

// CheckAndRepair runs CHECK of one allocation and repairs what it can, as Repair does for all
// allocations. It reports whether something was repaired. The errors are those of Check;
// ErrNotFound also means that the allocation is being set up or torn down, or that its network
// namespace is gone.
func (c *Configurator) CheckAndRepair(ctx context.Context, id string) (repaired bool, err error) {
	r, err := c.load(id)
	if err != nil {
		return false, err
	}
	if r.Pool != "" {
		c.recheckSlots()
	}
	if r.Phase != record.Ready || netns.Gone(r) {
		return false, fmt.Errorf("allocation %q in phase %q: %w", id, r.Phase, ErrNotFound)
	}
	began := c.now()
	found, err := c.repairOne(ctx, Scope{}, id)
	if found != nil {
		c.noteRestored(ctx, id, c.now().Sub(began), found, err)
	}
	if errors.Is(err, errGone) {
		err = fmt.Errorf("allocation %q: %w", id, ErrNotFound)
	}
	return found != nil, err
}

// restoreAll restores the allocations of a scope at once, the oldest first. It holds the
// locks of all of them, so that none is torn down meanwhile. An allocation that another
// operation has locked has no entry in the result; order has those that are set up.
func (c *Configurator) restoreAll(ctx context.Context, s Scope, ids []string) (restored map[string]engine.Restored, order []string, err error) {
	locked, unlock, err := c.store.TryLocks(ids)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	restored = make(map[string]engine.Restored, len(locked))
	for _, id := range locked {
		restored[id] = engine.Restored{}
	}
	plans := c.plansToRestore(s, locked)
	var native, others []*plan.Plan
	var networks []string
	for _, p := range plans {
		order = append(order, p.ID)
		for _, a := range p.Attachments {
			networks = append(networks, a.Network)
		}
		if p.Update != nil || p.Pending != nil { // CheckAndRepair finishes it
			restored[p.ID] = engine.Restored{Check: true}
			continue
		}
		if Engine(p.Engine) != EngineNative {
			others = append(others, p)
			continue
		}
		native = append(native, p)
	}
	slices.Sort(networks)
	release, err := c.store.Share(ctx, slices.Compact(networks))
	if err != nil {
		return restored, order, err
	}
	defer release()
	c.restoreOthers(ctx, others, restored)
	return restored, order, c.restoreNative(ctx, native, restored)
}

// restoreNative restores allocations whose plugins run in the process, and adds the outcomes.
func (c *Configurator) restoreNative(ctx context.Context, plans []*plan.Plan, restored map[string]engine.Restored) error {
	var ids []string
	var requests []*engine.Request
	for _, p := range plans {
		request, err := c.request(p)
		if err != nil {
			restored[p.ID] = engine.Restored{Check: true, Err: err}
			continue
		}
		ids, requests = append(ids, p.ID), append(requests, request)
	}
	if len(requests) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	outcomes, err := c.native.Restore(ctx, requests)
	for i := range outcomes {
		restored[ids[i]] = outcomes[i]
	}
	return err
}

// plansToRestore returns the plans of the allocations of a scope that are set up and whose
// network namespace exists, the oldest first. The caller holds their locks.
func (c *Configurator) plansToRestore(s Scope, ids []string) (plans []*plan.Plan) {
	for _, id := range ids {
		r, err := c.store.Get(id)
		if err == nil && r.Phase == record.Ready && covers(s, r) && !netns.Gone(r) {
			plans = append(plans, c.planOf(r))
		}
	}
	slices.SortStableFunc(plans, func(a, b *plan.Plan) int { return a.Created.Compare(b.Created) })
	return plans
}

// restoreOthers restores what the configurator itself adds for the plugin binaries. Rules for
// a bridge are checked once for all allocations.
func (c *Configurator) restoreOthers(ctx context.Context, plans []*plan.Plan, restored map[string]engine.Restored) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	checked := map[string]bool{}
	for _, p := range plans {
		one := engine.Restored{Check: true}
		if key := forwardingKey(p); key != "" && !checked[key] {
			checked[key] = true
			if err := c.checkForwarding(ctx, p); isFault(err) {
				one.Err = c.allowForwarding(ctx, p)
				one.Changed = one.Err == nil
			}
		}
		restored[p.ID] = one
	}
}

// forwardingKey is the same for plans with the same rules of allowForwarding; "" stands for
// none.
func forwardingKey(p *plan.Plan) (key string) {
	_ = eachDestination(context.Background(), p, func(_ context.Context, d iptables.Destination) error {
		key += fmt.Sprint(d) + "/"
		return nil
	})
	if key == "" && len(p.Ports) > 0 {
		key = "guard"
	}
	return key
}
