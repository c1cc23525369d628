package ruleset

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// ExceptServices makes host ports of every address not apply to the addresses of services, and to no other
// addresses than these. It reports whether something has changed. Without tables, which the first Add makes, it
// does nothing.
func (r *Ruleset) ExceptServices(ctx context.Context, services []netip.Addr) (changed bool, err error) {
	for _, t := range tables {
		one, err := r.exceptServices(ctx, t, services)
		if err != nil {
			return changed, fmt.Errorf("except addresses of services from host ports: %w", err)
		}
		changed = changed || one
	}
	return changed, nil
}

func (r *Ruleset) exceptServices(ctx context.Context, t *table, services []netip.Addr) (changed bool, err error) {
	var want lister
	for _, a := range services {
		want.address(t, t.services, a)
	}
	is, err := r.dumpElements(ctx, t.services, func(*element) bool { return true })
	if err == nil {
		err = want.err
	}
	if err != nil {
		return false, err
	}
	c := change{remove: without(is, want.list), add: without(want.list, is)}
	if c.empty() {
		return false, nil
	}
	err = r.apply(ctx, c)
	if errors.Is(err, unix.ENOENT) { // the table is missing, or another process does the same
		return false, nil
	}
	return err == nil, err
}

// without returns the elements of a list that are not in another one.
func without(list, other []element) []element {
	return slices.DeleteFunc(slices.Clone(list), func(e element) bool { return slices.Contains(other, e) })
}
