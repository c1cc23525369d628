package bridge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
	"github.com/allocnet/allocnet/internal/state/lease"
)

var _ sdk.Restorer = (*bridge)(nil)

// Repair implements sdk.Repairer: it restores the leases, both ends of the veth, the bridge with the gateways, the
// port, masquerading, the MAC check and the VLANs of the port. The MTU of the port comes before that of the bridge.
func (b *bridge) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	r, err := c.Previous(&b.Common)
	if err != nil || r == nil {
		return err
	}
	leaseErr := b.ipam.Repair(ctx, c)
	if errors.Is(leaseErr, lease.ErrTaken) {
		return leaseErr // another container has the address, and what the host has for it
	}
	errs, own := []error{leaseErr}, !sdk.AddedByReference(c, b.Name, r)
	if own {
		errs = append(errs, b.ends(c, r).RestoreNames(), b.restoreEnd(c, r))
	}
	_, err = b.restoreBridge(ctx, c, r)
	if errs = append(errs, err); err != nil && !errors.Is(err, rtnl.ErrForeignRoute) && !errors.Is(err, veth.ErrSmallMTU) {
		return errors.Join(errs...)
	}
	// The elements come first: a guarded port without them sends nothing.
	errs = append(errs, b.restoreGuard(ctx, c, r), b.rules.Restore(ctx, c, r))
	if own {
		_, err := b.restorePort(c, r)
		errs = append(errs, err)
		if !b.DisableContainerInterface {
			errs = append(errs, b.ends(c, r).RestoreSandbox(ctx), b.restoreRouters(c, r), veth.RestoreSourceRules(c, r, veth.Options{}))
		}
	}
	return errors.Join(append(errs, b.repairMACGuard(ctx, c, r), b.repairVLANs(c, r))...)
}

// restoreEnd restores MTU, MAC and alias of the host's end of the veth.
func (b *bridge) restoreEnd(c *sdk.CmdArgs, r *types100.Result) error {
	port, err := c.Host.Kernel.Port(c.Owner(b.Name).Veth())
	if rtnl.IsNotFound(err) {
		return nil // CHECK reports it
	}
	var changes rtnl.Batch
	if err == nil && b.ends(c, r).RestoreHost(&changes, port) {
		err = c.Host.Kernel.Apply(&changes)
	}
	return err
}

// Wanted implements sdk.Restorer. Individual CHECKs find rules of macspoofchk, VLANs,
// and what the reference plugin has set up.
func (b *bridge) Wanted(_ context.Context, c *sdk.CmdArgs) (*sdk.Wanted, error) {
	r, err := c.Previous(&b.Common)
	if err != nil || r == nil || sdk.AddedByReference(c, b.Name, r) {
		return &sdk.Wanted{Individual: true}, err
	}
	w := &sdk.Wanted{Individual: b.MacSpoofChk || b.tags()}
	key := fmt.Sprintf("bridge %s %d", b.Bridge, b.Vlan)
	for _, ip := range r.IPs {
		key += " " + ip.Gateway.String()
	}
	w.Objects = append(w.Objects, sdk.Object{Key: key, Restore: func(ctx context.Context) (bool, error) { return b.restoreBridge(ctx, c, r) }})
	if b.guardsSources() {
		w.Objects = append(w.Objects, sdk.Object{
			Key:     "source guard of bridge ports",
			Restore: func(ctx context.Context) (bool, error) { return c.Host.RestoreGuard(ctx, ruleset.Bridge) },
		})
	}
	w.Objects = append(w.Objects, sdk.Object{
		Key:     "port " + c.Owner(b.Name).Veth(),
		Restore: func(context.Context) (bool, error) { return b.restorePort(c, r) },
	})
	b.rules.Want(w, c, r)
	return w, nil
}

// restoreBridge creates a bridge that an ADD has created, if it is missing, and restores its state and its MAC. Of
// a bridge of the host it only reports what is missing. It restores the gateways' addresses and the routes to their
// networks.
func (b *bridge) restoreBridge(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) (changed bool, err error) {
	a := &addition{bridge: b, args: c, mac: b.macOf(r)}
	before, err := c.Host.Kernel.Bridge(b.Bridge)
	renamed := false
	if rtnl.IsNotFound(err) {
		before, err = b.renamedBack(c.Host, a.mac)
		renamed = err == nil
	}
	if err != nil && !rtnl.IsNotFound(err) {
		return false, err
	}
	missing := rtnl.IsNotFound(err)
	own, err := b.isOwn(c.Host, before)
	if err != nil {
		return false, err
	}
	if !own {
		if err := b.checkForeign(before); err != nil {
			return false, err
		}
	}
	if err := a.ensureBridge(ctx); err != nil {
		return false, err
	}
	changed = missing || renamed || before.RawFlags&unix.IFF_UP == 0 || b.needsARP(before)
	if own && b.IsGateway && a.mac != nil && a.mac.String() != a.link.HardwareAddr.String() {
		if err := c.Host.Kernel.LinkSetHardwareAddr(a.link, a.mac); err != nil {
			return changed, fmt.Errorf("restore MAC of %q: %w", b.Bridge, err)
		}
		changed, a.link.HardwareAddr = true, a.mac
	}
	fitted, err := b.restoreSettings(c, r, a.link, own)
	if changed = changed || fitted; err != nil {
		return changed, err
	}
	restored, err := veth.WithIPv6(c.Host.Kernel, b.gatewayName(), r, func(r *types100.Result) (bool, error) {
		added, err := b.setGateways(ctx, c.Host, a.link, r)
		errs := []error{err}
		for i := 0; err == nil && i < len(r.IPs); i++ {
			routed, err := b.restoreRoute(c.Host.Kernel, a.link, r.IPs[i])
			added, errs = added || routed, append(errs, err)
		}
		return added, errors.Join(errs...)
	})
	return changed || restored, err
}

// renamedBack gives a bridge that an ADD has created its name again, if another program has renamed it. The MAC
// that ADD has pinned shows that the interface with the recorded index is still the same. If there is no such bridge, rtnl.IsNotFound is
// true for the error.
func (b *bridge) renamedBack(host *sdk.Host, mac net.HardwareAddr) (*netlink.Bridge, error) {
	index, err := host.Bridges.Index(b.Bridge)
	if err != nil || index == 0 || !b.IsGateway || mac == nil {
		return nil, cmp.Or(err, error(unix.ENODEV))
	}
	link, err := host.Kernel.LinkByIndex(index)
	if err != nil {
		return nil, err
	}
	if link.Type() != "bridge" || !bytes.Equal(link.Attrs().HardwareAddr, mac) {
		return nil, unix.ENODEV
	}
	var changes rtnl.Batch
	changes.SetName(index, b.Bridge)
	if err := host.Kernel.Apply(&changes); err != nil {
		return nil, fmt.Errorf("bridge %q, which is now %q: %w", b.Bridge, link.Attrs().Name, err)
	}
	return host.Kernel.Bridge(b.Bridge)
}

// restoreSettings restores the MTU of a bridge that an ADD has created, that it answers ARP requests, and that it is not
// promiscuous. CHECK reports those of a bridge of the host.
func (b *bridge) restoreSettings(c *sdk.CmdArgs, r *types100.Result, br *netlink.Bridge, own bool) (changed bool, err error) {
	if !own {
		return false, nil
	}
	if changed, err = restoreMTU(c.Host, br, b.ends(c, r).HostMTU()); err != nil {
		return changed, err
	}
	if b.answersARP(r) {
		answers, err := veth.RestoreARP(b.Bridge, true)
		if changed = changed || answers; err != nil {
			return changed, err
		}
	}
	if b.PromiscMode || br.RawFlags&unix.IFF_PROMISC == 0 {
		return changed, nil
	}
	return true, c.Host.Kernel.SetPromiscOff(br)
}

// isOwn reports whether an ADD has created the bridge, which is nil if it is missing.
func (b *bridge) isOwn(host *sdk.Host, br *netlink.Bridge) (bool, error) {
	index := 0
	if br != nil {
		index = br.Index
	}
	return host.Bridges.Created(b.Bridge, index)
}

// checkForeign returns an error if a bridge of the host is missing, down or has ARP switched off. br is nil if the bridge
// is missing. The administrator of the host restores it.
func (b *bridge) checkForeign(br *netlink.Bridge) error {
	switch {
	case br == nil:
		return fmt.Errorf("bridge %q is missing, and no allocation has created it: create it again", b.Bridge)
	case br.RawFlags&unix.IFF_UP == 0:
		return fmt.Errorf("bridge %q is down, and no allocation has created it: ip link set %s up", b.Bridge, b.Bridge)
	case b.needsARP(br):
		return fmt.Errorf("bridge %q has ARP switched off, and no allocation has created it: ip link set %s arp on", b.Bridge, b.Bridge)
	}
	return nil
}

// macOf returns the MAC of the bridge in a result; nil if it has none.
func (b *bridge) macOf(r *types100.Result) net.HardwareAddr {
	i := slices.IndexFunc(r.Interfaces, func(itf *types100.Interface) bool { return itf.Name == b.Bridge && itf.Sandbox == "" })
	if i < 0 {
		return nil
	}
	mac, err := net.ParseMAC(r.Interfaces[i].Mac)
	if err != nil {
		return nil
	}
	return mac
}

// restoreRoute adds the route to the network of an address, as the kernel makes it when the bridge gets
// the gateway's address.
func (b *bridge) restoreRoute(host *rtnl.Host, br *netlink.Bridge, ip *types100.IPConfig) (added bool, err error) {
	if !b.hasRoute(br, ip) {
		return false, nil
	}
	added, err = host.RestoreRoute(routeTo(br.Index, ip), ip.Address.IP)
	if err != nil {
		return added, fmt.Errorf("interface %q: %w", b.Bridge, err)
	}
	return added, nil
}

// hasRoute reports whether the kernel makes a route to the network of an address in the main table. A bridge
// that belongs to a VRF has its routes in the table of that.
func (b *bridge) hasRoute(br *netlink.Bridge, ip *types100.IPConfig) bool {
	ones, bits := ip.Address.Mask.Size()
	return b.IsGateway && b.Vlan == 0 && br.MasterIndex == 0 && ones < bits
}

// routeTo returns the route to the network of an address, as the kernel makes it for its gateway.
func routeTo(index int, ip *types100.IPConfig) *rtnl.Route {
	return veth.ConnectedRoute(index, &ip.Address, ip.Gateway)
}

// checkRoutes returns an error for each network of a result to which no route over the bridge leads.
func (b *bridge) checkRoutes(host *rtnl.Host, br *netlink.Bridge, r *types100.Result) error {
	var errs []error
	for _, ip := range r.IPs {
		if b.hasRoute(br, ip) && !host.Reaches(br.Index, &ip.Address) {
			errs = append(errs, b.missingRoute(host, br.Index, ip))
		}
	}
	return errors.Join(errs...)
}

// missingRoute returns an error if the host has no route to the network of an address over the bridge, or
// another program's route to the address alone.
func (b *bridge) missingRoute(host *rtnl.Host, index int, ip *types100.IPConfig) error {
	foreign := host.ForeignAddressRoute(index, ip.Address.IP)
	if foreign == nil {
		foreign = host.ForeignRoute(routeTo(index, ip))
	}
	if foreign != nil {
		return fmt.Errorf("the host has no route to %s over %q: %w", ip.Address.IP, b.Bridge, foreign)
	}
	has, err := host.HasRoute(index, &ip.Address)
	if err == nil && !has {
		err = fmt.Errorf("the host has no route to %s over %q", routeTo(index, ip).Dst, b.Bridge)
	}
	return err
}

// restoreGuard makes the rules of the source guard again if some are missing.
func (b *bridge) restoreGuard(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) error {
	if !b.guardsSources() || sdk.AddedByReference(c, b.Name, r) {
		return nil
	}
	_, err := c.Host.RestoreGuard(ctx, ruleset.Bridge)
	return err
}
