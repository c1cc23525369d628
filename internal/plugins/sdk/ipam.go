package sdk

import (
	"fmt"
	"math"
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
		if r == nil {
			return nil, IPAMError("route %d has no destination", i)
		}
		routes = append(routes, &types.Route{
			Dst: net.IPNet(r.Dst), GW: r.GW, MTU: r.MTU, AdvMSS: r.AdvMSS,
			Priority: r.Priority, Table: r.Table, Scope: r.Scope,
		})
	}
	if err := ValidateRoutes(routes); err != nil {
		return nil, IPAMError("%w", err)
	}
	return routes, nil
}

// ValidateRoutes returns an error for a route without a destination, and for numbers that the
// kernel would read as others.
func ValidateRoutes(routes []*types.Route) error {
	for i, r := range routes {
		if r == nil || r.Dst.IP == nil {
			return fmt.Errorf("route %d has no destination", i)
		}
		table, scope := 0, 0
		if r.Table != nil {
			table = *r.Table
		}
		if r.Scope != nil {
			scope = *r.Scope
		}
		for _, n := range []struct {
			key   string
			value int
			max   int64
		}{
			{"mtu", r.MTU, math.MaxUint32}, {"advmss", r.AdvMSS, math.MaxUint32}, {"priority", r.Priority, math.MaxUint32},
			{"table", table, math.MaxUint32}, {"scope", scope, math.MaxUint8},
		} {
			if n.value < 0 || int64(n.value) > n.max {
				return fmt.Errorf("route %d to %s: %s %d is not between 0 and %d", i, r.Dst.String(), n.key, n.value, n.max)
			}
		}
	}
	return nil
}

// IPAMError returns an error about an invalid configuration of an IPAM plugin.
func IPAMError(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "invalid ipam configuration", fmt.Errorf(format, args...).Error())
}
