package object

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// HostRoute is the route of the host to an address of a container.
type HostRoute struct {
	Link string
	To   *net.IPNet // with all bits
}

func (h *HostRoute) route(index int) *rtnl.Route {
	return &rtnl.Route{Index: index, Dst: h.To, Scope: unix.RT_SCOPE_HOST, Exclusive: true}
}

// Compare tells of another program's route in the place of the wanted one, which stays. When ADD makes the route, it is an
// error: then another allocation has the address, whose lease and elements were lost.
func (h *HostRoute) Compare(_ context.Context, v *View) ([]Difference, error) {
	index, ok, err := v.present(h.Link)
	if err != nil || !ok {
		return nil, err
	}
	route := h.route(index)
	if v.made {
		return []Difference{{Put: func(b *rtnl.Batch) { b.AddRoute(route) }}}, nil
	}
	if has, err := v.Kernel.HasRoute(index, h.To); err != nil || has {
		return nil, err
	}
	d := Difference{Finding: fmt.Errorf("the host has no route to %s over %q", h.To.IP, h.Link)}
	switch foreign := v.Kernel.ForeignRoute(route); {
	case foreign == nil && h.To.IP.To4() == nil && v.lacksIPv6(h.Link):
	case foreign == nil:
		d.Put = func(b *rtnl.Batch) { b.TryRoute(route, new(bool)) }
	case errors.Is(foreign, rtnl.ErrForeignRoute):
		d.Finding = fmt.Errorf("%w: %w", d.Finding, foreign)
	default:
		return nil, foreign
	}
	return []Difference{d}, nil
}

// NoMulticast is that a new link of the host has no route to multicast addresses: see rtnl.Batch.DropMulticast.
type NoMulticast struct{ Link string }

// Compare implements Object.
func (n *NoMulticast) Compare(_ context.Context, v *View) ([]Difference, error) {
	index, ok, err := v.present(n.Link)
	if err != nil || !ok || !v.made {
		return nil, err
	}
	return []Difference{{Put: func(b *rtnl.Batch) { b.DropMulticast(index) }}}, nil
}

// NetworkRoute is the route of the host to the network of an address over a bridge, as the kernel makes it with the gateway's
// address.
type NetworkRoute struct {
	Link    string
	Address *net.IPNet
	Gateway net.IP
}

// kernelMetric is the metric of the routes that the kernel makes for IPv6 addresses.
const kernelMetric = 256

// Connected returns the route to a network as the kernel makes it for a link with an address in it.
func Connected(network *net.IPNet, address net.IP) *rtnl.Route {
	route := &rtnl.Route{
		Dst: &net.IPNet{IP: network.IP.Mask(network.Mask), Mask: network.Mask}, Priority: kernelMetric, Protocol: unix.RTPROT_KERNEL,
	}
	if address.To4() != nil {
		route.Priority, route.Scope, route.Src = 0, unix.RT_SCOPE_LINK, address
	}
	return route
}

// Compare tells of a route of another program in its place, or to the address alone, which stays. A bridge that belongs to a
// VRF has its routes in the table of that.
func (n *NetworkRoute) Compare(_ context.Context, v *View) ([]Difference, error) {
	link, err := v.link(n.Link)
	if err != nil || link == nil || link.Master != 0 || v.Kernel.Reaches(link.Index, n.Address) {
		return nil, err
	}
	route := Connected(n.Address, n.Gateway)
	route.Index = link.Index
	foreign := v.Kernel.ForeignAddressRoute(link.Index, n.Address.IP)
	if foreign == nil {
		foreign = v.Kernel.ForeignRoute(route)
	}
	if foreign != nil {
		return []Difference{{Finding: fmt.Errorf("the host has no route to %s over %q: %w", n.Address.IP, n.Link, foreign)}}, nil
	}
	if has, err := v.Kernel.HasRoute(link.Index, n.Address); err != nil || has {
		return nil, err
	}
	d := Difference{Finding: fmt.Errorf("the host has no route to %s over %q", route.Dst, n.Link)}
	if link.Up && (n.Gateway.To4() != nil || SmallMTU(link) == nil && !link.NoIPv6) {
		d.Put = func(b *rtnl.Batch) { b.TryRoute(route, new(bool)) }
	}
	return []Difference{d}, nil
}
