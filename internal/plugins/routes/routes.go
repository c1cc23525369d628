package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

var (
	_ sdk.Restorer     = (*routes)(nil)
	_ sdk.Binder       = (*routes)(nil)
	_ sdk.Disconnecter = (*routes)(nil)
)

var (
	errNull        = errors.New("prevResult: an interface or an address is null")
	errNoResult    = sdk.Invalid(errors.New("missing prevResult: place the routes plugin after the plugin that creates the interface"))
	errNoInterface = errors.New("prevResult has an address and no interface of the host that leads to it: place the routes plugin after bridge or ptp")
)

// Add implements sdk.Plugin. It returns the previous plugin's result.
func (p *routes) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	previous, list, err := p.wanted(c)
	if err != nil {
		return nil, err
	}
	owner, announcer := c.Owner(p.Name), announcerOf(c)
	if err := announcer.Add(ctx, owner, list); err != nil {
		undo, cancel := sdk.UndoContext(ctx)
		defer cancel()
		return nil, errors.Join(err, announcer.Withdraw(undo, owner, list))
	}
	return previous, nil
}

// Check implements sdk.Plugin.
func (p *routes) Check(ctx context.Context, c *sdk.CmdArgs) error {
	_, list, err := p.wanted(c)
	if err != nil {
		return err
	}
	return announcerOf(c).Check(ctx, c.Owner(p.Name), list)
}

// Del implements sdk.Plugin. Without a result it looks for the owner.
func (p *routes) Del(ctx context.Context, c *sdk.CmdArgs) error {
	owner := c.Owner(p.Name)
	previous := c.PreviousOfDel(&p.Common)
	if previous == nil || !p.valid {
		return announcerOf(c).WithdrawOf(ctx, func(o names.Owner) bool { return o.String() == owner.String() })
	}
	list, err := p.routesOf(c, previous)
	if errors.Is(err, errNoInterface) {
		return nil // ADD has failed
	}
	if err != nil {
		return err
	}
	return announcerOf(c).Withdraw(ctx, owner, list)
}

// Disconnect implements sdk.Disconnecter: nothing may lead other hosts to an address that is
// not reachable any more.
func (p *routes) Disconnect(ctx context.Context, c *sdk.CmdArgs) error { return p.Del(ctx, c) }

// Status implements sdk.Plugin. The configuration is validated before.
func (p *routes) Status(context.Context, *sdk.CmdArgs) error { return nil }

// NoResult implements sdk.Chained.
func (p *routes) NoResult() error { return errNoResult }

// GC implements sdk.Plugin. Routes over the veth of a container go with that link.
func (p *routes) GC(ctx context.Context, c *sdk.CmdArgs) error {
	return announcerOf(c).WithdrawOf(ctx, c.Stale(p.Name))
}

// Bind implements sdk.Binder. The address of a slot is announced from the beginning, so that
// a take does not change the table: other hosts learn of it before it is used.
func (p *routes) Bind(_ context.Context, c *sdk.CmdArgs) error {
	if c.Unchanged && !p.Subnets { // routes without a link are not watched
		return nil
	}
	_, list, err := p.wanted(c)
	if err != nil {
		return err
	}
	for i := range list {
		if _, err := announcerOf(c).Ensure(list[i]); err != nil {
			return err
		}
	}
	return nil
}

func announcerOf(c *sdk.CmdArgs) announce.Announcer {
	return announce.Announcer{Kernel: c.Host.Kernel, Rules: c.Host.Rules}
}

// wanted returns the previous plugin's result, and the routes for it. Their links exist.
func (p *routes) wanted(c *sdk.CmdArgs) (*types100.Result, []announce.Route, error) {
	previous, err := c.Previous(&p.Common)
	if err != nil {
		return nil, nil, err
	}
	if previous == nil {
		return nil, nil, errNoResult
	}
	if slices.Contains(previous.Interfaces, nil) || slices.Contains(previous.IPs, nil) {
		return nil, nil, errNull
	}
	list, err := p.routesOf(c, previous)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range list {
		if r.Link == announce.Gone {
			return nil, nil, fmt.Errorf("interface %q of the host: %w", p.linkOf(c, previous), errLinkGone)
		}
	}
	return previous, list, nil
}

var errLinkGone = errors.New("it does not exist any more")

// routesOf returns the routes for a result: one for each address or, with subnets, for the
// network of each.
func (p *routes) routesOf(c *sdk.CmdArgs, r *types100.Result) ([]announce.Route, error) {
	addresses := addressesOf(r)
	if len(addresses) == 0 {
		return nil, nil
	}
	name := p.linkOf(c, r)
	if name == "" {
		return nil, errNoInterface
	}
	index, err := c.Host.Kernel.Index(name)
	if rtnl.IsNotFound(err) {
		index, err = announce.Gone, nil
	}
	if err != nil {
		return nil, err
	}
	own := name == c.Owner(p.Name).Veth()
	list := make([]announce.Route, len(addresses))
	for i, a := range addresses {
		one := &list[i]
		one.Address, one.Table, one.Protocol, one.Link, one.Own = a, p.Table, *p.Protocol, index, own
		switch {
		case !p.Subnets:
			one.Address = netip.PrefixFrom(a.Addr(), a.Addr().BitLen())
		case own && !a.IsSingleIP():
			one.Link, one.Own = 0, false
		}
	}
	return list, nil
}

// addressesOf returns the addresses of the container in a result, with their prefix lengths.
func addressesOf(r *types100.Result) []netip.Prefix {
	var list []netip.Prefix
	for _, ip := range sdk.ContainerIPs(r) {
		address, ok := netip.AddrFromSlice(ip.Address.IP)
		if ones, bits := ip.Address.Mask.Size(); ok && bits > 0 {
			address = address.Unmap()
			list = append(list, netip.PrefixFrom(address, ones-bits+address.BitLen()))
		}
	}
	return list
}

// linkOf returns the name of the host's interface that leads to the container: one that
// follows the container's own in the result, as the VLAN interface of a bridge does, or else
// the first one. The ifb of the plugin bandwidth leads to nothing.
func (p *routes) linkOf(c *sdk.CmdArgs, r *types100.Result) string {
	ifb := names.Ifb(p.Name, c.ContainerID)
	first, last, inside := "", "", false
	for _, i := range r.Interfaces {
		switch {
		case i.Sandbox != "":
			inside = true
		case i.Name == ifb:
		case inside:
			last = i.Name
		case first == "":
			first = i.Name
		}
	}
	if last != "" {
		return last
	}
	return first
}
