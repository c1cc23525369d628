package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Repair checks every allocation that is set up, and restores objects on the host that
// another program has removed or disabled: rules, the address of a bridge, forwarding, and leases
// whose address is still free. Call it after "nft flush ruleset", a restart of firewalld or a
// similar event. In a network namespace, Repair restores what another program has changed of the
// interface of an allocation of EngineNative whose plugins all run in this process: its settings, addresses and routes.
// Its connections stay.
//
// Repair runs CHECK of each allocation. It restores what the unhealthy ones lack at once, see
// Restore, and so for networks without CHECK, and then repairs those that are still unhealthy, from the oldest to the newest. If
// several allocations have requested a host port, the port therefore leads to the first one
// again. An object that allocations share counts for the oldest of them.
//
// Repair checks objects that all allocations share only once. If another program removes one
// while Repair runs, the next Repair restores it.
//
// Repair also removes exemptions from masquerading (ipMasqExcept, Routes.Cluster) of networks
// without allocations: the configuration may have changed.
//
// Allocations that Repair cannot repair are Broken, and the error has the reasons, each in an
// *AllocationError. A Setup of such an allocation sets it up again if something that ADD has made is gone.
func (c *Configurator) Repair(ctx context.Context) (report *RepairReport, err error) {
	return c.RepairScope(ctx, Scope{})
}

// RepairScope is Repair of the allocations of one scope. It also restores objects that they
// share with other allocations. Unless the scope is that of all, it removes no exemptions.
func (c *Configurator) RepairScope(ctx context.Context, s Scope) (report *RepairReport, err error) {
	err = c.operation(ctx, "repair", "", func(ctx context.Context) error {
		report, err = c.repair(ctx, s)
		return err
	})
	return report, err
}

func (c *Configurator) repair(ctx context.Context, s Scope) (*RepairReport, error) {
	ids, err := c.within(s)
	report, errs := &RepairReport{Healthy: []string{}, Repaired: []string{}, Broken: []string{}}, []error{err}
	defer sortReport(report)
	unhealthy := map[string]error{} // with what CHECK found
	outcomes := slices.DeleteFunc(c.checkAll(checkOnce(ctx), s, ids), func(o outcome) bool {
		switch {
		case errors.Is(o.err, ErrUnhealthy):
			unhealthy[o.id] = o.err
		case errors.Is(o.err, errUnchecked):
			unhealthy[o.id] = errMissingUnchecked
		default:
			return false
		}
		return true
	})
	for _, o := range append(outcomes, c.repairUnhealthy(checkOnce(ctx), s, unhealthy)...) {
		switch {
		case ctx.Err() != nil:
			return report, errors.Join(append(errs, ctx.Err())...)
		case errors.Is(o.err, errGone):
		case o.err != nil:
			report.Broken = append(report.Broken, o.id)
			errs = append(errs, about(o.id, o.err))
		case o.done:
			report.Repaired = append(report.Repaired, o.id)
		default:
			report.Healthy = append(report.Healthy, o.id)
		}
	}
	if s.Name == "" {
		removed, err := c.native.DelUnused(ctx)
		if errs = append(errs, unlessUnsupported(err)); removed > 0 {
			c.cfg.Logger.Info("removed unused exemptions from masquerading", "number", removed)
		}
	}
	return report, errors.Join(append(errs, ctx.Err())...)
}

// checkOnce returns a context in which objects that all allocations share are checked only once:
// they take longer than all else in a CHECK.
func checkOnce(ctx context.Context) context.Context {
	return announce.CheckOnce(ruleset.CheckOnce(iptables.CheckOnce(ctx)))
}

// repairUnhealthy restores what allocations lack, first for all of them at once. found is what CHECK has found, by
// ID. The outcomes tell which were repaired.
func (c *Configurator) repairUnhealthy(ctx context.Context, s Scope, found map[string]error) []outcome {
	if len(found) == 0 {
		return nil
	}
	ids := c.oldestFirst(slices.Sorted(maps.Keys(found)))
	began := c.now()
	restored, _, err := c.restoreAll(ctx, s, ids)
	took := c.now().Sub(began)
	if err != nil { // CHECK finds what is still missing
		c.cfg.Logger.Warn("could not restore all allocations at once; repairing one after the other", "error", redact.Text(err.Error()))
	}
	outcomes := c.checkAll(ctx, s, ids)
	for i := range outcomes {
		o := &outcomes[i]
		switch {
		case errors.Is(o.err, ErrUnhealthy):
			var repaired error
			repaired, o.err = c.repairOne(ctx, s, o.id)
			o.done = repaired != nil
		case errors.Is(o.err, errUnchecked):
			o.err = restored[o.id].Err
		}
		if o.err == nil && !o.done && restored[o.id].Changed {
			o.done = true
			c.noteRestored(ctx, o.id, took, found[o.id], nil) // otherwise it was a step of this operation
		}
	}
	return outcomes
}

// checkAll runs CHECK of many allocations, as many at a time as there are processors. The
// outcomes are in the order of the IDs.
func (c *Configurator) checkAll(ctx context.Context, s Scope, ids []string) []outcome {
	return each(ctx, c.checks, ids, func(id string) (bool, error) {
		return false, c.withRecord(ctx, s, id, func(p *plan.Plan) error {
			release, _ := netns.Open(p.Record) // CHECK reports the error
			defer release()
			err := c.checkRecord(ctx, p)
			if err == nil && p.Unchecked() {
				err = errUnchecked
			}
			return err
		})
	})
}

// oldestFirst sorts allocations by the time of their creation. If attachments of one container
// share a host port, the first one that is restored gets it; for others, see Record.PortOrder.
// Allocations whose records cannot be read come first.
func (c *Configurator) oldestFirst(ids []string) []string {
	created := make(map[string]time.Time, len(ids))
	for _, id := range ids {
		if r, err := c.store.Get(id); err == nil {
			created[id] = r.Created
		}
	}
	return slices.SortedStableFunc(slices.Values(ids), func(a, b string) int { return created[a].Compare(created[b]) })
}

func sortReport(r *RepairReport) {
	for _, list := range [][]string{r.Healthy, r.Repaired, r.Broken} {
		slices.Sort(list)
	}
}

// errUnchecked: no fault was found, but a network of the allocation has no CHECK.
var errUnchecked = errors.New("a network has no CHECK")

// errGone: another operation has torn the allocation down.
var errGone = errors.New("the record no longer exists")

// repairOne is checkAndRepair of an allocation of a scope.
func (c *Configurator) repairOne(ctx context.Context, s Scope, id string) (found, err error) {
	err = c.withRecord(ctx, s, id, func(p *plan.Plan) (err error) {
		found, err = c.checkAndRepair(ctx, p)
		return err
	})
	return found, err
}

// withRecord calls act with the plan of an allocation of a scope, and holds its locks
// meanwhile. The error is errGone if there is no such allocation any more.
func (c *Configurator) withRecord(ctx context.Context, s Scope, id string, act func(*plan.Plan) error) error {
	if err := plan.ValidateID(id); err != nil {
		return err
	}
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := c.store.Get(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errGone
	case err != nil:
		return err
	case r.Acknowledged, r.Pool != "": // its Teardown has returned, or it is a slot
		return errGone
	case !covers(s, r): // it was torn down, and set up again in another scope
		return errGone
	}
	release, err := c.lockNetworks(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	return act(c.planOf(r))
}

// checkAndRepair runs CHECK of an allocation. If that finds a fault, it restores what it can
// without a DEL and runs CHECK again. It returns as found what it has repaired, nil for nothing. The caller holds
// the lock of the allocation.
func (c *Configurator) checkAndRepair(ctx context.Context, p *plan.Plan) (found, err error) {
	release, gone := netns.Open(p.Record) // CHECK reports the error
	defer release()
	if gone == nil && p.Phase == record.Ready {
		if err := c.finishUpdate(ctx, p); err != nil {
			return nil, notFinished(ctx, err)
		}
	}
	err = c.checkRecord(ctx, p)
	if err == nil && gone == nil && p.Unchecked() {
		return c.restoreUnchecked(ctx, p)
	}
	if gone != nil || !errors.Is(err, ErrUnhealthy) || p.Phase != record.Ready {
		return nil, err
	}
	var could bool
	repairErr := c.step(ctx, StepRepair, p.Record, func(ctx context.Context) (repairErr error) {
		could, repairErr = c.repairFaults(ctx, p, err)
		return repairErr
	})
	if !could || repairErr != nil {
		return nil, errors.Join(err, repairErr)
	}
	if err := c.checkRecord(ctx, p); err != nil {
		return nil, err
	}
	c.cfg.Logger.Warn("network was not as it was set up; restored what was missing", "alloc", p.ID, "found", redact.Text(err.Error()))
	return err, nil
}

// notFinished is the error of an allocation whose interrupted update, attach or detach cannot be
// finished. It is unhealthy, as CHECK without a repair says, unless the context has ended.
func notFinished(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrNotChecked, err)
	}
	return fmt.Errorf("%w: %w", ErrUnhealthy, err)
}

// errMissingUnchecked is what restoreUnchecked has found.
var errMissingUnchecked = errors.New("something was missing on the host that CHECK does not look for, because a network has none")

// restoreUnchecked restores what CHECK does not find to be missing because a network has none.
func (c *Configurator) restoreUnchecked(ctx context.Context, p *plan.Plan) (found, err error) {
	err = c.step(ctx, StepRepair, p.Record, func(ctx context.Context) error {
		restored := map[string]engine.Restored{}
		if Engine(p.Engine) != EngineNative {
			c.restoreOthers(ctx, []*plan.Plan{p}, restored)
		} else if err := c.restoreNative(ctx, []*plan.Plan{p}, restored); err != nil {
			return err
		}
		if restored[p.ID].Changed {
			found = errMissingUnchecked
		}
		return restored[p.ID].Err
	})
	if err != nil {
		return nil, fmt.Errorf("allocation %q: %w: %w", p.ID, ErrNotChecked, err)
	}
	return found, nil
}

// repairFaults repairs the faults that CHECK found, and reports whether the engine is able to.
func (c *Configurator) repairFaults(ctx context.Context, p *plan.Plan, found error) (could bool, err error) {
	down := errors.Is(found, errLoopbackDown)
	if down {
		if err := p.Sandbox.LoopbackUp(); err != nil {
			return true, fmt.Errorf("repair allocation %q: %w", p.ID, err)
		}
	}
	if Engine(p.Engine) != EngineNative {
		missing := errors.Is(found, iptables.ErrMissing) || errors.Is(found, ruleset.ErrMissing) // a reloaded firewall
		if missing {
			err = c.allowForwarding(ctx, p)
		}
		return missing || down, err
	}
	req, err := c.request(p)
	if err != nil {
		return true, fmt.Errorf("repair allocation %q: %w", p.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return true, c.native.Repair(ctx, req)
}
