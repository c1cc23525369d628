package ptp

import (
	"context"
	"errors"
	"fmt"
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
	"github.com/allocnet/allocnet/internal/state/lease"
)

var _ sdk.Restorer = (*ptp)(nil)

// Repair implements sdk.Repairer: it restores the leases, the host's end with its addresses and
// routes, the container's end, the source guard, masquerading and forwarding.
func (p *ptp) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	r, err := c.Previous(&p.Common)
	if err != nil || r == nil {
		return err
	}
	leaseErr := p.ipam.Repair(ctx, c)
	if errors.Is(leaseErr, lease.ErrTaken) {
		return leaseErr // another container has the address, and what the host has for it
	}
	var hostErr error
	if sdk.AddedByReference(c, p.Name, r) {
		hostErr = p.restoreForwarding(c, r)
	} else {
		ends := p.ends(c, r)
		linkErr := errors.Join(ends.RestoreNames(), p.restoreLink(c, r))
		_, hostErr = p.restoreHost(c, r)
		hostErr = errors.Join(linkErr, hostErr, p.restoreGuard(ctx, c, r), ends.RestoreSandbox(ctx), veth.RestoreSourceRules(c, r, veth.Options{ViaGateway: true}))
	}
	return errors.Join(leaseErr, hostErr, p.rules.Restore(ctx, c, r))
}

// Wanted implements sdk.Restorer.
func (p *ptp) Wanted(_ context.Context, c *sdk.CmdArgs) (*sdk.Wanted, error) {
	r, err := c.Previous(&p.Common)
	if err != nil || r == nil || sdk.AddedByReference(c, p.Name, r) {
		return &sdk.Wanted{Individual: true}, err
	}
	w := &sdk.Wanted{Objects: []sdk.Object{{
		Key:     "veth " + c.Owner(p.Name).Veth(),
		Restore: func(context.Context) (bool, error) { return p.restoreHost(c, r) },
	}}}
	if families := GuardedFamilies(); p.guardsSources() {
		w.Objects = append(w.Objects, sdk.Object{
			Key:     fmt.Sprint("source guard ", families),
			Restore: func(ctx context.Context) (bool, error) { return c.Host.RestoreGuard(ctx, families...) },
		})
	}
	p.rules.Want(w, c, r)
	return w, nil
}

// works reports whether a link is up, and resolves addresses.
func works(flags uint16) bool { return flags&(unix.IFF_UP|unix.IFF_NOARP) == unix.IFF_UP }

// restoreLink restores MTU, MAC and alias of the host's end, detaches it from a bridge that it has become a port of, and
// makes it answer ARP requests.
func (p *ptp) restoreLink(c *sdk.CmdArgs, r *types100.Result) error {
	host, name := c.Host.Kernel, c.Owner(p.Name).Veth()
	port, err := host.Port(name)
	if err != nil {
		return err
	}
	var changes rtnl.Batch
	changed := p.ends(c, r).RestoreHost(&changes, port)
	if port.Bridged {
		changed = true
		changes.LeaveBridge(port.Index)
	}
	if changed {
		err = host.Apply(&changes)
	}
	if err == nil {
		_, err = veth.RestoreARP(name, false)
	}
	if err != nil {
		return fmt.Errorf("interface %q: %w", name, err)
	}
	return nil
}

// restoreHost brings the host's end up, and restores its addresses, routes and forwarding, and that
// it ignores routers: see configureHost and attach.
func (p *ptp) restoreHost(c *sdk.CmdArgs, r *types100.Result) (changed bool, err error) {
	host, name := c.Host.Kernel, c.Owner(p.Name).Veth()
	index, flags, err := host.State(name)
	if err != nil {
		return false, err
	}
	if !p.guardsSources() {
		if changed, err = veth.IgnoreRouters(name); err != nil {
			return changed, fmt.Errorf("interface %q: %w", name, err)
		}
	}
	if !works(flags) {
		var up rtnl.Batch
		up.BringUp(index)
		up.EnableARP(index)
		if err := host.Apply(&up); err != nil {
			return changed, fmt.Errorf("interface %q: %w", name, err)
		}
		changed = true
	}
	restored, err := veth.WithIPv6(host, name, r, func(r *types100.Result) (bool, error) { return restoreReach(c.Host, index, name, r) })
	if changed = changed || restored; err != nil {
		return changed, fmt.Errorf("interface %q: %w", name, err)
	}
	return changed, nil
}

// restoreReach restores the addresses and routes of the host's end, and forwarding.
func restoreReach(h *sdk.Host, index int, name string, r *types100.Result) (changed bool, err error) {
	host := h.Kernel
	note := func(added bool, one error) {
		changed, err = changed || added, errors.Join(err, one)
	}
	for _, ip := range r.IPs {
		if ip.Gateway.To4() != nil {
			note(host.EnsureSharedAddress(index, ip.Gateway))
		} else {
			note(host.EnsureAddress(index, veth.HostPrefix(ip.Gateway), rtnl.NoDAD))
		}
		note(host.RestoreRoute(routeTo(index, ip), ip.Address.IP))
	}
	if veth.HasIPv6(r) {
		note(restoreLinkLocal(host, r, index, name, changed))
	}
	note(veth.EnsureForwarding(h, index, name, r))
	return changed, err
}

// restoreForwarding restores forwarding for an attachment of the reference plugin.
func (p *ptp) restoreForwarding(c *sdk.CmdArgs, r *types100.Result) error {
	for _, itf := range r.Interfaces {
		if itf.Sandbox != "" {
			continue
		}
		index, err := c.Host.Kernel.Index(itf.Name)
		if err == nil {
			_, err = veth.EnsureForwarding(c.Host, index, itf.Name, r)
		}
		return err
	}
	return nil
}

// restoreLinkLocal restores what addLinkLocal has added. If something else of the link was missing,
// the kernel may just have added the address itself, and look for duplicates of it.
func restoreLinkLocal(host *rtnl.Host, r *types100.Result, index int, name string, isNew bool) (changed bool, err error) {
	for _, itf := range r.Interfaces {
		mac, macErr := net.ParseMAC(itf.Mac)
		if itf.Name != name || itf.Sandbox != "" || macErr != nil {
			continue
		}
		ip := veth.LinkLocal(mac)
		changed, err = host.EnsureAddress(index, veth.HostPrefix(ip), rtnl.NoDAD)
		if err == nil && !changed && isNew {
			err = veth.SkipDAD(host, index, veth.HostPrefix(ip))
		}
		if err != nil {
			return changed, err
		}
		network := &net.IPNet{IP: ip.Mask(net.CIDRMask(64, 128)), Mask: net.CIDRMask(64, 128)}
		// Links share the destination, so that the table can have a route to it
		// over another one.
		var b rtnl.Batch
		b.AddRoute(&rtnl.Route{Index: index, Dst: network, Scope: unix.RT_SCOPE_LINK})
		if routeErr := host.Apply(&b); routeErr != nil && !errors.Is(routeErr, unix.EEXIST) {
			return changed, routeErr
		}
	}
	return changed, nil
}
