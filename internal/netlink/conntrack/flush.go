package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Port is a host port.
type Port struct {
	Protocol uint8 // IPPROTO_TCP, _UDP, _SCTP
	Number   uint16
	// HostIP is the host's address on which it is open; an invalid or unspecified
	// one stands for all addresses that are the host's own.
	HostIP netip.Addr
}

// FlushPort deletes the entries of one host port: see FlushPorts.
func (c *Conn) FlushPort(ctx context.Context, family, protocol uint8, port uint16, hostIP netip.Addr) error {
	return c.FlushPorts(ctx, family, Port{Protocol: protocol, Number: port, HostIP: hostIP})
}

// FlushPorts deletes the entries of a family (AF_INET, AF_INET6) whose first
// packet went to one of the host ports, wherever it was led. What passed through
// to the same port of another host stays.
func (c *Conn) FlushPorts(ctx context.Context, family uint8, ports ...Port) error {
	if len(ports) == 0 || c.count() == 0 {
		return nil
	}
	if err := c.flushPorts(ctx, family, ports); err != nil {
		return fmt.Errorf("delete tracked connections of %d host ports: %w", len(ports), err)
	}
	return nil
}

// fewWalks is the most walks of deleting that take less time than one of listing.
const fewWalks = 4

func (c *Conn) flushPorts(ctx context.Context, family uint8, ports []Port) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.absent(ports) {
		return nil
	}
	if len(ports) <= fewWalks && !slices.ContainsFunc(ports, Port.everywhere) {
		left := ports[:0:0]
		for _, p := range ports {
			deleted, err := c.deleteBy(ctx, p.filter(family))
			if err != nil {
				return err
			}
			if !deleted {
				left = append(left, p)
			}
		}
		ports = left
	}
	if len(ports) == 0 {
		return nil
	}
	local := make(locals)
	return c.deleteEach(ctx, common(family, ports), func(e *entry) bool {
		return slices.ContainsFunc(ports, func(p Port) bool { return p.has(e, local) })
	})
}

func (p Port) everywhere() bool { return !p.HostIP.IsValid() || p.HostIP.IsUnspecified() }

func (p Port) filter(family uint8) filter {
	f := filter{family: family, protocol: p.Protocol, port: p.Number}
	if !p.everywhere() {
		f.destination = p.HostIP.Unmap()
	}
	return f
}

// has reports whether an entry is of the port.
func (p Port) has(e *entry, local locals) bool {
	if e.protocol != p.Protocol || e.port != p.Number {
		return false
	}
	if p.everywhere() {
		return local.contain(e.destination)
	}
	return e.destination == p.HostIP.Unmap()
}

// common is what the entries of all the ports have in common.
func common(family uint8, ports []Port) filter {
	f := filter{family: family, protocol: ports[0].Protocol, port: ports[0].Number}
	for _, p := range ports {
		if p.Protocol != f.protocol {
			return filter{family: family}
		}
		if p.Number != f.port {
			f.port = 0
		}
	}
	return f
}

// Ports are those that the first packets of a family's entries went to, each
// once, with the address. Some may be other hosts'.
func (c *Conn) Ports(ctx context.Context, family uint8) ([]Port, error) {
	if c.count() == 0 {
		return nil, nil
	}
	var ports []Port
	seen := make(map[Port]bool)
	err := c.each(ctx, filter{family: family}, func(e *entry) {
		p := Port{Protocol: e.protocol, Number: e.port, HostIP: e.destination}
		if p.Number != 0 && !seen[p] {
			seen[p] = true
			ports = append(ports, p)
		}
	})
	if err != nil && !isUnsupported(err) {
		return nil, fmt.Errorf("list ports of tracked connections: %w", err)
	}
	return ports, nil
}

// locals remembers which addresses are the host's own.
type locals map[netip.Addr]bool

// contain asks the kernel where it would send a packet.
func (l locals) contain(addr netip.Addr) bool {
	if known, ok := l[addr]; ok {
		return known
	}
	routes, err := netlink.RouteGet(addr.AsSlice())
	l[addr] = err == nil && slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
	return l[addr]
}
