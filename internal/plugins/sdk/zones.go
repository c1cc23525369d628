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
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// An address that firewalld has in a zone is an open address of allocnet's tables as
// well, and that one names the zone and the owner. It goes after the address has left
// the zone, so it tells for as long as it has not.

// DelOwned removes every nftables element whose owner the function names, after the
// addresses have left firewalld's zones. It reads all elements.
func (h *Host) DelOwned(ctx context.Context, remove func(names.Owner) bool) error {
	err := h.leaveZones(ctx, func() ([]ruleset.OpenAddress, error) { return h.Rules.OpenOf(ctx, remove) })
	if err != nil {
		return err
	}
	return h.Rules.DelOwned(ctx, remove)
}

// LeaveZones takes the addresses of the call's attachment out of firewalld's zones, as
// far as its elements tell that they are in one. Without addresses it reads all open
// ones.
func (c *CmdArgs) LeaveZones(ctx context.Context, network string, addresses []netip.Addr) error {
	return c.Host.leaveZones(ctx, func() ([]ruleset.OpenAddress, error) {
		owner := c.Owner(network).String()
		if len(addresses) == 0 {
			return c.Host.Rules.OpenOf(ctx, func(o names.Owner) bool { return o.String() == owner })
		}
		open, err := c.Host.Rules.OpenAddresses(ctx, addresses)
		return slices.DeleteFunc(open, func(a ruleset.OpenAddress) bool { return a.Owner.String() != owner }), err
	})
}

// leaveZones takes listed addresses out of firewalld's zones. Where firewalld does not
// run they are in none, and nothing is listed.
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

// LeaveAnyZone takes addresses that nobody has any more out of the zones of firewalld
// that they are in. No element tells of those that the reference plugin added.
func (h *Host) LeaveAnyZone(ctx context.Context, addresses []netip.Addr) error {
	if h == nil || len(addresses) == 0 {
		return nil
	}
	runs, err := h.Firewalld.Runs(ctx)
	if errors.Is(err, fs.ErrNotExist) { // nobody has asked firewalld
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

// Addresses are all that a result has, each once.
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
