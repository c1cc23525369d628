package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
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

// gatewayAdded is called when the link got the address of a gateway. The error is that of requireRoom or resolveConflicts.
func (a *attachment) gatewayAdded(index int, gateway *net.IPNet) error {
	host := a.Args.Host.Kernel
	link, err := host.LinkStateAt(index)
	if err == nil {
		err = a.requireRoom(a.Args.Host.Bridges, link.Name, gateway, a.Result)
	}
	if err == nil {
		err = a.resolveConflicts(host, link, gateway)
	}
	if err != nil {
		return err
	}
	// A MAC that was set no longer follows the MACs of the ports.
	var pin rtnl.Batch
	if a.pin != nil {
		link.MAC = a.pin
	}
	pin.SetMAC(index, link.MAC)
	if err := host.Apply(&pin); err != nil {
		return fmt.Errorf("pin MAC of %q: %w", link.Name, err)
	}
	return nil
}

// requireRoom returns an *allocnet.SubnetError if the host loses something by an address that it got now. The
// attachment itself may be in the network namespace of the host.
func (b *bridge) requireRoom(bridges *bridges.Store, link string, gateway *net.IPNet, r *types100.Result) error {
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
		Network: &conflist.Network{Name: b.Name}, Prefix: prefix, Range: lease.Range{Gateway: addr.Unmap()}, Bridge: link, Gateway: true,
		Addresses: sdk.Addresses(r),
	}
	return s.RequireRoom(taken)
}

// resolveConflicts checks the other addresses of a link that got a new address:
// for IPv4 all of them, for IPv6 those of an overlapping network. It deletes
// them if forceAddress is set.
func (b *bridge) resolveConflicts(host *rtnl.Host, link *rtnl.LinkState, want *net.IPNet) error {
	addresses, err := host.Addresses(link.Index)
	if err != nil {
		return err
	}
	v4 := want.IP.To4() != nil
	for _, a := range addresses {
		overlaps := a.Contains(want.IP) || want.Contains(a.IP)
		if (a.IP.To4() != nil) != v4 || a.IPNet.String() == want.String() || !v4 && !overlaps {
			continue
		}
		if !b.ForceAddress {
			return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("bridge %q already has the address %s, which is not the gateway %s of the network; "+
				"remove it, name another bridge, or set forceAddress", link.Name, a.IPNet, want), "")
		}
		var changes rtnl.Batch
		changes.DeleteAddress(link.Index, a.IPNet)
		if err := host.Apply(&changes); err != nil {
			return fmt.Errorf("interface %q: %w", link.Name, err)
		}
		// When the first address of a network is deleted, the kernel deletes
		// the other ones as well.
		if err := host.AddAddress(link.Index, want, rtnl.NoDAD); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("interface %q: %w", link.Name, err)
		}
	}
	return nil
}
