package cleanup

import (
	"context"
	"net/netip"
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
