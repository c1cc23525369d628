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
	// HostIP is the address of the host on which the port is open. An invalid or
	// unspecified one stands for all addresses of the host.
	HostIP netip.Addr
}

// FlushPorts deletes the entries of a family (AF_INET, AF_INET6) whose first packet was
// sent to one of the host ports, wherever it was redirected. Connections to the same
// port of another host stay.
func (c *Conn) FlushPorts(ctx context.Context, family uint8, ports ...Port) error {
	if len(ports) == 0 || c.count() == 0 {
		return nil
	}
	if err := c.flushPorts(ctx, family, ports); err != nil {
		return fmt.Errorf("delete tracked connections of %d host ports: %w", len(ports), err)
	}
	return nil
}

// fewWalks is the maximum number of walks for deleting by a filter that take less time
// than one walk that lists entries.
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

// has reports whether an entry belongs to the port. local caches the addresses of the
// host.
func (p Port) has(e *entry, local locals) bool {
	if e.protocol != p.Protocol || e.port != p.Number {
		return false
	}
	if p.everywhere() {
		return local.contain(e.destination)
	}
	return e.destination == p.HostIP.Unmap()
}

// common returns a filter for the protocol and the port that the entries of all ports
// have in common.
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

// Ports returns the ports to which the first packets of a family's entries were sent,
// each once for every address. Some can belong to other hosts.
func (c *Conn) Ports(ctx context.Context, family uint8) ([]Port, error) {
	if c.count() == 0 {
		return nil, nil
	}
	var ports []Port
	seen := make(map[Port]bool)
	err := c.read(ctx, family, func(e *entry) {
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

// locals caches which addresses belong to the host.
type locals map[netip.Addr]bool

// contain reports whether an address belongs to the host, which is so if the kernel's
// route to it is local.
func (l locals) contain(addr netip.Addr) bool {
	if known, ok := l[addr]; ok {
		return known
	}
	routes, err := netlink.RouteGet(addr.AsSlice())
	l[addr] = err == nil && slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
	return l[addr]
}
