package rtnl

import (
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// HasRoute reports whether the host has a route over a link to the network of an address, to which no gateway
// leads. Its cost does not grow with the number of links, unless Reaches is false.
func (h *Host) HasRoute(index int, address *net.IPNet) (bool, error) {
	if h.Reaches(index, address) {
		return true, nil
	}
	family := netlink.FAMILY_V6
	if address.IP.To4() != nil {
		family = netlink.FAMILY_V4
	}
	to := &net.IPNet{IP: address.IP.Mask(address.Mask), Mask: address.Mask}
	want := &netlink.Route{LinkIndex: index, Table: unix.RT_TABLE_MAIN, Dst: to}
	routes, err := retry.List(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, want, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	})
	if err != nil {
		return false, fmt.Errorf("list routes to %s: %w", to, err)
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Gw == nil && r.Via == nil && len(r.MultiPath) == 0 }), nil
}

// Reaches reports whether the host has a route over a link, and over it alone, to the network of an address, to
// which no gateway leads. It returns false, too, if policy rules hide the route, or there is one for a part of
// the network.
func (h *Host) Reaches(index int, address *net.IPNet) bool {
	ones, _ := address.Mask.Size()
	return h.finds(index, address.IP, uint8(ones))
}

// finds is Reaches of the network of an IP address with a prefix length.
func (h *Host) finds(index int, ip net.IP, bits uint8) (found bool) {
	family, address := uint8(unix.AF_INET6), ip.To16()
	if v4 := ip.To4(); v4 != nil {
		family, address = unix.AF_INET, v4
	}
	_ = get(&h.conns, func(r *sock.Requests) {
		r.Begin("", unix.RTM_GETROUTE, 0)
		putRoute(r, &unix.RtMsg{Family: family, Dst_len: uint8(8 * len(address)), Flags: unix.RTM_F_FIB_MATCH})
		r.Attribute(unix.RTA_DST, address)
		r.Uint32(unix.RTA_OIF, uint32(index))
	}, func(answer []byte) {
		if len(answer) < unix.SizeofRtMsg || answer[1] != bits || answer[7] != unix.RTN_UNICAST { // rtm_dst_len, rtm_type
			return
		}
		r := parseRouteInfo(answer)
		found = !r.gateway && len(r.links) == 1 && r.links[0] == index
	})
	return found
}
