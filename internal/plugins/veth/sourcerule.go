package veth

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// A container may be attached to several networks that have a route to the same destination, as
// the default routes. Then the route of the first one stays in use, and the later one gets a
// priority, which its result reports. Source rules make the container answer from the later
// network's addresses over its interface: see rtnl.Batch.AddSourceRule. A default route for which
// the configuration has a priority gets them, too, because it may not be the one in use.

// routes are the routes of a result that are being added.
type routes struct {
	name     string // of the container's interface
	index    int
	result   *types100.Result
	options  Options
	gateways []net.IP
	// first has, for each route, the number of the first one to its destination if the route of
	// another interface may be in its place, else -1. taken reports that of a first one.
	first []int
	taken []bool
}

func newRoutes(name string, index int, r *types100.Result, o Options) *routes {
	x := &routes{
		name: name, index: index, result: r, options: o, gateways: gatewaysOf(r),
		first: make([]int, len(r.Routes)), taken: make([]bool, len(r.Routes)),
	}
	for i, route := range r.Routes {
		x.first[i] = -1
		switch {
		case !isOpen(route):
		case o.Behind && isDefault(route):
			route.Priority = rtnl.Fallback(index)
		case !o.Behind && !isWithin(r, &route.Dst):
			x.first[i] = slices.IndexFunc(r.Routes, func(other *types.Route) bool {
				return isOpen(other) && other.Dst.IP.Equal(route.Dst.IP) && slices.Equal(other.Dst.Mask, route.Dst.Mask)
			})
		}
	}
	return x
}

// add adds the routes to a batch, except for those that finish adds.
func (x *routes) add(b *rtnl.Batch) {
	for i, first := range x.first {
		switch first {
		case -1:
			b.AddRoute(x.kernel(i))
		case i:
			b.TryRoute(x.kernel(i), &x.taken[i])
		}
	}
}

// finish adds, after the batch was applied, the routes whose priority depends on those of other
// interfaces, and the source rules.
func (x *routes) finish(s *rtnl.Sandbox) error {
	var b rtnl.Batch
	for i, first := range x.first {
		if first < 0 || first == i && !x.taken[i] {
			continue
		}
		if x.taken[first] {
			x.result.Routes[i].Priority = rtnl.Fallback(x.index)
		}
		b.AddRoute(x.kernel(i))
	}
	x.addSourceRules(&b)
	return s.Apply(&b)
}

// kernel returns a route as the kernel gets it.
func (x *routes) kernel(i int) *rtnl.Route {
	route := kernelRoute(x.result.Routes[i], x.index, x.gateways[i])
	if route.Priority == 0 && x.options.Behind {
		route.Priority = rtnl.Fallback(x.index)
	}
	route.OnLink = x.options.ViaGateway && isNeighbour(x.result, x.gateways[i])
	return route
}

// addSourceRules adds the source rules of the result, and the routes of their table.
func (x *routes) addSourceRules(b *rtnl.Batch) {
	table := rtnl.Fallback(x.index)
	addresses, _ := sourced(x.result, x.name)
	for _, ip := range addresses {
		v4 := ip.Address.IP.To4() != nil
		if !x.options.ViaGateway {
			x.addNeighbours(b, &ip.Address)
		}
		for i, route := range x.result.Routes {
			if isMain(route) && (route.Dst.IP.To4() != nil) == v4 {
				copied := x.kernel(i)
				copied.Table, copied.Priority = table, route.Priority
				b.EnsureRoute(copied)
			}
		}
		b.AddSourceRule(ip.Address.IP, x.index)
	}
}

// addNeighbours adds the routes to the neighbours of an address to the table of source rules.
func (x *routes) addNeighbours(b *rtnl.Batch, address *net.IPNet) {
	route := rtnl.Route{Index: x.index, Dst: &net.IPNet{IP: address.IP.Mask(address.Mask), Mask: address.Mask}, Table: rtnl.Fallback(x.index)}
	if address.IP.To4() != nil {
		route.Scope = unix.RT_SCOPE_LINK
		b.EnsureRoute(&route)
		return
	}
	b.EnsureRoute(&route)
	route.Dst = linkLocalNetwork
	b.EnsureRoute(&route)
}

var linkLocalNetwork = &net.IPNet{IP: net.ParseIP("fe80::"), Mask: net.CIDRMask(64, 128)}

// isMain reports whether a route is one of the main table.
func isMain(r *types.Route) bool {
	return r.Table == nil || *r.Table == 0 || *r.Table == unix.RT_TABLE_MAIN
}

// isOpen reports whether a route is one of the main table whose configuration has no priority.
func isOpen(r *types.Route) bool { return isMain(r) && r.Priority == 0 }

func isDefault(r *types.Route) bool {
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// isWithin reports whether a destination is part of the network of an address of the result, to
// which other routes of the same link lead.
func isWithin(r *types100.Result, dst *net.IPNet) bool {
	ones, _ := dst.Mask.Size()
	return slices.ContainsFunc(r.IPs, func(ip *types100.IPConfig) bool {
		own, _ := ip.Address.Mask.Size()
		return ones >= own && ip.Address.Contains(dst.IP)
	})
}

// sourced returns the addresses of a container's interface that have source rules according to a
// result, and the routes because of which they have them.
func sourced(r *types100.Result, name string) (addresses []*types100.IPConfig, because []*types.Route) {
	var v4, v6 bool
	for _, route := range r.Routes {
		if isMain(route) && (rtnl.IsFallback(route.Priority) || route.Priority != 0 && isDefault(route)) {
			because = append(because, route)
			v4, v6 = v4 || route.Dst.IP.To4() != nil, v6 || route.Dst.IP.To4() == nil
		}
	}
	if len(because) == 0 {
		return nil, nil
	}
	for _, ip := range r.IPs {
		if is4 := ip.Address.IP.To4() != nil; (is4 && v4 || !is4 && v6) && isOf(r, ip, name) {
			addresses = append(addresses, ip)
		}
	}
	return addresses, because
}

// isOf reports whether an address is that of a container's interface. Later plugins add those of others.
func isOf(r *types100.Result, ip *types100.IPConfig, name string) bool {
	if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
		return true
	}
	itf := r.Interfaces[*ip.Interface]
	return itf.Name == name && itf.Sandbox != ""
}

// checkSourceRules returns an error for each source rule of a result that is missing, and for each
// route that their table lacks. A VRF of the container, to which a later plugin has moved the
// interface, has its own table.
func checkSourceRules(s *rtnl.Sandbox, link netlink.Link, r *types100.Result) error {
	addresses, because := sourced(r, link.Attrs().Name)
	if len(addresses) == 0 || link.Attrs().MasterIndex != 0 {
		return nil
	}
	table := rtnl.Fallback(link.Attrs().Index)
	from, err := s.SourceRules(link.Attrs().Index)
	if err != nil {
		return err
	}
	var missing []error
	for _, ip := range addresses {
		if !slices.ContainsFunc(from, ip.Address.IP.Equal) {
			missing = append(missing, fmt.Errorf("the sandbox has no rule from %s lookup %d, so answers from that address may leave over another interface", ip.Address.IP, table))
		}
	}
	none := len(from) == 0
	for _, route := range because {
		found, err := s.RouteExists(&types.Route{Dst: route.Dst, Table: &table})
		if err != nil {
			return err
		}
		if none = none && !found; !found {
			missing = append(missing, fmt.Errorf("table %d of the sandbox has no route to %s", table, route.Dst.String()))
		}
	}
	if none && !slices.ContainsFunc(because, func(r *types.Route) bool { return rtnl.IsFallback(r.Priority) }) {
		return nil // an earlier version, or the reference plugin, has made none
	}
	return errors.Join(missing...)
}

// RestoreSourceRules restores what is missing of the source rules of a result.
func RestoreSourceRules(c *sdk.CmdArgs, r *types100.Result, o Options) error {
	if addresses, _ := sourced(r, c.IfName); len(addresses) == 0 {
		return nil
	}
	s, err := c.Sandbox()
	if err != nil {
		return err
	}
	link, err := s.Link(c.IfName)
	if err != nil || link.Attrs().MasterIndex != 0 {
		return err
	}
	var b rtnl.Batch
	newRoutes(c.IfName, link.Attrs().Index, r, o).addSourceRules(&b)
	return s.Apply(&b)
}

// DelSourceRules deletes the source rules of an attachment whose link is deleted. They end with the
// network namespace.
func DelSourceRules(c *sdk.CmdArgs, previous *types100.Result) error {
	if previous != nil && !mayHaveSourceRules(c, previous) {
		return nil
	}
	s, err := sandboxOf(c)
	if s == nil || err != nil {
		return err
	}
	return s.DelOrphanedSourceRules()
}

// mayHaveSourceRules reports whether an attachment with a result may have source rules. The result
// has lost the priorities of routes if it has passed through a program with libcni before 1.2, a
// runtime or a plugin. Then the name of the interface decides: that of the first one, whose routes
// got no priority, ends in 0.
func mayHaveSourceRules(c *sdk.CmdArgs, r *types100.Result) bool {
	addresses, _ := sourced(r, c.IfName)
	passed := c.DropIn() || len(c.Binaries) > 0
	return len(addresses) > 0 || passed && !strings.HasSuffix(c.IfName, "0") && slices.ContainsFunc(r.Routes, isOpen)
}
