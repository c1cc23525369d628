package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// TableRoutes returns the routes of a protocol in one of the host's tables: their
// destination, link, table, protocol and Unreachable, and of the latter and of those over
// one link only. The kernel walks the whole table.
func (h *Host) TableRoutes(table int, protocol uint8) ([]Route, error) {
	var list []Route
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		some, err := h.tableRoutes(family, table, protocol, 0)
		if err != nil {
			return nil, err
		}
		list = append(list, some...)
	}
	return list, nil
}

// HasTableRoute reports whether the table of a route has it: its destination, link,
// protocol and Unreachable. The kernel walks the whole table.
func (h *Host) HasTableRoute(want *Route) (bool, error) {
	m, _ := want.header()
	index := want.Index
	if want.Unreachable {
		index = 0
	}
	list, err := h.tableRoutes(m.Family, want.Table, want.Protocol, index)
	return slices.ContainsFunc(list, want.is), err
}

// is reports whether the destination, link, protocol and Unreachable are the same.
func (r *Route) is(other Route) bool {
	return r.Protocol == other.Protocol && r.Unreachable == other.Unreachable && (r.Unreachable || r.Index == other.Index) &&
		r.Dst.String() == other.Dst.String()
}

// hasOtherRoute reports whether the table of a route has another one to the destination, of
// any kind.
func (h *Host) hasOtherRoute(route *Route) (bool, error) {
	m, _ := route.header()
	list, err := h.listTable(m.Family, route.Table, 0, 0, func(one Route, ok bool) bool {
		return one.Dst.String() == route.Dst.String() && !(ok && route.is(one))
	})
	return len(list) > 0, err
}

// tableRoutes is TableRoutes of one family, and over one link if index is not 0.
func (h *Host) tableRoutes(family uint8, table int, protocol uint8, index int) ([]Route, error) {
	return h.listTable(family, table, protocol, index, func(one Route, ok bool) bool {
		return ok && one.Protocol == protocol // old kernels do not filter
	})
}

// listTable lists the routes of a table for which keep is true, of one protocol and over one
// link if these are not 0. ok is that of parseRoute.
func (h *Host) listTable(family uint8, table int, protocol uint8, index int, keep func(one Route, ok bool) bool) ([]Route, error) {
	list, err := retry.List(func() (list []Route, err error) {
		err = dump(&h.strict, func(r *sock.Requests) {
			r.Begin("", unix.RTM_GETROUTE, unix.NLM_F_DUMP)
			putRoute(r, &unix.RtMsg{Family: family, Protocol: protocol})
			r.Uint32(unix.RTA_TABLE, uint32(table))
			if index != 0 {
				r.Uint32(unix.RTA_OIF, uint32(index))
			}
		}, func(payload []byte) error {
			if one, ok := parseRoute(payload); one.Dst != nil && payload[0] == family && one.Table == table && keep(one, ok) {
				list = append(list, one)
			}
			return nil
		})
		return list, err
	})
	switch {
	case errors.Is(err, unix.ENOENT): // there is no such table
		return nil, nil
	case index != 0 && errors.Is(err, unix.ENODEV):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list routes of table %d: %w", table, err)
	}
	return list, nil
}

// parseRoute reads a route. ok reports that it is one over one link, or an unreachable one.
// Without a destination it is no route of a table.
func parseRoute(payload []byte) (route Route, ok bool) {
	if len(payload) < unix.SizeofRtMsg || binary.NativeEndian.Uint32(payload[8:])&unix.RTM_F_CLONED != 0 {
		return route, false
	}
	family, ones, kind := payload[0], int(payload[1]), payload[7]
	bits := 128
	if family == unix.AF_INET {
		bits = 32
	}
	route = Route{Table: int(payload[4]), Protocol: payload[5], Scope: payload[6], Unreachable: kind == unix.RTN_UNREACHABLE}
	route.Dst = &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(ones, bits)}
	sock.EachAttribute(payload[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.RTA_DST:
			route.Dst.IP = slices.Clone(value)
		case unix.RTA_TABLE:
			route.Table = int(sock.Uint32(value))
		case unix.RTA_OIF:
			route.Index = int(sock.Uint32(value))
		case unix.RTA_GATEWAY:
			route.Via = slices.Clone(value)
		}
	})
	return route, route.Unreachable || kind == unix.RTN_UNICAST && route.Index != 0 && route.Via == nil
}

// Announce adds a route to its table, which another program reads. It reports whether the
// route was missing. The error is ErrRouteTaken if the table has another route to the
// destination.
func (h *Host) Announce(route *Route) (added bool, err error) {
	for range announcements {
		if added, err = h.EnsureRoute(route); err != nil || added {
			return added, err
		}
		if has, err := h.HasTableRoute(route); err != nil || has {
			return false, err
		}
		if other, err := h.hasOtherRoute(route); err != nil {
			return false, err
		} else if other {
			break
		}
	}
	return false, fmt.Errorf("%w: table %d has one to %s that is not of protocol %d over the same link: see ip route show table %d",
		ErrRouteTaken, route.Table, route.Dst, route.Protocol, route.Table)
}

// announcements bounds the attempts of Announce. It makes another one if the route existed, and
// was deleted by another process before Announce looked for it.
const announcements = 100

// ErrRouteTaken: a table has a route of another program to the same destination.
var ErrRouteTaken = errors.New("another route to the destination exists")
