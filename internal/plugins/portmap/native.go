package portmap

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// native is the backend that uses allocnet's tables.
type native struct{}

// add flushes stale connections after the elements were added.
func (native) add(ctx context.Context, c *sdk.CmdArgs, p *publication) error {
	return c.AddElements(ctx, sdk.Addition{
		Elements: p.elements(c),
		Added: func(ctx context.Context) error {
			p.forgetStale(ctx, c)
			if !p.everywhere() {
				return nil
			}
			return c.Host.ExceptServices(ctx)
		},
	})
}

// everywhere reports whether a host port is one of every address.
func (p *publication) everywhere() bool {
	return slices.ContainsFunc(p.mappings, func(m portMapping) bool { return !m.restricted() })
}

func (native) check(ctx context.Context, c *sdk.CmdArgs, p *publication) error {
	return c.Host.Rules.Check(ctx, p.elements(c))
}

func (native) del(ctx context.Context, c *sdk.CmdArgs, p *publication) error {
	if len(p.addresses) > 0 && len(p.mappings) > 0 {
		return c.DelElements(ctx, p.elements(c))
	}
	if len(p.addresses) > 0 && p.snat && !p.published(ctx, c) {
		return nil
	}
	return sdk.DelOwned(ctx, c, p.Name)
}

// published reports whether one of the addresses has published host ports that
// are not in the arguments of the DEL. Most attachments have none.
func (p *publication) published(ctx context.Context, c *sdk.CmdArgs) bool {
	return slices.ContainsFunc(p.addresses, func(address netip.Prefix) bool {
		return c.Host.Rules.Check(ctx, &ruleset.Elements{
			Owner:     c.Owner(p.Name),
			Published: []ruleset.Published{{Address: address, SNAT: p.sourceNAT()}},
		}) == nil
	})
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

// elements returns the elements that publish the host ports in allocnet's tables.
func (p *publication) elements(c *sdk.CmdArgs) *ruleset.Elements {
	e := &ruleset.Elements{Owner: c.Owner(p.Name), MayWait: c.WaitForPorts || c.DropIn(), Order: c.PortOrder}
	for _, address := range p.addresses {
		mappings := p.of(address.Addr())
		if len(mappings) == 0 {
			continue
		}
		e.Published = append(e.Published, ruleset.Published{Address: address, SNAT: p.sourceNAT()})
		for _, m := range mappings {
			mapping := ruleset.Mapping{
				Protocol: m.protocol,
				HostPort: uint16(m.HostPort),
				To:       netip.AddrPortFrom(address.Addr(), uint16(m.ContainerPort)),
			}
			if m.restricted() {
				mapping.HostIP = m.hostIP
			}
			e.Mappings = append(e.Mappings, mapping)
		}
	}
	return e
}

func (p *publication) sourceNAT() ruleset.SNAT {
	switch {
	case !p.snat:
		return ruleset.SNATNone
	case p.MasqAll:
		return ruleset.SNATAll
	}
	return ruleset.SNATLocal
}
