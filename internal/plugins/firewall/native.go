package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// native is the backend that uses allocnet's tables.
type native struct{}

// add creates the shared rules first. The elements follow in one transaction,
// so there is nothing to undo.
func (native) add(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	if err := p.ensureAccept(ctx, c); err != nil {
		return err
	}
	return c.AddElements(ctx, sdk.Addition{Elements: p.elements(c)})
}

// ensureAccept makes the forward-accept rule.
func (p *attachment) ensureAccept(ctx context.Context, c *sdk.CmdArgs) error {
	families := p.families()
	name := fmt.Sprint("forward-accept rule ", families, p.admin)
	ensure := func() error { return c.Host.Accept.Ensure(ctx, families, p.admin) }
	if c.Host.Accept.Known(families, p.admin) { // in nf_tables
		return c.Host.Rules.Unless(ctx, name, ensure)
	}
	return c.Host.Cache.Unless(name, ensure)
}

func (native) check(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	return errors.Join(
		c.Host.Rules.Check(ctx, p.elements(c)),
		c.Host.Accept.Check(ctx, p.families(), p.admin))
}

func (native) del(ctx context.Context, c *sdk.CmdArgs, p *attachment) error {
	var guardErr error
	if p.ownGuard != nil {
		guardErr = c.Host.Rules.DelGuard(ctx, p.ownGuard.Bridge)
	}
	if len(p.addresses) == 0 {
		return errors.Join(guardErr, sdk.DelOwned(ctx, c, p.network))
	}
	if err := c.DelElements(ctx, p.elements(c)); err != nil {
		return errors.Join(guardErr, fmt.Errorf("remove addresses %v: %w", p.addresses, err))
	}
	return guardErr
}

// status looks for an address that no attachment has. It succeeds if the
// address or the tables are missing.
func (native) status(ctx context.Context, c *sdk.CmdArgs) error {
	err := c.Host.Rules.Check(ctx, &ruleset.Elements{Open: []netip.Addr{netip.IPv4Unspecified()}})
	if err == nil || errors.Is(err, ruleset.ErrMissing) {
		return nil
	}
	return types.NewError(types.ErrPluginNotAvailable, "nftables is not usable", err.Error())
}

func (p *attachment) elements(c *sdk.CmdArgs) *ruleset.Elements {
	e := &ruleset.Elements{Owner: c.Owner(p.network), Open: p.addresses, PublishedOnly: p.published, Zone: p.zone}
	if p.guard != nil {
		e.Guarded = []ruleset.Guard{*p.guard}
	}
	return e
}

// families returns the address families of the attachment.
func (p *attachment) families() []iptables.Family {
	var families []iptables.Family
	for _, address := range p.addresses {
		family := iptables.IPv6
		if address.Is4() {
			family = iptables.IPv4
		}
		if !slices.Contains(families, family) {
			families = append(families, family)
		}
	}
	return families
}
