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

// zoned makes the addresses sources of a zone of firewalld, where firewalld runs, and
// else leaves them to allocnet's own tables. The tables have them in both cases: see
// sdk.Host.DelOwned.
type zoned struct {
	zone string
	// required says that the configuration names firewalld.
	required bool
}

var errNotRunning = errors.New("firewalld does not run")

// runs reports whether firewalld is to be asked. Where it cannot be asked, the
// reference plugin takes it for not running, too.
func (z zoned) runs(ctx context.Context, c *sdk.CmdArgs) (bool, error) {
	runs, err := c.Host.Firewalld.Runs(ctx)
	switch {
	case runs:
		return true, nil
	case z.required && err == nil:
		return false, fmt.Errorf(`backend "firewalld": %w`, errNotRunning)
	case errors.Is(err, firewalld.ErrUnreachable) && !z.required:
		c.Host.Log.Warn("addresses are not added to firewalld's zone", "zone", z.zone, "because", err)
		return false, nil
	}
	return false, err
}

func (z zoned) add(ctx context.Context, c *sdk.CmdArgs, p *passage) error {
	runs, err := z.runs(ctx, c)
	if err != nil {
		return err
	}
	if !runs {
		return native{}.add(ctx, c, p)
	}
	p.zone = z.zone
	open := sdk.Step{Name: "let addresses through", Do: func(ctx context.Context) error { return z.open(ctx, c, p) }}
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

// warnOfOthers warns of addresses that other zones have as well, and may drop packets of.
// Like the reference plugin, ADD goes on.
func (z zoned) warnOfOthers(ctx context.Context, c *sdk.CmdArgs, p *passage) {
	others, err := c.Host.Firewalld.OtherZones(ctx, z.zone, p.addresses)
	if err != nil {
		c.Host.Log.Warn("cannot tell whether other zones of firewalld have the addresses", "addresses", p.addresses, "because", err)
	}
	for address, other := range others {
		c.Host.Log.Warn("another zone of firewalld has the address as well and may drop its packets",
			"address", address, "zone", other, "wanted", z.zone)
	}
}

// open adds the elements. What the zone that accepts everything lets through, the
// host's other rules are to let through as well; other zones may drop it.
func (z zoned) open(ctx context.Context, c *sdk.CmdArgs, p *passage) error {
	if z.zone == firewalld.DefaultZone {
		return native{}.add(ctx, c, p)
	}
	return c.Host.Rules.Add(ctx, p.elements(c))
}

func (z zoned) check(ctx context.Context, c *sdk.CmdArgs, p *passage) error {
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

func (z zoned) checkSources(ctx context.Context, c *sdk.CmdArgs, p *passage) error {
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

// checkReference looks for what the reference plugin makes.
func (z zoned) checkReference(ctx context.Context, c *sdk.CmdArgs, p *passage) error {
	runs, err := z.runs(ctx, c)
	switch {
	case err != nil:
		return err
	case runs:
		return z.checkSources(ctx, c, p)
	}
	return iptablesBackend{}.check(ctx, c, p)
}

// unseen is the error of sources that cannot be looked for.
func (z zoned) unseen(ctx context.Context, c *sdk.CmdArgs, p *passage) error {
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

// del goes on to the elements only when no address is in a zone any more.
func (z zoned) del(ctx context.Context, c *sdk.CmdArgs, p *passage) error {
	err := c.LeaveZones(ctx, p.network, p.addresses)
	if err == nil {
		err = z.leave(ctx, c, p)
	}
	if err != nil {
		return err
	}
	return native{}.del(ctx, c, p)
}

// leave takes addresses of which no element tells out of the zone: those that the
// reference plugin added, or whose elements somebody flushed. One that is open for
// another attachment by now is that one's.
func (z zoned) leave(ctx context.Context, c *sdk.CmdArgs, p *passage) error {
	runs, err := c.Host.Firewalld.Runs(ctx)
	switch {
	case len(p.addresses) == 0 || !runs && err == nil:
		return nil
	case err != nil && (!p.elsewhere || errors.Is(err, fs.ErrNotExist)):
		return nil // nobody has asked firewalld
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
		return types.NewError(types.ErrPluginNotAvailable, "firewalld cannot be used", err.Error())
	}
	return native{}.status(ctx, c)
}
