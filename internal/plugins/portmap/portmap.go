package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// backend is a way to redirect host ports to a container.
type backend interface {
	add(context.Context, *sdk.CmdArgs, *publication) error
	check(context.Context, *sdk.CmdArgs, *publication) error
	// del removes everything. Without addresses, it finds objects that name the
	// attachment.
	del(context.Context, *sdk.CmdArgs, *publication) error
	status(context.Context, *sdk.CmdArgs) error
}

// Add implements sdk.Plugin. It returns the previous plugin's result.
func (p *portmap) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	return p.add(ctx, c, false)
}

// add is Add. If routed is true, the caller knows that routeLoopback has been done.
func (p *portmap) add(ctx context.Context, c *sdk.CmdArgs, routed bool) (*types100.Result, error) {
	previous, err := p.previous(c)
	if err != nil || len(p.mappings) == 0 {
		return previous, err
	}
	pub := p.publication(c, previous)
	if len(pub.addresses) == 0 {
		return previous, nil
	}
	if c.Additions != nil && pub.first != "" && c.Additions.LoopbackRouted == pub.first {
		routed = true
	}
	if !routed {
		if err := pub.routeLoopback(ctx, c); err != nil {
			return nil, err
		}
	}
	if err := p.backend.add(ctx, c, pub); err != nil {
		return nil, err
	}
	if _, own := p.backend.(native); !own {
		pub.forgetStale(ctx, c)
	}
	return previous, nil
}

// Prepare implements sdk.Preparer: without host ports, ADD of a slot has done nothing. The
// kernel's configuration lock, for which route_localnet waits, is what a Bind waits for
// most.
func (p *portmap) Prepare(ctx context.Context, c *sdk.CmdArgs) error {
	previous, err := p.previous(c)
	if err != nil {
		return err
	}
	pub := p.publication(c, previous)
	if len(pub.addresses) == 0 {
		return nil
	}
	return pub.routeLoopback(ctx, c)
}

// Bind implements sdk.Binder.
func (p *portmap) Bind(ctx context.Context, c *sdk.CmdArgs) error {
	_, err := p.add(ctx, c, c.Unchanged)
	return err
}

// previous returns the prevResult, which is required.
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
	switch byReference := sdk.AddedByReference(c, p.Name, previous); {
	case byReference && err != nil:
		return pub.checkReference(ctx, c, err)
	case !byReference && pub.routesLoopback(): // the reference plugin adds no guard
		return errors.Join(err, c.Host.Rules.CheckGuard(ctx, ruleset.IPv4), pub.checkLoopback())
	}
	return err
}

// checkLoopback returns an error if the interface that leads to the container no longer has
// route_localnet: see routeLoopback.
func (p *publication) checkLoopback() error {
	if on, known := rtnl.LoopbackRouted(p.first); on || !known {
		return nil // CHECK of the plugin that made the interface reports if it is missing
	}
	return fmt.Errorf("connections from 127.0.0.1 to the host ports fail: net.ipv4.conf.%s.route_localnet is 0", p.first)
}

// checkReference returns nil if the host ports are published as the reference
// plugin does it. Otherwise it returns ownErr together with an error that names
// the reference plugin's missing rules.
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
	var delErr error
	for _, b := range p.backendsOf(c, previous) {
		delErr = errors.Join(delErr, b.del(ctx, c, pub))
	}
	if delErr != nil {
		return errors.Join(err, delErr)
	}
	if previous != nil && !sdk.AddedByReference(c, p.Name, previous) {
		return err // the plugin that created the link flushes its connections
	}
	return errors.Join(err, pub.disconnect(ctx, c, published))
}

// Disconnect implements sdk.Disconnecter. DEL repeats it, but only for elements that
// still name the attachment.
func (p *portmap) Disconnect(ctx context.Context, c *sdk.CmdArgs) error {
	if _, own := p.backend.(native); !own {
		return sdk.ErrNeedsDel
	}
	return p.Del(ctx, c)
}

// Status implements sdk.Plugin.
func (p *portmap) Status(ctx context.Context, c *sdk.CmdArgs) error {
	if p.invalid != nil {
		return p.invalid
	}
	return p.backend.status(ctx, c)
}

// Validate implements sdk.Validator.
func (p *portmap) Validate(*types100.Result) error { return p.invalid }

// NoResult implements sdk.Chained.
func (p *portmap) NoResult() error { return errNoResult }

// GC implements sdk.Plugin. It also removes elements of other plugins for the
// same owners, whose attachments no longer exist. It does not remove the
// reference plugin's rules.
func (p *portmap) GC(ctx context.Context, c *sdk.CmdArgs) error {
	return c.Host.DelOwned(ctx, c.Stale(p.Name))
}

// routeLoopback makes the kernel route connections from 127.0.0.1 through the
// interface that leads to the container. Without a route to the container it does
// nothing.
//
// The setting also makes the kernel accept packets of 127.0.0.0/8 that arrive
// through that interface, so routeLoopback first adds rules that drop them.
func (p *publication) routeLoopback(ctx context.Context, c *sdk.CmdArgs) error {
	if !p.routesLoopback() {
		return nil
	}
	if err := c.Host.Guard(ctx, ruleset.IPv4); err != nil {
		return err
	}
	addr := p.addresses[0].Addr()
	// In the results of bridge and ptp it is the first interface. For the results of
	// other plugins, routeLoopback looks the route up in the kernel.
	if p.first != "" {
		route := c.Host.EnsureLoopbackRouted // of a bridge, which has it since the first allocation
		if p.first == c.Owner(p.Name).Veth() {
			route = c.Host.Kernel.RouteLoopback
		}
		err := c.Host.Cache.Unless("route_localnet "+p.first, func() error { return route(p.first) })
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
	return c.Host.EnsureLoopbackRouted(link.Attrs().Name)
}

// RoutesLoopback implements sdk.LoopbackRouter.
func (p *portmap) RoutesLoopback() bool { return p.invalid == nil && p.snat }

// routesLoopback reports whether connections from 127.0.0.1 are redirected to
// the container.
func (p *publication) routesLoopback() bool { return p.snat && p.addresses[0].Addr().Is4() }

// backendsOf returns the backends that may have published the host ports of an attachment:
// that of the configuration, allocnet's own one, because ADD may have had a configuration
// without a backend, and all if the configuration does not say it, or if the reference plugin
// set up the attachment.
func (p *portmap) backendsOf(c *sdk.CmdArgs, previous *types100.Result) []backend {
	_, own := p.backend.(native)
	switch {
	case p.anyBackend || own && sdk.AddedByReference(c, p.Name, previous):
		return []backend{native{}, iptablesBackend{}, nftablesBackend{}}
	case own:
		return []backend{native{}}
	}
	return []backend{p.backend, native{}}
}
