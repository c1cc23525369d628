package rtnl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// ErrForeignRoute: another program has replaced a route of allocnet. Its route is not removed.
var ErrForeignRoute = errors.New("a route of another program is in its place")

// ForeignRoute returns ErrForeignRoute, with the way to delete the other route, if the main table
// has another route instead of a given one: to the same destination with the same metric. The
// kernel walks the whole table.
func (h *Host) ForeignRoute(route *Route) error {
	m, _ := route.header()
	priority := uint32(route.Priority)
	if priority == 0 && m.Family == unix.AF_INET6 {
		priority = 1024 // IP6_RT_PRIO_USER of linux/ipv6_route.h
	}
	routes, err := h.routesTo(route.Dst)
	if err != nil {
		return err
	}
	return h.foreign(route.Dst, route.Index, slices.DeleteFunc(routes, func(one mainRoute) bool { return one.metric != priority }))
}

// ForeignAddressRoute is ForeignRoute of routes to an address alone with any metric: the kernel uses
// those with the lowest.
func (h *Host) ForeignAddressRoute(index int, ip net.IP) error {
	bits := 8 * len(ip.To16())
	if v4 := ip.To4(); v4 != nil {
		ip, bits = v4, 32
	}
	dst := &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, bits)}
	routes, err := h.routesTo(dst)
	if err != nil || len(routes) == 0 {
		return err
	}
	lowest := slices.MinFunc(routes, func(a, b mainRoute) int { return cmp.Compare(a.metric, b.metric) }).metric
	return h.foreign(dst, index, slices.DeleteFunc(routes, func(one mainRoute) bool { return one.metric != lowest }))
}

// foreign returns the error of ForeignRoute unless one of the routes to a destination leads over a link
// without a gateway, or there is none.
func (h *Host) foreign(dst *net.IPNet, index int, routes []mainRoute) error {
	if len(routes) == 0 || slices.ContainsFunc(routes, func(one mainRoute) bool {
		return one.kind == unix.RTN_UNICAST && one.gateway == nil && slices.Equal(one.links, []int{index})
	}) {
		return nil
	}
	other := routes[0]
	leads, deletion := "leads to several links", "ip route del "
	if dst.IP.To4() == nil {
		deletion = "ip -6 route del "
	}
	if other.kind != unix.RTN_UNICAST {
		leads, deletion = "has the type "+other.typeName(), deletion+other.typeName()+" "
	}
	deletion += short(dst)
	if len(other.links) == 1 {
		link, err := h.LinkByIndex(other.links[0])
		if err != nil {
			return fmt.Errorf("find link %d: %w", other.links[0], err)
		}
		switch {
		case other.kind != unix.RTN_UNICAST:
		case other.links[0] == index:
			leads, deletion = fmt.Sprintf("leads to %s", other.gateway), deletion+" via "+other.gateway.String()
		default:
			leads = fmt.Sprintf("leads to %q", link.Attrs().Name)
		}
		deletion += " dev " + link.Attrs().Name
	}
	return fmt.Errorf("%w, which %s; delete it: %s", ErrForeignRoute, leads, deletion)
}

// short returns a destination as ip route shows it.
func short(dst *net.IPNet) string {
	if ones, bits := dst.Mask.Size(); ones == bits {
		return dst.IP.String()
	}
	return dst.String()
}

// mainRoute is a route of the main table.
type mainRoute struct {
	kind    byte // rtm_type
	metric  uint32
	links   []int
	gateway net.IP // nil if there is none, or several links
}

// typeName returns the type as ip route shows it.
func (r *mainRoute) typeName() string {
	names := map[byte]string{
		unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BLACKHOLE: "blackhole",
		unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw",
	}
	if name := names[r.kind]; name != "" {
		return name
	}
	return fmt.Sprint(r.kind)
}

// routesTo returns the routes of the main table to a destination.
func (h *Host) routesTo(dst *net.IPNet) ([]mainRoute, error) {
	m, size := (&Route{Dst: dst}).header()
	list, err := retry.List(func() (list []mainRoute, err error) {
		err = dump(&h.strict, func(r *sock.Requests) {
			r.Begin("", unix.RTM_GETROUTE, unix.NLM_F_DUMP)
			putRoute(r, &unix.RtMsg{Family: m.Family})
			r.Uint32(unix.RTA_TABLE, unix.RT_TABLE_MAIN)
		}, func(payload []byte) error {
			if one, ok := parseMainRoute(payload, m.Dst_len, size(dst.IP)); ok {
				list = append(list, one)
			}
			return nil
		})
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("list routes to %s: %w", dst, err)
	}
	return list, nil
}

// parseMainRoute reads a route. ok reports that it is one of the main table with a destination. A route for
// some types of service only does not count.
func parseMainRoute(payload []byte, ones uint8, dst net.IP) (r mainRoute, ok bool) {
	const dstLenAt, tosAt, tableAt, typeAt, flagsAt = 1, 3, 4, 7, 8 // in struct rtmsg
	if len(payload) < unix.SizeofRtMsg || payload[dstLenAt] != ones || payload[tosAt] != 0 || payload[tableAt] != unix.RT_TABLE_MAIN ||
		binary.NativeEndian.Uint32(payload[flagsAt:])&unix.RTM_F_CLONED != 0 {
		return r, false
	}
	sock.EachAttribute(payload[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.RTA_DST:
			ok = net.IP(value).Equal(dst)
		case unix.RTA_PRIORITY:
			r.metric = sock.Uint32(value)
		case unix.RTA_GATEWAY:
			r.gateway = slices.Clone(value)
		}
	})
	r.kind, r.links = payload[typeAt], parseRouteInfo(payload).links
	return r, ok
}
