package ruleset

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/allocnet/allocnet/internal/names"
)

// OpenAddress is an address of Elements.Open that is in the tables.
type OpenAddress struct {
	Address netip.Addr
	Owner   names.Owner
	// Zone is the firewalld zone that the address was added to, if any.
	Zone string
}

// OpenAddresses looks up addresses. It leaves out addresses that are not in the tables.
func (r *Ruleset) OpenAddresses(ctx context.Context, addresses []netip.Addr) ([]OpenAddress, error) {
	list, err := (&Elements{Open: addresses}).remains()
	if err != nil {
		return nil, fmt.Errorf("look up open addresses: %w", err)
	}
	found, err := r.lookUp(ctx, list)
	if err != nil {
		return nil, fmt.Errorf("look up open addresses: %w", err)
	}
	var open []OpenAddress
	for i := range found {
		if found[i].set != nil {
			open = append(open, found[i].openAddress())
		}
	}
	return open, nil
}

// AddressOwners returns the owners of an address, which is masqueraded or open.
func (r *Ruleset) AddressOwners(ctx context.Context, address netip.Addr) ([]string, error) {
	var l lister
	t := tableOf(address.Unmap())
	for _, s := range []*set{t.masqueraded, t.open} {
		l.address(t, s, address)
	}
	found, err := r.lookUp(ctx, l.list)
	if err != nil {
		return nil, fmt.Errorf("look up the owners of %s: %w", address, err)
	}
	var owners []string
	for i := range found {
		if found[i].set != nil && found[i].owner != "" {
			owners = append(owners, found[i].owner)
		}
	}
	return owners, nil
}

// OpenOf returns the open addresses for which of(owner) is true. It reads all open
// addresses.
func (r *Ruleset) OpenOf(ctx context.Context, of func(names.Owner) bool) ([]OpenAddress, error) {
	var open []OpenAddress
	for _, t := range tables {
		found, err := r.dumpSet(ctx, t.open, of)
		if err != nil {
			return nil, fmt.Errorf("list open addresses by their owners: %w", err)
		}
		for i := range found {
			open = append(open, found[i].openAddress())
		}
	}
	return open, nil
}

func (e *element) openAddress() OpenAddress {
	owner, _ := names.ParseOwner(e.owner)
	return OpenAddress{Address: e.address(), Owner: owner, Zone: e.zone}
}
