package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Flow is a tracked connection as it passes the forward hook: the destination is that after its
// translation, and the source is the client's own.
type Flow struct {
	Protocol            uint8
	Source, Destination netip.Addr
	Port                uint16 // of the destination; of ICMP the type
	Redirected          bool   // the first packet was sent to another address or port
}

// FlushFlows deletes the entries from or to one of the addresses, or an address in one of the networks,
// for which gone returns true.
func (c *Conn) FlushFlows(ctx context.Context, addresses []netip.Addr, networks []netip.Prefix, gone func(Flow) bool) error {
	wanted, families := map[netip.Addr]bool{}, map[uint8]bool{}
	for _, a := range addresses {
		a = a.Unmap()
		wanted[a], families[family(a)] = true, true
	}
	for _, n := range networks {
		families[family(n.Addr())] = true
	}
	concerns := func(a netip.Addr) bool {
		return wanted[a] || slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
	}
	var errs []error
	for f := range families {
		errs = append(errs, c.deleteEach(ctx, filter{family: f}, func(e *entry) bool {
			return (concerns(e.source) || concerns(e.answers.source)) && gone(e.flow())
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end tracked connections: %w", err)
	}
	return nil
}

func (e *entry) flow() Flow {
	f := Flow{Protocol: e.protocol, Source: e.source, Destination: e.answers.source, Port: e.answers.sourcePort}
	f.Redirected = e.destination != e.answers.source
	if f.Protocol == unix.IPPROTO_ICMP || f.Protocol == unix.IPPROTO_ICMPV6 {
		f.Port = uint16(e.icmpType)
	} else if e.port != e.answers.sourcePort {
		f.Redirected = true
	}
	return f
}
