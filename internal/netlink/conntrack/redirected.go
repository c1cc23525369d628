package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// Redirection is a host port and the address to which it leads.
type Redirection struct {
	Port
	To netip.AddrPort
}

// FlushRedirections deletes the entries of a family (AF_INET, AF_INET6) whose first packet was
// sent to one of the host ports and redirected to its address. Other connections of the host
// port stay.
func (c *Conn) FlushRedirections(ctx context.Context, family uint8, list ...Redirection) error {
	if len(list) == 0 || c.count() == 0 {
		return nil
	}
	ports := make([]Port, len(list))
	for i, r := range list {
		ports[i] = r.Port
	}
	err := c.deleteEach(ctx, common(family, ports), func(e *entry) bool {
		return slices.ContainsFunc(list, func(r Redirection) bool { return r.has(e) })
	})
	if err != nil {
		return fmt.Errorf("delete tracked connections of %d redirected host ports: %w", len(list), err)
	}
	return nil
}

func (r *Redirection) has(e *entry) bool {
	return e.protocol == r.Protocol && e.port == r.Number && (r.everywhere() || e.destination == r.HostIP.Unmap()) &&
		e.answers.source == r.To.Addr() && e.answers.sourcePort == r.To.Port()
}
