package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
	"github.com/allocnet/allocnet/internal/state/bridges"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/subnets"
)

// route completes the IPAM plugin's result: it adds the interface of each
// address, the gateway if the bridge is one, and default routes.
func (b *bridge) route(r *types100.Result) {
	defaulted := map[bool]bool{}
	for _, address := range r.IPs {
		address.Interface = types100.Int(2)
		if address.Gateway == nil && b.IsGateway {
			address.Gateway = firstOf(&address.Address)
		}
		v4 := address.Address.IP.To4() != nil
		if b.IsDefaultGateway && !defaulted[v4] {
			defaulted[v4] = true
			b.defaultRoute(r, address.Gateway)
		}
	}
}

// firstOf returns the first host address of a network.
func firstOf(n *net.IPNet) net.IP {
	base, _ := netip.AddrFromSlice(n.IP.Mask(n.Mask))
	return base.Unmap().Next().AsSlice()
}

// defaultRoute adds a default route through a gateway, unless the IPAM plugin
// returned one with a gateway.
func (b *bridge) defaultRoute(r *types100.Result, gateway net.IP) {
	all := net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	if gateway.To4() != nil {
		all = net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	}
	for _, route := range r.Routes {
		if route.GW != nil && route.Dst.String() == all.String() {
			return
		}
	}
	r.Routes = append(r.Routes, &types.Route{Dst: all, GW: gateway})
}

// setGateways makes the bridge the gateway of the addresses' networks, for which the host
// forwards packets. It reports whether something was missing.
func (b *bridge) setGateways(ctx context.Context, host *sdk.Host, br *netlink.Bridge, r *types100.Result) (changed bool, err error) {
	if !b.IsGateway {
		return false, nil
	}
	link, err := b.gatewayLink(host.Kernel, br, r)
	if err != nil {
		return false, err
	}
	var errs []error
	for _, address := range r.IPs {
		gateway := &net.IPNet{IP: address.Gateway, Mask: address.Address.Mask}
		added, err := b.ensureAddress(ctx, host, link, gateway, r)
		changed, errs = changed || added, append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return changed, err
	}
	added, err := ensureLinkLocal(host.Kernel, link, r, changed)
	if changed = changed || added; err != nil {
		return changed, err
	}
	enabled, err := veth.EnsureForwarding(host, link.Attrs().Index, link.Attrs().Name, r)
	return changed || enabled, err
}

// ensureLinkLocal adds the link-local address, as the kernel does it some time after the link
// has come up, if a result has IPv6 addresses. Without it, the host forwards no packet to an
// IPv6 address whose MAC it has to look up, nor as long as the kernel looks for duplicates of it.
// That lasts for up to two seconds, and can only be the case while the link is new.
func ensureLinkLocal(host *rtnl.Host, link netlink.Link, r *types100.Result, isNew bool) (added bool, err error) {
	mac := link.Attrs().HardwareAddr
	if !veth.HasIPv6(r) || len(mac) != 6 {
		return false, nil
	}
	want := &net.IPNet{IP: veth.LinkLocal(mac), Mask: net.CIDRMask(64, 128)}
	added, err = host.EnsureAddress(link.Attrs().Index, want, rtnl.NoDAD)
	if err == nil && !added && isNew {
		err = veth.SkipDAD(host, link.Attrs().Index, want)
	}
	if err != nil {
		return false, fmt.Errorf("interface %q: %w", link.Attrs().Name, err)
	}
	return added, nil
}

// ensureAddress adds an address to the bridge or to a VLAN's interface. It adds
// the address without listing first: usually the address exists, and listing
// the addresses of a host with thousands of them takes longer.
func (b *bridge) ensureAddress(ctx context.Context, h *sdk.Host, link netlink.Link, want *net.IPNet, r *types100.Result) (added bool, err error) {
	host := h.Kernel
	added, err = host.EnsureAddress(link.Attrs().Index, want, rtnl.NoDAD)
	if err != nil {
		return false, fmt.Errorf("interface %q: %w", link.Attrs().Name, err)
	}
	if !added {
		return false, nil
	}
	err = b.requireRoom(h.Bridges, link, want, r)
	if err == nil {
		err = b.resolveConflicts(host, link, want)
	}
	if err != nil {
		return false, errors.Join(err, host.AddrDel(link, &netlink.Addr{IPNet: want}))
	}
	// A MAC that was set no longer follows the MACs of the ports.
	if err := host.LinkSetHardwareAddr(link, link.Attrs().HardwareAddr); err != nil {
		return true, fmt.Errorf("pin MAC of %q: %w", link.Attrs().Name, err)
	}
	return true, host.AwaitReception(ctx, link.Attrs().Index, want.IP)
}

// requireRoom returns an *allocnet.SubnetError if the host loses something by an address that it got now. The
// attachment itself may be in the network namespace of the host.
func (b *bridge) requireRoom(bridges *bridges.Store, link netlink.Link, gateway *net.IPNet, r *types100.Result) error {
	addr, _ := netip.AddrFromSlice(gateway.IP)
	ones, _ := gateway.Mask.Size()
	prefix, err := addr.Unmap().Prefix(ones)
	if err != nil {
		return err
	}
	taken, err := subnets.OfHost(nil)
	if err != nil {
		return err
	}
	taken = slices.DeleteFunc(taken, func(t subnets.Taken) bool {
		own, err := bridges.Recorded(t.Link, t.Index)
		return t.Bridge && own && err == nil
	})
	s := subnets.Subnet{
		Network: &conflist.Network{Name: b.Name}, Prefix: prefix, Range: lease.Range{Gateway: addr.Unmap()}, Bridge: link.Attrs().Name, Gateway: true,
		Addresses: sdk.Addresses(r),
	}
	return s.RequireRoom(taken)
}

// resolveConflicts checks the other addresses of a link that got a new address:
// for IPv4 all of them, for IPv6 those of an overlapping network. It deletes
// them if forceAddress is set.
func (b *bridge) resolveConflicts(host *rtnl.Host, link netlink.Link, want *net.IPNet) error {
	family := netlink.FAMILY_V6
	if want.IP.To4() != nil {
		family = netlink.FAMILY_V4
	}
	addresses, err := host.AddrList(link, family)
	if err != nil {
		return fmt.Errorf("list addresses of %q: %w", link.Attrs().Name, err)
	}
	for _, a := range addresses {
		overlaps := a.Contains(want.IP) || want.Contains(a.IP)
		if a.IPNet.String() == want.String() || family == netlink.FAMILY_V6 && !overlaps {
			continue
		}
		if !b.ForceAddress {
			return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("bridge %q already has the address %s, which is not the gateway %s of the network; "+
				"remove it, name another bridge, or set forceAddress", link.Attrs().Name, a.IPNet, want), "")
		}
		if err := host.AddrDel(link, &netlink.Addr{IPNet: a.IPNet}); err != nil {
			return fmt.Errorf("remove address %s from %q: %w", a.IPNet, link.Attrs().Name, err)
		}
		// When the first address of a network is deleted, the kernel deletes
		// the other ones as well.
		if err := host.AddAddress(link.Attrs().Index, want, rtnl.NoDAD); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("interface %q: %w", link.Attrs().Name, err)
		}
	}
	return nil
}
