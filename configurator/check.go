package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// Check finds out whether the network of an allocation is still as Setup left
// it, with CHECK of every plugin, and changes nothing unless the Config has
// RepairOnCheck. Only the ID of the
// allocation is looked at. It is ErrNotFound where nothing is set up,
// ErrUnhealthy, with what the plugins said, where something is amiss, and
// ErrNotChecked where that could not be found out: a plugin was missing, hung,
// crashed or was interrupted, or the host had no descriptor or memory left.
//
// Networks whose configuration is too old for CHECK, or disables it, are only
// looked at from outside: the interface must be there with its addresses.
func (c *Configurator) Check(ctx context.Context, a Allocation) error {
	return c.operation(ctx, "check", a.ID, func(ctx context.Context) error { return c.check(ctx, a, c.cfg.RepairOnCheck) })
}

// CheckOnly is Check without a repair, whatever the Config says of RepairOnCheck.
func (c *Configurator) CheckOnly(ctx context.Context, a Allocation) error {
	return c.operation(ctx, "check", a.ID, func(ctx context.Context) error { return c.check(ctx, a, false) })
}

func (c *Configurator) check(ctx context.Context, a Allocation, repairs bool) error {
	if err := validateID(a.ID); err != nil {
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
	p := c.planOf(r)
	if err = c.checkRecord(ctx, p); !repairs || !errors.Is(err, ErrUnhealthy) {
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

// checkRecord is Check of a record; the caller holds its lock.
func (c *Configurator) checkRecord(ctx context.Context, p *plan) error {
	return c.step(ctx, StepCheck, p.Record, func(ctx context.Context) error { return c.examine(ctx, p) })
}

func (c *Configurator) examine(ctx context.Context, p *plan) error {
	unhealthy := func(err error) error {
		return fmt.Errorf("allocation %q: %w: %w", p.ID, ErrUnhealthy, err)
	}
	notChecked := func(err error) error {
		return fmt.Errorf("allocation %q: %w: %w", p.ID, ErrNotChecked, err)
	}
	if p.Phase != record.Ready {
		return unhealthy(fmt.Errorf("its record is in phase %q", p.Phase))
	}
	release, err := openNetns(p.Record)
	defer release()
	if err == nil {
		err = errors.Join(checkInterfaces(p.Record), checkForwarding(ctx, p))
	}
	switch {
	case isFault(err):
		return unhealthy(err)
	case err != nil:
		return notChecked(err)
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

// faultError is what a look from outside found, unlike that it could not look.
type faultError struct{ error }

func (e faultError) Unwrap() error { return e.error }

// isFault also knows the errors of those that look for us: that the namespace is
// gone, and that rules are missing.
func isFault(err error) bool {
	var fault faultError
	if errors.As(err, &fault) {
		return true
	}
	return slices.ContainsFunc([]error{
		fs.ErrNotExist, unix.ENOTDIR, sandbox.ErrNotNamespace, sandbox.ErrHostNamespace, errElsewhere, iptables.ErrMissing, ruleset.ErrMissing,
	}, func(is error) bool { return errors.Is(err, is) })
}

// isPluginFault tells what a plugin found from that it could not look: a plugin that
// ran to its end reports an error with a code (CNI specification, "Error"). The
// code 11 says that it will know later.
func isPluginFault(err error) bool {
	var e *types.Error
	return errors.As(err, &e) && e.Code != types.ErrUnknown && e.Code != types.ErrTryAgainLater
}
