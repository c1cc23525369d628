package veth

import (
	"cmp"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/object"
)

// networkRoutes returns the routes to the network of an address. With ViaGateway, one leads to the gateway on the link,
// and one to the network via the gateway. Routes via the gateway are on-link, so that a plugin can make them in
// another table in any order, as vrf does. Otherwise it is the one that the kernel makes for the address.
func networkRoutes(ip *types100.IPConfig, o Options) []*rtnl.Route {
	network := &net.IPNet{IP: ip.Address.IP.Mask(ip.Address.Mask), Mask: ip.Address.Mask}
	if o.ViaGateway {
		return []*rtnl.Route{
			{Dst: HostPrefix(ip.Gateway), Src: ip.Address.IP, Scope: unix.RT_SCOPE_LINK, Exclusive: true},
			{Dst: network, Via: ip.Gateway, Src: ip.Address.IP, OnLink: true, Exclusive: true},
		}
	}
	if ones, bits := network.Mask.Size(); ones == bits {
		return nil
	}
	return []*rtnl.Route{object.Connected(network, ip.Address.IP)}
}

// gatewaysOf returns the gateway of each route: the first one of its family, if it has none.
func gatewaysOf(r *types100.Result) []net.IP {
	var v4, v6 net.IP
	for _, ip := range r.IPs {
		if ip.Gateway.To4() != nil && v4 == nil {
			v4 = ip.Gateway
		} else if ip.Gateway.To4() == nil && v6 == nil {
			v6 = ip.Gateway
		}
	}
	gateways := make([]net.IP, len(r.Routes))
	for i, route := range r.Routes {
		switch {
		case route.GW != nil:
			gateways[i] = route.GW
		case route.Dst.IP.To4() != nil:
			gateways[i] = v4
		default:
			gateways[i] = v6
		}
	}
	return gateways
}

// DistinctRoutes returns an error for two equal routes of a result: the kernel refuses the second one.
func DistinctRoutes(r *types100.Result) error {
	if len(r.Routes) < 2 {
		return nil
	}
	seen := map[string]bool{}
	for i, gateway := range gatewaysOf(r) {
		route := kernelRoute(r.Routes[i], gateway)
		text := fmt.Sprintln(route.Dst, route.Via, route.Priority, route.MTU, route.AdvMSS, cmp.Or(route.Table, unix.RT_TABLE_MAIN), route.Scope)
		if seen[text] {
			via := ""
			if gateway != nil {
				via = " via " + gateway.String()
			}
			return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("two routes lead to %s%s", route.Dst, via),
				"remove one of the IPAM plugin's, or isDefaultGateway")
		}
		seen[text] = true
	}
	return nil
}

// isNeighbour reports whether a gateway is in the network of an address of the result. With ViaGateway, no route
// says so.
func isNeighbour(r *types100.Result, gateway net.IP) bool {
	return slices.ContainsFunc(r.IPs, func(ip *types100.IPConfig) bool { return ip.Address.Contains(gateway) })
}

func kernelRoute(r *types.Route, gateway net.IP) *rtnl.Route {
	route := &rtnl.Route{Dst: &r.Dst, Via: gateway, Priority: r.Priority, MTU: r.MTU, AdvMSS: r.AdvMSS}
	if r.Table != nil {
		route.Table = *r.Table
	}
	if r.Scope != nil {
		route.Scope = uint8(*r.Scope)
	}
	return route
}
