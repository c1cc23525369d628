package firewall

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// zoned is the default backend. If firewalld is running, zoned adds the
// addresses to a zone as sources. In any case it adds them to allocnet's
// tables: see sdk.Host.DelOwned.
type zoned struct {
	zone string
	// required reports whether the configuration names firewalld.
	required bool
}

var errNotRunning = errors.New("firewalld is not running")

// runs reports whether to use firewalld. Like the reference plugin, it regards
// firewalld as not running if firewalld is not reachable.
func (z zoned) runs(ctx context.Context, c *sdk.CmdArgs) (bool, error) {
	runs, err := c.Host.Firewalld.Runs(ctx)
	switch {
	case runs:
		return true, nil
	case z.required && err == nil:
		return false, fmt.Errorf(`backend "firewalld": %w`, errNotRunning)
	case errors.Is(err, firewalld.ErrUnreachable) && !z.required:
		c.Host.Log.Warn("firewalld is not reachable; addresses are not added to its zone", "zone", z.zone, "because", err)
		return false, nil
	}
	return false, err
}

func (z zoned) add(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	runs, err := z.runs(ctx, c)
	if err != nil {
		return err
	}
	if !runs {
		return native{}.add(ctx, c, p)
	}
	p.zone = z.zone
	open := sdk.Step{Name: "accept addresses", Do: func(ctx context.Context) error { return z.open(ctx, c, p) }}
	if !p.repair {
		open.Undo = func(ctx context.Context) error { return z.del(ctx, c, p) }
	}
	return sdk.Run(ctx, open, sdk.Step{Name: "add sources", Do: func(ctx context.Context) error {
		for _, a := range p.addresses {
			if err := c.Host.Firewalld.Add(ctx, z.zone, a); err != nil {
				return err
			}
		}
		z.warnOfOthers(ctx, c, p)
		return nil
	}})
}

// warnOfOthers logs a warning for addresses that are also in other zones, which
// may drop their packets. Like the reference plugin's, ADD continues.
func (z zoned) warnOfOthers(ctx context.Context, c *sdk.CmdArgs, p *attachment) {
	others, err := c.Host.Firewalld.OtherZones(ctx, z.zone, p.addresses)
	if err != nil {
		c.Host.Log.Warn("could not list the other firewalld zones of the addresses", "addresses", p.addresses, "because", err)
	}
	for address, other := range others {
		c.Host.Log.Warn("another firewalld zone also has the address and may drop its packets",
			"address", address, "zone", other, "wanted", z.zone)
	}
}

// open adds the elements. If the zone is the one that accepts everything, it
// also adds the forward-accept rule for the host's other rules. Other zones may
// drop the packets.
func (z zoned) open(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	if z.zone == firewalld.DefaultZone {
		return native{}.add(ctx, c, p)
	}
	return c.Host.Rules.Add(ctx, p.elements(c))
}

func (z zoned) check(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	runs, err := z.runs(ctx, c)
	if err != nil {
		return err
	}
	if !runs {
		return errors.Join(native{}.check(ctx, c, p), z.unseen(ctx, c, p))
	}
	p.zone = z.zone
	var errs []error
	if z.zone == firewalld.DefaultZone {
		errs = append(errs, native{}.check(ctx, c, p))
	} else {
		errs = append(errs, c.Host.Rules.Check(ctx, p.elements(c)))
	}
	return errors.Join(append(errs, z.checkSources(ctx, c, p))...)
}

func (z zoned) checkSources(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	var errs []error
	for _, a := range p.addresses {
		is, err := c.Host.Firewalld.Has(ctx, z.zone, a)
		if err == nil && !is {
			err = fmt.Errorf("%s is not in zone %q of firewalld", a, z.zone)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkReference looks for the sources or rules of the reference plugin.
func (z zoned) checkReference(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	runs, err := z.runs(ctx, c)
	switch {
	case err != nil:
		return err
	case runs:
		return z.checkSources(ctx, c, p)
	}
	return iptablesBackend{}.check(ctx, c, p)
}

// unseen returns an error if an address is in a zone but firewalld is not
// reachable.
func (z zoned) unseen(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	_, runsErr := c.Host.Firewalld.Runs(ctx)
	if runsErr == nil {
		return nil
	}
	open, err := c.Host.Rules.OpenAddresses(ctx, p.addresses)
	if slices.ContainsFunc(open, func(a ruleset.OpenAddress) bool { return a.Zone != "" }) {
		return runsErr
	}
	return err
}

// del removes the elements after it has removed the addresses from all zones.
func (z zoned) del(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	err := c.LeaveZones(ctx, p.network, p.addresses)
	if err == nil {
		err = z.leave(ctx, c, p)
	}
	if err != nil {
		return err
	}
	return native{}.del(ctx, c, p)
}

// leave removes addresses without an element from the zone: the reference
// plugin added them, or the elements were flushed. It keeps an address that has
// an element of another attachment by now.
func (z zoned) leave(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	runs, err := c.Host.Firewalld.Runs(ctx)
	switch {
	case len(p.addresses) == 0 || !runs && err == nil:
		return nil
	case err != nil && (!p.byReference || errors.Is(err, fs.ErrNotExist)):
		return nil // firewalld was never contacted
	case err != nil:
		return fmt.Errorf("remove %v from zone %q: %w", p.addresses, z.zone, err)
	}
	open, err := c.Host.Rules.OpenAddresses(ctx, p.addresses)
	if err != nil {
		return err
	}
	var errs []error
	owner := c.Owner(p.network).String()
	for _, a := range p.addresses {
		i := slices.IndexFunc(open, func(o ruleset.OpenAddress) bool { return o.Address == a })
		if i < 0 || open[i].Owner.String() == owner {
			errs = append(errs, c.Host.Firewalld.Remove(ctx, z.zone, a))
		}
	}
	return errors.Join(errs...)
}

func (z zoned) status(ctx context.Context, c *sdk.CmdArgs) error {
	if _, err := z.runs(ctx, c); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "firewalld is not usable", err.Error())
	}
	return native{}.status(ctx, c)
}
