package veth

import (
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// A container may be attached to several networks that have a route to the same destination, as
// the default routes. Then the route of the first one stays in use, and the later one gets a
// priority, which its result reports. Source rules make the container answer from the later
// network's addresses over its interface: see rtnl.Batch.AddSourceRule. A default route for which
// the configuration has a priority gets them, too, because it may not be the one in use.

// routes returns the routes over the container's end, in an order in which they can be added: those to the networks of
// the addresses of interface i of the result, if it is known that no later plugin has removed them, and those of
// the result.
func (e *Ends) routes(i int) (list []object.Route) {
	if e.knowsInside() {
		for _, ip := range e.addressesOf(i) {
			for _, route := range networkRoutes(ip, e.Options) {
				list = append(list, object.Route{Want: &types.Route{Dst: *route.Dst}, Made: *route})
			}
		}
	}
	for i, gateway := range gatewaysOf(e.Result) {
		list = append(list, e.route(i, gateway))
	}
	return list
}

// route returns route i of the result.
func (e *Ends) route(i int, gateway net.IP) object.Route {
	want := e.Result.Routes[i]
	route := object.Route{Want: want, Made: *kernelRoute(want, gateway), Behind: e.Behind}
	route.Made.OnLink = e.ViaGateway && isNeighbour(e.Result, gateway)
	return route
}

// madeRoutes returns the routes that an ADD makes: first those of now, then, if it is known which of these yielded to routes
// of other interfaces, those of then. It sets the priorities of the result.
func (e *Ends) madeRoutes(index int) (now *object.Routes, then func(yielded []bool) *object.Routes) {
	r, gateways := e.Result, gatewaysOf(e.Result)
	now = &object.Routes{Link: e.Args.IfName}
	if e.ViaGateway {
		for _, ip := range r.IPs {
			for _, route := range networkRoutes(ip, e.Options) {
				now.List = append(now.List, object.Route{Made: *route})
			}
		}
	}
	first, at := make([]int, len(r.Routes)), make([]int, len(r.Routes)) // at is where the list has the route
	for i := range r.Routes {
		first[i] = e.firstOf(i)
	}
	for i, route := range r.Routes {
		if e.Behind && isOpen(route) && isDefault(route) {
			route.Priority = rtnl.Fallback(index)
		}
		made := e.route(i, gateways[i])
		if made.Yields = first[i] == i; first[i] >= 0 && !made.Yields {
			continue
		}
		at[i] = len(now.List)
		now.List = append(now.List, made)
	}
	return now, func(yielded []bool) *object.Routes {
		rest := &object.Routes{Link: e.Args.IfName}
		for i := range r.Routes {
			if first[i] < 0 || first[i] == i && !yielded[at[i]] {
				continue
			}
			if yielded[at[first[i]]] {
				r.Routes[i].Priority = rtnl.Fallback(index)
			}
			rest.List = append(rest.List, e.route(i, gateways[i]))
		}
		return rest
	}
}

// firstOf returns the number of the first route of the result to the destination of route i if the route of another interface
// may be in its place; else -1.
func (e *Ends) firstOf(i int) int {
	route := e.Result.Routes[i]
	if !isOpen(route) || e.Behind || isWithin(e.Result, &route.Dst) {
		return -1
	}
	return slices.IndexFunc(e.Result.Routes, func(other *types.Route) bool {
		return isOpen(other) && other.Dst.IP.Equal(route.Dst.IP) && slices.Equal(other.Dst.Mask, route.Dst.Mask)
	})
}

// sourceRules returns the source rules of the result; nil if it has none.
func (e *Ends) sourceRules() object.Object {
	addresses, because := sourced(e.Result, e.Args.IfName)
	if len(addresses) == 0 {
		return nil
	}
	rules := &object.SourceRules{
		Link:    e.Args.IfName,
		MayLack: !slices.ContainsFunc(because, func(r *types.Route) bool { return rtnl.IsFallback(r.Priority) }),
	}
	for _, ip := range addresses {
		rules.From = append(rules.From, ip.Address.IP)
		v4 := ip.Address.IP.To4() != nil
		if !e.ViaGateway {
			rules.Routes = append(rules.Routes, neighbourRoutes(&ip.Address)...)
		}
		for i, gateway := range gatewaysOf(e.Result) {
			if route := e.Result.Routes[i]; isMain(route) && (route.Dst.IP.To4() != nil) == v4 {
				rules.Routes = append(rules.Routes, e.route(i, gateway).Made)
			}
		}
	}
	return rules
}

// neighbourRoutes returns the routes to the neighbours of an address.
func neighbourRoutes(address *net.IPNet) []rtnl.Route {
	network := rtnl.Route{Dst: &net.IPNet{IP: address.IP.Mask(address.Mask), Mask: address.Mask}}
	if address.IP.To4() != nil {
		network.Scope = unix.RT_SCOPE_LINK
		return []rtnl.Route{network}
	}
	return []rtnl.Route{network, {Dst: object.LinkLocalNetwork}}
}

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
