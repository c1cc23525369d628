package rtnl

import (
	"context"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// HasAddress reports whether a link of the host has an address. Its cost does not grow
// with the number of links. It does not look up the local route: if links share an
// address, the kernel walks the routes of all of them to find that of one link.
func (h *Host) HasAddress(index int, ip net.IP) (bool, error) {
	family := uint8(unix.AF_INET6)
	if ip.To4() != nil {
		family = unix.AF_INET
	}
	has := false
	err := retry.Do(context.Background(), func() error {
		return dump(&h.strict, func(r *sock.Requests) {
			r.Begin("", unix.RTM_GETADDR, unix.NLM_F_DUMP)
			putAddress(r, family, 0, index)
		}, func(payload []byte) error {
			a, of, err := parseAddress(payload)
			has = has || err == nil && of == index && a.IP.Equal(ip)
			return err
		})
	})
	if err != nil && !IsNotFound(err) {
		return false, fmt.Errorf("list addresses of link %d: %w", index, err)
	}
	return has, nil
}

// HasRoute reports whether the main table has a route over a link of the host that is
// for one address alone. Its cost does not grow with the number of links, unless policy
// rules of the host hide the route.
func (h *Host) HasRoute(index int, ip net.IP) (bool, error) {
	if h.finds(unix.RTN_UNICAST, index, ip) {
		return true, nil
	}
	family, bits := netlink.FAMILY_V6, 128
	if ip.To4() != nil {
		family, bits = netlink.FAMILY_V4, 32
	}
	want := &netlink.Route{LinkIndex: index, Table: unix.RT_TABLE_MAIN, Dst: &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, bits)}}
	routes, err := retry.List(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, want, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	})
	if err != nil {
		return false, fmt.Errorf("list routes to %s: %w", ip, err)
	}
	return len(routes) > 0, nil
}

// Reaches reports whether the host has the route to the network of an address over a link.
// It returns false, too, if policy rules hide the route.
func (h *Host) Reaches(index int, address *net.IPNet) bool {
	ones, _ := address.Mask.Size()
	return h.findsNetwork(unix.RTN_UNICAST, index, address.IP, uint8(ones))
}

// finds reports whether a lookup finds a route of a type over a link that is for one
// address alone. It returns false, too, if policy rules hide the route.
func (h *Host) finds(kind byte, index int, ip net.IP) (found bool) {
	bits := uint8(128)
	if ip.To4() != nil {
		bits = 32
	}
	return h.findsNetwork(kind, index, ip, bits)
}

// findsNetwork is finds of a route to a network with a prefix length.
func (h *Host) findsNetwork(kind byte, index int, ip net.IP, bits uint8) (found bool) {
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
		if len(answer) < unix.SizeofRtMsg || answer[1] != bits || answer[7] != kind { // rtm_dst_len, rtm_type
			return
		}
		for _, link := range parseRouteInfo(answer).links {
			found = found || link == index
		}
	})
	return found
}
