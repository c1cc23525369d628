package ruleset

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/allocnet/allocnet/internal/names"
)

// Destination returns where packets to a host port lead, and the owner of that mapping: the
// mapping for this address of the host or, if there is none, that for every address of its
// family. It returns nil if there is neither.
func (r *Ruleset) Destination(ctx context.Context, host netip.Addr, protocol uint8, port uint16) (*Mapping, names.Owner, error) {
	host = host.Unmap()
	any := netip.IPv4Unspecified()
	if host.Is6() {
		any = netip.IPv6Unspecified()
	}
	m := Mapping{HostIP: host, Protocol: protocol, HostPort: port, To: netip.AddrPortFrom(any, 0)}
	everywhere := m
	everywhere.HostIP = netip.Addr{}
	list, err := (&Elements{Mappings: []Mapping{m, everywhere}}).elements()
	if err != nil {
		return nil, names.Owner{}, fmt.Errorf("look up %s: %w", &m, err)
	}
	found, err := r.lookUp(ctx, list)
	if err != nil {
		return nil, names.Owner{}, fmt.Errorf("look up %s: %w", &m, err)
	}
	var best *element
	for i := range found {
		if found[i].set != nil && (best == nil || found[i].set == found[i].set.table.hostIPPorts) {
			best = &found[i]
		}
	}
	if best == nil {
		return nil, names.Owner{}, nil
	}
	owner, _ := names.ParseOwner(best.owner)
	is := best.mapping()
	return &is, owner, nil
}
