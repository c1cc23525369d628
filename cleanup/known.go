package cleanup

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/state/lease"
)

// Address is an address that an allocation has in a network.
type Address struct {
	Network string     `json:"network,omitempty"`
	IP      netip.Addr `json:"ip"`
}

// Addresses finds out which addresses an allocation has, from its results, its
// leases and the rules that bear its ID. Where a result is unknown, ask before
// DEL and pass the answer to Force in the Target: DEL gives back the lease that
// alone tells to whom rules belong that name nothing but an address.
func Addresses(ctx context.Context, t Target) ([]Address, error) {
	s := newSearch(t)
	_, err := s.find(ctx)
	var known []Address
	for ip, network := range s.addresses.own {
		known = append(known, Address{Network: network, IP: ip})
	}
	return known, err
}

// Released are the addresses of a target's results that are not its own any more: another allocation holds them with
// host-local, or host-local, where no other plugin can have leased them, does not have them for the target. A DEL that
// is done again must not be given them, as plugins delete rules that name nothing but an address.
func Released(ctx context.Context, t Target) ([]netip.Addr, error) {
	known := Covers(t)
	t.Addresses = nil
	s := newSearch(t)
	if _, err := s.leases.find(ctx); err != nil {
		return nil, fmt.Errorf("look for the holders of addresses: %w", err)
	}
	var released []netip.Addr
	for _, a := range s.attachments {
		if a.result == nil {
			continue
		}
		leases := known && len(a.scope.dataDirs) > 0
		for _, addr := range resultAddresses(a.result) {
			if _, own := s.addresses.own[addr]; s.addresses.foreign[addr] || leases && !own {
				released = append(released, addr)
			}
		}
	}
	return released, nil
}

// Holders are the IDs of the allocations that hold an address of a network with
// host-local, by its conflist, sorted.
func Holders(network string, config []byte) ([]string, error) {
	ids := map[string]bool{}
	err := eachLease(network, config, func(o lease.Owner) {
		if o.ID != "" {
			ids[o.ID] = true
		}
	})
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(ids)), nil
}

// eachLease notes the holders of a network's leases, by its conflist.
func eachLease(network string, config []byte, note func(lease.Owner)) error {
	at := &attachment{Attachment: Attachment{Network: network, Config: config}, scope: scopeOf(config)}
	dirs, err := (&leaseFinder{search: &search{attachments: []*attachment{at}}}).dirs()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		leases, err := dir.List()
		if err != nil {
			return err
		}
		for _, l := range leases {
			note(l.Owner)
		}
	}
	return nil
}
