package sdk

import (
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
)

// IPAMRoute is a route in the configuration of an IPAM plugin.
type IPAMRoute struct {
	Dst      types.IPNet `json:"dst"`
	GW       net.IP      `json:"gw"`
	MTU      int         `json:"mtu"`
	AdvMSS   int         `json:"advmss"`
	Priority int         `json:"priority"`
	Table    *int        `json:"table"`
	Scope    *int        `json:"scope"`
}

// IPAMRoutes converts routes of a configuration to those of a result.
func IPAMRoutes(configured []*IPAMRoute) ([]*types.Route, error) {
	var routes []*types.Route
	for i, r := range configured {
		if r == nil || r.Dst.IP == nil {
			return nil, IPAMError("route %d has no destination", i)
		}
		routes = append(routes, &types.Route{
			Dst: net.IPNet(r.Dst), GW: r.GW, MTU: r.MTU, AdvMSS: r.AdvMSS,
			Priority: r.Priority, Table: r.Table, Scope: r.Scope,
		})
	}
	return routes, nil
}

// IPAMError returns an error about an invalid configuration of an IPAM plugin.
func IPAMError(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "invalid ipam configuration", fmt.Errorf(format, args...).Error())
}
