package ruleset

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/allocnet/allocnet/internal/names"
)

// Destination returns where packets to a host port lead, and the owner of that mapping: the
// mapping for this address of the host or, if there is none, that for every address of its
// family, unless the address is one of a service. It returns nil if there is neither.
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
	var service lister
	service.address(tableOf(host), tableOf(host).services, host)
	found, err := r.lookUp(ctx, append(list, service.list...))
	if err != nil {
		return nil, names.Owner{}, fmt.Errorf("look up %s: %w", &m, err)
	}
	var best *element
	isService := found[len(list)].set != nil
	for i := range list {
		one := list[i].set == list[i].set.table.hostIPPorts
		if found[i].set != nil && (one || best == nil && !isService) {
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
