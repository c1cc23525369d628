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

// Addresses returns the addresses of an allocation, from its results, its leases and
// the rules with its ID. If a result is unknown, call it before DEL and pass the
// addresses to Force in the Target: some rules contain only an address, and DEL
// releases the lease that shows its owner.
func Addresses(ctx context.Context, t Target) ([]Address, error) {
	s := newSearch(t)
	_, err := s.find(ctx)
	var known []Address
	for ip, network := range s.addresses.own {
		known = append(known, Address{Network: network, IP: ip})
	}
	return known, err
}

// Released returns the addresses in the results of a target that no longer belong to
// it: another allocation holds a lease of host-local for the address, or the target has
// no such lease although no other IPAM plugin is involved. A repeated DEL must not get
// these addresses, because plugins delete rules that contain only an address.
func Released(ctx context.Context, t Target) ([]netip.Addr, error) {
	known := Covers(t, "policy") // which has no addresses
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

// Holders returns the sorted IDs of the allocations that have a host-local lease in a
// network with that conflist.
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

// eachLease calls note for the owners of the leases of a network with that conflist.
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
