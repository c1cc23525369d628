package sdk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// If an address is a source of a firewalld zone, the element for that address
// in allocnet's tables names the zone and the owner. The element is deleted
// after the address has been removed from the zone, so a zone with the address
// implies the element.

// DelOwned removes the nftables elements of the owners for which remove is
// true, after it has removed what only these elements name: their addresses from
// firewalld's zones, and their routes for routing daemons. It reads all elements.
func (h *Host) DelOwned(ctx context.Context, remove func(names.Owner) bool) error {
	err := errors.Join(
		h.leaveZones(ctx, func() ([]ruleset.OpenAddress, error) { return h.Rules.OpenOf(ctx, remove) }),
		announce.Announcer{Kernel: h.Kernel, Rules: h.Rules}.WithdrawOf(ctx, remove))
	if err != nil {
		return err
	}
	return h.Rules.DelOwned(ctx, remove)
}

// LeaveZones removes the addresses of the attachment from firewalld's zones, if
// its elements name zones. Without addresses it reads all elements.
func (a *CmdArgs) LeaveZones(ctx context.Context, network string, addresses []netip.Addr) error {
	return a.Host.leaveZones(ctx, func() ([]ruleset.OpenAddress, error) {
		owner := a.Owner(network).String()
		if len(addresses) == 0 {
			return a.Host.Rules.OpenOf(ctx, func(o names.Owner) bool { return o.String() == owner })
		}
		open, err := a.Host.Rules.OpenAddresses(ctx, addresses)
		return slices.DeleteFunc(open, func(o ruleset.OpenAddress) bool { return o.Owner.String() != owner }), err
	})
}

// leaveZones removes the listed addresses from firewalld's zones. If firewalld
// is not running, it has no zones and leaveZones does not list addresses.
func (h *Host) leaveZones(ctx context.Context, list func() ([]ruleset.OpenAddress, error)) error {
	runs, runsErr := h.Firewalld.Runs(ctx)
	if !runs && runsErr == nil {
		return nil
	}
	open, err := list()
	errs := []error{err}
	for _, a := range open {
		switch {
		case a.Zone == "":
		case runsErr != nil:
			errs = append(errs, fmt.Errorf("remove %s from zone %q: %w", a.Address, a.Zone, runsErr))
		default:
			errs = append(errs, h.Firewalld.Remove(ctx, a.Zone, a.Address))
		}
	}
	return errors.Join(errs...)
}

// LeaveAnyZone removes addresses that no attachment uses any more from all
// firewalld zones. Addresses that the reference plugin added to a zone have no
// element that names it.
func (h *Host) LeaveAnyZone(ctx context.Context, addresses []netip.Addr) error {
	if h == nil || len(addresses) == 0 {
		return nil
	}
	runs, err := h.Firewalld.Runs(ctx)
	if errors.Is(err, fs.ErrNotExist) { // firewalld was never contacted
		return nil
	}
	if err != nil || !runs {
		return err
	}
	sources, err := h.Firewalld.Sources(ctx)
	errs := []error{err}
	for _, a := range addresses {
		if zone, is := sources[a]; is {
			errs = append(errs, h.Firewalld.Remove(ctx, zone, a))
		}
	}
	return errors.Join(errs...)
}

// Addresses returns the distinct addresses of a result.
func Addresses(r *types100.Result) []netip.Addr {
	if r == nil {
		return nil
	}
	var all []netip.Addr
	for _, ip := range r.IPs {
		address, ok := netip.AddrFromSlice(ip.Address.IP)
		if address = address.Unmap(); ok && !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	return all
}

// ContainerIPs returns the addresses of a result without those of the host's interfaces. The interface of a
// virtual machine has the addresses of the container's, which are returned once.
func ContainerIPs(r *types100.Result) (list []*types100.IPConfig) {
	for _, ip := range r.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(r.Interfaces) && r.Interfaces[*i].Sandbox == "" {
			continue
		}
		if !slices.ContainsFunc(list, func(other *types100.IPConfig) bool { return other.Address.IP.Equal(ip.Address.IP) }) {
			list = append(list, ip)
		}
	}
	return list
}
