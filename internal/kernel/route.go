package kernel

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Routes are those of the sandbox to the destination of a wanted one, through
// its gateway and in its table where it names them.
func (s *Sandbox) Routes(want *types.Route) ([]netlink.Route, error) {
	family := netlink.FAMILY_V6
	if want.Dst.IP.To4() != nil {
		family = netlink.FAMILY_V4
	}
	filter := &netlink.Route{Dst: &want.Dst, Gw: want.GW, Table: unix.RT_TABLE_MAIN}
	mask := netlink.RT_FILTER_DST | netlink.RT_FILTER_TABLE
	if want.GW != nil {
		mask |= netlink.RT_FILTER_GW
	}
	if want.Table != nil {
		filter.Table = *want.Table
	}
	var routes []netlink.Route
	err := retryDump(func() (err error) {
		routes, err = s.RouteListFiltered(family, filter, mask)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list routes to %s: %w", want.Dst.String(), err)
	}
	return routes, nil
}
