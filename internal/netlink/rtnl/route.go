package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// Route is a route over one link.
type Route struct {
	Index    int // of the link; unused if the route is Unreachable
	Dst      *net.IPNet
	Via, Src net.IP
	Scope    uint8
	Table    int // 0: the main table
	Priority int // 0: the kernel's default
	// Protocol is the origin of the route; 0 stands for RTPROT_BOOT.
	Protocol uint8
	// MTU and AdvMSS are in bytes; 0 sets none.
	MTU, AdvMSS int
	// OnLink means that Via is a neighbour on the link, even without a route to it.
	OnLink bool
	// Exclusive makes the request fail if the table has a route to the destination with the
	// same priority, over whichever link.
	Exclusive bool
	// Unreachable makes the kernel refuse packets to the destination. Such a route has no
	// link.
	Unreachable bool
	// Replace puts the route in place of one to the same destination with the same priority.
	Replace bool
}

// AddRoute adds a route.
func (b *Batch) AddRoute(route *Route) { b.addRoute(route, excuse{}) }

// EnsureRoute adds a route unless it exists.
func (b *Batch) EnsureRoute(route *Route) { b.addRoute(route, excuse{errno: unix.EEXIST}) }

// TryRoute adds a route as if it were Exclusive. If there is another one, Apply only sets taken.
func (b *Batch) TryRoute(route *Route, taken *bool) {
	exclusive := *route
	exclusive.Exclusive = true
	b.addRoute(&exclusive, excuse{errno: unix.EEXIST, met: taken})
}

func (b *Batch) addRoute(route *Route, e excuse) {
	flags := uint16(unix.NLM_F_CREATE)
	if route.Exclusive {
		flags |= unix.NLM_F_EXCL
	}
	if route.Replace {
		flags |= unix.NLM_F_REPLACE
	}
	m, short := route.header()
	r := b.beginNoting(fmt.Sprintf("add route to %s", route.Dst), unix.RTM_NEWROUTE, flags, e)
	putRoute(r, &m)
	if m.Dst_len > 0 {
		r.Attribute(unix.RTA_DST, short(route.Dst.IP))
	}
	if route.Via != nil {
		r.Attribute(unix.RTA_GATEWAY, short(route.Via))
	}
	if route.Src != nil {
		r.Attribute(unix.RTA_PREFSRC, short(route.Src))
	}
	if route.Priority != 0 {
		r.Uint32(unix.RTA_PRIORITY, uint32(route.Priority))
	}
	route.putPlace(r)
	route.putMetrics(r)
}

// DeleteRoute deletes the route of the table that has the destination, the protocol and
// the link of the given one. If there is none, nothing changes.
func (b *Batch) DeleteRoute(route *Route) {
	m, short := route.header()
	m.Scope = unix.RT_SCOPE_NOWHERE // any
	r := b.beginExcused(fmt.Sprintf("delete route to %s", route.Dst), unix.RTM_DELROUTE, 0, unix.ESRCH)
	putRoute(r, &m)
	if m.Dst_len > 0 {
		r.Attribute(unix.RTA_DST, short(route.Dst.IP))
	}
	route.putPlace(r)
}

// header returns the header of a message about the route, and how its addresses are
// written.
func (r *Route) header() (m unix.RtMsg, short func(net.IP) net.IP) {
	m = unix.RtMsg{Family: unix.AF_INET6, Scope: r.Scope, Protocol: unix.RTPROT_BOOT, Type: unix.RTN_UNICAST}
	if r.Protocol != 0 {
		m.Protocol = r.Protocol
	}
	if r.Unreachable {
		m.Type = unix.RTN_UNREACHABLE
	}
	if r.OnLink {
		m.Flags |= unix.RTNH_F_ONLINK
	}
	short = net.IP.To16
	if r.Dst.IP.To4() != nil {
		m.Family, short = unix.AF_INET, net.IP.To4
	}
	ones, _ := r.Dst.Mask.Size()
	m.Dst_len = uint8(ones)
	return m, short
}

// putPlace appends the table and the link.
func (r *Route) putPlace(to *sock.Requests) {
	table := r.Table
	if table == 0 {
		table = unix.RT_TABLE_MAIN
	}
	to.Uint32(unix.RTA_TABLE, uint32(table))
	if !r.Unreachable {
		to.Uint32(unix.RTA_OIF, uint32(r.Index))
	}
}

// DropMulticast removes a link's route to all IPv6 multicast addresses, which the
// kernel makes for every link that comes up. The kernel keeps these routes of all links
// in one list, and walks the list for each new link and each packet that arrives. A
// link with IPv6 addresses of its own needs its route. If the route does not exist,
// nothing changes.
//
// The kernel makes the route when it notices that the link has a carrier, in the
// background. A request for the link makes it notice at once, since Linux 6.8. With
// older kernels, the route may be made after it was looked for here.
func (b *Batch) DropMulticast(index int) {
	if !HasIPv6() {
		return
	}
	link := b.begin("notice the carrier of the link", unix.RTM_GETLINK, 0)
	putLink(link, index, 0)
	link.Uint32(unix.IFLA_EXT_MASK, skipStats)
	r := b.beginExcused("remove multicast route", unix.RTM_DELROUTE, 0, unix.ESRCH)
	putRoute(r, &unix.RtMsg{Family: unix.AF_INET6, Dst_len: 8, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_NOWHERE})
	r.Attribute(unix.RTA_DST, []byte{0xff, 15: 0})
	r.Uint32(unix.RTA_OIF, uint32(index))
}

// ReplaceNeighbour changes the MAC of an address in a link's neighbour table. If the
// table does not have the address, nothing changes: the kernel finds out the MAC when
// it needs it.
func (b *Batch) ReplaceNeighbour(index int, ip net.IP, mac net.HardwareAddr) {
	family, address := uint8(unix.AF_INET6), ip.To16()
	if v4 := ip.To4(); v4 != nil {
		family, address = unix.AF_INET, v4
	}
	r := b.beginExcused("replace neighbour "+ip.String(), unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE, unix.ENOENT)
	m := [unix.SizeofNdMsg]byte{family}
	binary.NativeEndian.PutUint32(m[4:], uint32(index))
	binary.NativeEndian.PutUint16(m[8:], unix.NUD_STALE)
	r.Append(m[:]...)
	r.Attribute(unix.NDA_DST, address)
	r.Attribute(unix.NDA_LLADDR, mac)
}

// putRoute appends the header of a message about a route.
func putRoute(r *sock.Requests, m *unix.RtMsg) {
	r.Append(m.Family, m.Dst_len, m.Src_len, m.Tos, m.Table, m.Protocol, m.Scope, m.Type)
	var flags [4]byte
	binary.NativeEndian.PutUint32(flags[:], m.Flags)
	r.Append(flags[:]...)
}

func (r *Route) putMetrics(to *sock.Requests) {
	if r.MTU == 0 && r.AdvMSS == 0 {
		return
	}
	metrics := to.Nest(unix.RTA_METRICS)
	if r.MTU != 0 {
		to.Uint32(unix.RTAX_MTU, uint32(r.MTU))
	}
	if r.AdvMSS != 0 {
		to.Uint32(unix.RTAX_ADVMSS, uint32(r.AdvMSS))
	}
	to.End(metrics)
}

// RouteExists reports whether the sandbox has a route with the destination and the table
// of want and, if want has them, with its gateway and its priority. Without a table, or with
// table 0, want means any but those of source rules: plugins that come later, such as vrf and
// sbr, move routes to theirs.
func (s *Sandbox) RouteExists(want *types.Route) (exists bool, err error) {
	family := uint8(unix.AF_INET6)
	if want.Dst.IP.To4() != nil {
		family = unix.AF_INET
	}
	err = retry.Do(context.Background(), func() error {
		return dump(s.conn, func(r *sock.Requests) {
			r.Begin("", unix.RTM_GETROUTE, unix.NLM_F_DUMP)
			putRoute(r, &unix.RtMsg{Family: family})
		}, func(payload []byte) error {
			exists = exists || isRoute(payload, want)
			return nil
		})
	})
	if err != nil {
		return false, fmt.Errorf("list routes to %s: %w", want.Dst.String(), err)
	}
	return exists, nil
}

// isRoute reports whether a message is about a route like want, and not about a cached
// one, nor about one that rejects packets.
func isRoute(payload []byte, want *types.Route) bool {
	ones, bits := want.Dst.Mask.Size()
	if len(payload) < unix.SizeofRtMsg || int(payload[1]) != ones || payload[7] != unix.RTN_UNICAST || // rtm_dst_len, rtm_type
		binary.NativeEndian.Uint32(payload[8:])&unix.RTM_F_CLONED != 0 {
		return false
	}
	dst, via, table, priority := make(net.IP, bits/8), net.IP(nil), int(payload[4]), 0
	sock.EachAttribute(payload[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.RTA_DST:
			dst = net.IP(value)
		case unix.RTA_GATEWAY:
			via = net.IP(value)
		case unix.RTA_TABLE:
			table = int(sock.Uint32(value))
		case unix.RTA_PRIORITY:
			priority = int(sock.Uint32(value))
		}
	})
	if want.Table != nil && *want.Table != 0 {
		if table != *want.Table {
			return false
		}
	} else if IsFallback(table) {
		return false
	}
	return dst.Equal(want.Dst.IP) && (want.GW == nil || via.Equal(want.GW)) && (want.Priority == 0 || priority == want.Priority)
}
