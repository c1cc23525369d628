package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// sourceFinder finds addresses that are sources of firewalld's zones. A source does not
// name its owner. For sources of the native plugin, an element of allocnet's tables
// does; for those of the reference plugin, there is none.
type sourceFinder struct {
	*search
	found []zoneSource
	// kept reports that a source is or may be left. Its address must then not be
	// released.
	kept bool
}

type zoneSource struct {
	address       netip.Addr
	zone, network string
}

func (s zoneSource) leftover() Leftover {
	return Leftover{Kind: KindFirewalldSource, Network: s.network, Where: "zone " + s.zone, Object: s.address.String()}
}

func (f *sourceFinder) find(ctx context.Context) ([]Leftover, error) {
	f.found, f.kept = nil, false
	if !f.within(func(s scope) bool { return len(s.zones) > 0 }) {
		return nil, nil
	}
	runs, runsErr := firewalld.Shared.Runs(ctx)
	if !runs && runsErr == nil {
		return nil, nil
	}
	added, err := f.added(ctx)
	switch {
	case runsErr != nil && (len(added) > 0 || len(f.addresses.own) > 0 && !errors.Is(runsErr, fs.ErrNotExist)):
		err = errors.Join(err, fmt.Errorf("look for sources of firewalld's zones: %w", runsErr))
	case runsErr != nil: // the target cannot have sources
	default:
		err = errors.Join(err, f.inZones(ctx, added))
	}
	f.kept = err != nil
	var list []Leftover
	for _, s := range f.found {
		list = append(list, s.leftover())
	}
	return list, err
}

// added returns the addresses that the target has added to a zone, according to
// allocnet's tables.
func (f *sourceFinder) added(ctx context.Context) (added []netip.Addr, err error) {
	if f.instanceErr != nil {
		return nil, f.instanceErr
	}
	err = withRules(func(r *ruleset.Ruleset) error {
		open, err := r.OpenOf(ctx, f.isOwner)
		for _, a := range open {
			if a.Zone != "" {
				added = append(added, a.Address)
				f.addresses.addOwn(a.Address, a.Owner.Network)
			}
		}
		return err
	})
	return added, err
}

// inZones finds the addresses of the target among the sources of all zones.
func (f *sourceFinder) inZones(ctx context.Context, added []netip.Addr) error {
	if len(f.addresses.own) == 0 {
		return nil
	}
	sources, err := firewalld.Shared.Sources(ctx)
	for address, zone := range sources {
		ours := slices.Contains(added, address) && !f.addresses.foreign[address]
		if ours || f.addresses.isOurs(address) && f.within(func(s scope) bool { return s.hasZone(zone) }) {
			f.found = append(f.found, zoneSource{address, zone, f.addresses.own[address]})
		}
	}
	return err
}

func (f *sourceFinder) remove(ctx context.Context) ([]Leftover, error) {
	var (
		removed []Leftover
		errs    []error
	)
	for _, s := range f.found {
		if err := firewalld.Shared.Remove(ctx, s.zone, s.address); err != nil {
			f.kept = true
			errs = append(errs, err)
			continue
		}
		removed = append(removed, s.leftover())
	}
	return removed, errors.Join(errs...)
}
