package configurator

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Check verifies that the network of an allocation is still as Setup left it. It runs CHECK
// of every plugin, and uses only the ID of the allocation. It changes nothing, unless
// Config.RepairOnCheck is set.
//
// Check returns ErrNotFound if the allocation has no record, or its Teardown has returned;
// ErrUnhealthy, with the findings of the plugins, if the network differs, or a Setup, Teardown,
// Update, Attach or Detach was interrupted; and ErrNotChecked if CHECK could not be completed,
// for example because a plugin is missing, hangs or crashes, or because the host has no file
// descriptors or memory left.
//
// Of a network whose configuration disables CHECK, Check only verifies that the interface and its
// addresses exist. So it does if the CNI version has no CHECK, unless all plugins of the network
// are native ones, the engine is EngineNative, and the version is 0.3.0 or newer.
func (c *Configurator) Check(ctx context.Context, a Allocation) error {
	return c.operation(ctx, "check", a.ID, func(ctx context.Context) error { return c.check(ctx, a, c.cfg.RepairOnCheck) })
}

// CheckOnly is Check without a repair; it ignores Config.RepairOnCheck.
func (c *Configurator) CheckOnly(ctx context.Context, a Allocation) error {
	return c.operation(ctx, "check", a.ID, func(ctx context.Context) error { return c.check(ctx, a, false) })
}

// CheckAll runs CHECK of allocations as CheckOnly does, as many at a time as there are
// processors, and looks only once at what they share on the host. The result has nil for a
// healthy allocation and otherwise the error of CheckOnly. It lacks the allocations that have
// been torn down and those that were not reached before the context ended. CheckAll
// does not call the Observer, so it can be called often.
func (c *Configurator) CheckAll(ctx context.Context, ids []string) map[string]error {
	health := make(map[string]error, len(ids))
	for _, o := range c.checkAll(checkOnce(ctx), Scope{}, ids) {
		if errors.Is(o.err, errUnchecked) {
			o.err = nil
		}
		if !errors.Is(o.err, errGone) && (o.err == nil || ctx.Err() == nil) {
			health[o.id] = o.err
		}
	}
	return health
}

func (c *Configurator) check(ctx context.Context, a Allocation, repairs bool) error {
	if err := plan.ValidateID(a.ID); err != nil {
		return err
	}
	unlock, err := c.lock(ctx, a.ID)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := c.load(a.ID)
	if err != nil {
		return err
	}
	if r.Acknowledged { // its Teardown has returned
		return fmt.Errorf("allocation %q: %w", a.ID, ErrNotFound)
	}
	p := c.planOf(r)
	err = c.checkRecord(ctx, p)
	if !repairs || !errors.Is(err, ErrUnhealthy) && !(err == nil && p.Unchecked()) {
		return err
	}
	release, err := c.lockNetworks(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	_, err = c.checkAndRepair(ctx, p)
	return err
}

// checkRecord is Check of a plan. The caller holds the lock of the allocation.
func (c *Configurator) checkRecord(ctx context.Context, p *plan.Plan) error {
	return c.step(ctx, StepCheck, p.Record, func(ctx context.Context) error { return c.examine(ctx, p) })
}

func (c *Configurator) examine(ctx context.Context, p *plan.Plan) error {
	unhealthy := func(err error) error {
		return fmt.Errorf("allocation %q: %w: %w", p.ID, ErrUnhealthy, err)
	}
	notChecked := func(err error) error {
		return fmt.Errorf("allocation %q: %w: %w", p.ID, ErrNotChecked, err)
	}
	if p.Phase != record.Ready {
		return unhealthy(fmt.Errorf("its record is in phase %q", p.Phase))
	}
	release, err := netns.Open(p.Record)
	defer release()
	if err == nil {
		err = errors.Join(checkInterfaces(p.Record), c.checkForwarding(ctx, p))
	}
	switch {
	case isFault(err):
		return unhealthy(err)
	case err != nil:
		return notChecked(err)
	case p.Pending != nil || p.Update != nil: // checkAndRepair finishes it
		return unhealthy(errors.New("an update, attach or detach was interrupted"))
	}
	if err := errors.Join(ctx.Err(), c.installed(p)); err != nil {
		return notChecked(err)
	}
	req, requestErr := c.request(p)
	e, engineErr := c.engine(p)
	if err := errors.Join(requestErr, engineErr); err != nil {
		return notChecked(err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	err = e.Check(ctx, req)
	switch {
	case err == nil || errors.Is(err, engine.ErrCheckUnsupported):
		return nil
	case isPluginFault(err) && ctx.Err() == nil:
		return unhealthy(err)
	}
	return notChecked(err)
}

// faultError is a fault that a check of the interfaces found. Other errors of such a check
// mean that it could not be completed.
type faultError struct{ error }

func (e faultError) Unwrap() error { return e.error }

// isFault reports whether an error is a fault of the network: a faultError, or an error
// for a missing network namespace or missing rules.
func isFault(err error) bool {
	var fault faultError
	return errors.As(err, &fault) || netns.IsMissing(err) || errors.Is(err, iptables.ErrMissing) || errors.Is(err, ruleset.ErrMissing)
}

// isPluginFault reports whether an error is a finding of a plugin. A plugin that runs to its
// end reports an error with a code (CNI specification, "Error"); any other error means that
// CHECK was not completed. The code 7 means that the configuration is invalid, which says nothing about
// the network, and 11 that the plugin does not know yet.
func isPluginFault(err error) bool {
	var e *types.Error
	return errors.As(err, &e) && e.Code != types.ErrUnknown && e.Code != types.ErrInvalidNetworkConfig && e.Code != types.ErrTryAgainLater
}
