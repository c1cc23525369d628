package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// backend is a way to lead host ports to a sandbox.
type backend interface {
	add(context.Context, *sdk.CmdArgs, *publication) error
	check(context.Context, *sdk.CmdArgs, *publication) error
	// del takes everything away; without addresses, what names the attachment.
	del(context.Context, *sdk.CmdArgs, *publication) error
	status(context.Context, *sdk.CmdArgs) error
}

// Add implements sdk.Plugin. The result is what came from the plugin before.
func (p *portmap) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	previous, err := p.previous(c)
	if err != nil || len(p.mappings) == 0 {
		return previous, err
	}
	pub := p.publication(c, previous)
	if len(pub.addresses) == 0 {
		return previous, nil
	}
	if err := pub.routeLoopback(ctx, c); err != nil {
		return nil, err
	}
	if err := p.backend.add(ctx, c, pub); err != nil {
		return nil, err
	}
	if err := pub.forget(ctx, c); err != nil {
		c.Host.Log.Warn("clients that sent to the host port before may not get through", "error", err)
	}
	return previous, nil
}

// Repair implements sdk.Repairer: all that ADD does is on the host, and is
// done again without harm.
func (p *portmap) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	_, err := p.Add(ctx, c)
	return err
}

// previous is the prevResult, which there must be.
func (p *portmap) previous(c *sdk.CmdArgs) (*types100.Result, error) {
	if p.invalid != nil {
		return nil, p.invalid
	}
	previous, err := c.Previous(&p.Common)
	if err == nil && previous == nil {
		err = errNoResult
	}
	return previous, err
}

// Check implements sdk.Plugin.
func (p *portmap) Check(ctx context.Context, c *sdk.CmdArgs) error {
	previous, err := p.previous(c)
	if err != nil || len(p.mappings) == 0 {
		return err
	}
	pub := p.publication(c, previous)
	if len(pub.addresses) == 0 {
		return nil
	}
	err = p.backend.check(ctx, c, pub)
	switch elsewhere := sdk.MadeElsewhere(c, p.Name, previous); {
	case elsewhere && err != nil:
		return pub.checkReference(ctx, c, err)
	case !elsewhere && pub.routesLoopback(): // the reference plugin makes no guard
		return errors.Join(err, c.Host.Rules.CheckGuard(ctx))
	}
	return err
}

// checkReference is nil if the host ports are published as the reference plugin does
// it, and else ownErr, with what is missing of that.
func (p *publication) checkReference(ctx context.Context, c *sdk.CmdArgs, ownErr error) error {
	if _, own := p.backend.(native); !own {
		return ownErr
	}
	err := iptablesBackend{}.check(ctx, c, p)
	if err == nil || (nftablesBackend{}).check(ctx, c, p) == nil {
		return nil
	}
	return errors.Join(ownErr, err)
}

// Del implements sdk.Plugin.
func (p *portmap) Del(ctx context.Context, c *sdk.CmdArgs) error {
	previous := c.PreviousOfDel(&p.Common)
	pub := p.publication(c, previous)
	if p.invalid != nil {
		pub.addresses, pub.mappings = nil, nil
	}
	var published []netip.Addr
	var err error
	if len(pub.addresses) == 0 {
		published, err = c.Host.Rules.Addresses(ctx, c.Owner(p.Name))
	}
	delErr := errors.Join(p.backend.del(ctx, c, pub), pub.delReference(ctx, c, previous))
	if delErr != nil {
		return errors.Join(err, delErr)
	}
	if previous != nil && !sdk.MadeElsewhere(c, p.Name, previous) {
		return err // the plugin that made the link flushes the connections to it
	}
	return errors.Join(err, pub.disconnect(ctx, c, published))
}

// Status implements sdk.Plugin.
func (p *portmap) Status(ctx context.Context, c *sdk.CmdArgs) error {
	if p.invalid != nil {
		return p.invalid
	}
	return p.backend.status(ctx, c)
}

// GC implements sdk.Plugin. Elements of other plugins go as well: their owner,
// an attachment of this network, is gone. The reference plugin's layouts know no
// GC.
func (p *portmap) GC(ctx context.Context, c *sdk.CmdArgs) error {
	return c.Host.DelOwned(ctx, c.Stale(&p.Common))
}

// routeLoopback lets connections from 127.0.0.1 leave through the interface that
// leads to the sandbox. Where there is no route yet there is nothing to do.
//
// The kernel takes packets of 127.0.0.0/8 from others through that interface as
// well, so these are dropped first.
func (p *publication) routeLoopback(ctx context.Context, c *sdk.CmdArgs) error {
	if !p.routesLoopback() {
		return nil
	}
	if err := c.Host.Lately.Unless("guard", func() error { return c.Host.GuardLoopback(ctx) }); err != nil {
		return err
	}
	addr := p.addresses[0].Addr()
	// The first interface of bridge's and ptp's results is the one; for others the
	// kernel knows.
	if p.first != "" {
		err := c.Host.Lately.Unless("route_localnet "+p.first, func() error { return c.Host.Kernel.RouteLoopback(p.first) })
		if !rtnl.IsNotFound(err) {
			return err
		}
	}
	routes, err := c.Host.Kernel.RouteGet(addr.AsSlice())
	if err != nil || len(routes) == 0 {
		return nil
	}
	link, err := c.Host.Kernel.LinkByIndex(routes[0].LinkIndex)
	if rtnl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the interface that leads to %s: %w", addr, err)
	}
	return c.Host.Kernel.RouteLoopback(link.Attrs().Name)
}

// routesLoopback reports whether connections from 127.0.0.1 are led to the sandbox.
func (p *publication) routesLoopback() bool { return p.snat && p.addresses[0].Addr().Is4() }

// delReference takes away what the reference plugin laid out, if it was that.
func (p *publication) delReference(ctx context.Context, c *sdk.CmdArgs, previous *types100.Result) error {
	if _, own := p.backend.(native); !own || !sdk.MadeElsewhere(c, p.Name, previous) {
		return nil
	}
	return errors.Join(iptablesBackend{}.del(ctx, c, p), nftablesBackend{}.del(ctx, c, p))
}
