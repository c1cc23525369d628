package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// routeFinder finds the routes that the plugin routes has written: by the elements that name
// the allocation as their owner and, should these be gone, routes to its addresses in the
// tables of its networks.
type routeFinder struct {
	*search
	owned    []ruleset.AnnouncedRoute
	nameless []rtnl.Route
	// kept reports that a route is or may be left. Its address must then not be released,
	// and its element must stay.
	kept bool
}

func (f *routeFinder) find(ctx context.Context) (_ []Leftover, err error) {
	f.owned, f.nameless = nil, nil
	defer func() { f.kept = err != nil }()
	if f.instanceErr != nil {
		return nil, f.instanceErr
	}
	foreign := map[netip.Addr]bool{}
	err = withRules(func(r *ruleset.Ruleset) error {
		all, err := r.AnnouncedOf(ctx, func(names.Owner) bool { return true })
		for _, one := range all {
			if f.isOwner(one.Owner) {
				f.owned = append(f.owned, one)
			} else {
				foreign[one.Address.Addr()] = true
			}
		}
		return err
	})
	err = errors.Join(err, f.findNameless(foreign))
	return f.leftovers(), err
}

// findNameless finds routes without an element. The foreign addresses have one of another
// owner.
func (f *routeFinder) findNameless(foreign map[netip.Addr]bool) error {
	kernel := rtnl.OpenHost()
	defer kernel.Close()
	var errs []error
	for _, a := range f.attachments {
		for _, t := range a.scope.routes {
			list, err := kernel.TableRoutes(int(t.table), t.protocol)
			errs = append(errs, err)
			for _, r := range list {
				ones, bits := r.Dst.Mask.Size()
				address, _ := netip.AddrFromSlice(r.Dst.IP)
				address = address.Unmap()
				known := slices.ContainsFunc(f.owned, func(o ruleset.AnnouncedRoute) bool { return o.Table == t.table && o.Address.Addr() == address })
				if ones == bits && f.addresses.own[address] == a.Network && f.addresses.isOurs(address) && !foreign[address] && !known {
					f.nameless = append(f.nameless, r)
				}
			}
		}
	}
	return errors.Join(errs...)
}

func (f *routeFinder) leftovers() []Leftover {
	var list []Leftover
	for _, r := range f.owned {
		list = append(list, Leftover{Kind: KindRoute, Network: r.Owner.Network, Where: fmt.Sprintf("table %d", r.Table), Object: r.Address.Masked().String()})
	}
	for _, r := range f.nameless {
		address, _ := netip.AddrFromSlice(r.Dst.IP)
		list = append(list, Leftover{Kind: KindRoute, Network: f.addresses.own[address.Unmap()], Where: fmt.Sprintf("table %d", r.Table), Object: r.Dst.String()})
	}
	return list
}

func (f *routeFinder) remove(ctx context.Context) ([]Leftover, error) {
	list := f.leftovers()
	if len(list) == 0 {
		return nil, nil
	}
	kernel := rtnl.OpenHost()
	defer kernel.Close()
	var b rtnl.Batch
	for i := range f.nameless {
		b.DeleteRoute(&f.nameless[i])
	}
	err := errors.Join(kernel.Apply(&b), withRules(func(r *ruleset.Ruleset) error {
		return announce.Announcer{Kernel: kernel, Rules: r}.WithdrawOf(ctx, f.isOwner)
	}))
	if f.kept = err != nil; f.kept {
		return nil, fmt.Errorf("delete routes: %w", err)
	}
	return list, nil
}
