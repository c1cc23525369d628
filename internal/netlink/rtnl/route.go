package rtnl

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/retry"
)

// Route is a route over one link.
type Route struct {
	Index    int
	Dst      *net.IPNet
	Via, Src net.IP
	Scope    uint8
	Table    int // 0: the main one
	Priority int // 0: the kernel's default
	// MTU and AdvMSS are in bytes; 0 is none.
	MTU, AdvMSS int
	// Exclusive has a route fail that is there already.
	Exclusive bool
}

// AddRoute adds a route.
func (b *Batch) AddRoute(route *Route) {
	flags := unix.NLM_F_CREATE
	if route.Exclusive {
		flags |= unix.NLM_F_EXCL
	}
	m := nl.NewRtMsg()
	m.Family, m.Scope, m.Table = unix.AF_INET6, route.Scope, unix.RT_TABLE_UNSPEC
	short := func(ip net.IP) net.IP { return ip.To16() }
	if route.Dst.IP.To4() != nil {
		m.Family, short = unix.AF_INET, net.IP.To4
	}
	ones, _ := route.Dst.Mask.Size()
	m.Dst_len = uint8(ones)
	r := request(unix.RTM_NEWROUTE, flags)
	r.AddData(m)
	attr := func(kind int, value []byte) { r.AddData(nl.NewRtAttr(kind, value)) }
	if ones > 0 {
		attr(unix.RTA_DST, short(route.Dst.IP))
	}
	if route.Via != nil {
		attr(unix.RTA_GATEWAY, short(route.Via))
	}
	if route.Src != nil {
		attr(unix.RTA_PREFSRC, short(route.Src))
	}
	if route.Priority != 0 {
		attr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(route.Priority)))
	}
	table := route.Table
	if table == 0 {
		table = unix.RT_TABLE_MAIN
	}
	attr(unix.RTA_TABLE, nl.Uint32Attr(uint32(table)))
	attr(unix.RTA_OIF, nl.Uint32Attr(uint32(route.Index)))
	if metrics := route.metrics(); metrics != nil {
		r.AddData(metrics)
	}
	b.add(fmt.Sprintf("add route to %s", route.Dst), r)
}

// DropMulticast takes away a link's route to all IPv6 multicast addresses, which
// the kernel makes for every link that comes up. It keeps those of all links in
// one list, and walks it for each link that comes and each packet that arrives. A
// link with IPv6 of its own needs its route. Without one, nothing changes.
func (b *Batch) DropMulticast(index int) {
	if !hasIPv6() {
		return
	}
	m := nl.NewRtDelMsg()
	m.Family, m.Dst_len, m.Table = unix.AF_INET6, 8, unix.RT_TABLE_LOCAL
	r := request(unix.RTM_DELROUTE, 0)
	r.AddData(m)
	r.AddData(nl.NewRtAttr(unix.RTA_DST, []byte{0xff, 15: 0}))
	r.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	b.addExcused("remove multicast route", r, unix.ESRCH)
}

// ReplaceNeighbour has a link's neighbour table lead to another MAC where it has an
// address. Where it does not, the kernel asks for the MAC when it needs it.
func (b *Batch) ReplaceNeighbour(index int, ip net.IP, mac net.HardwareAddr) {
	family, address := uint8(unix.AF_INET6), ip.To16()
	if v4 := ip.To4(); v4 != nil {
		family, address = unix.AF_INET, v4
	}
	r := request(unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE)
	r.AddData(&neighbourMessage{family: family, index: uint32(index), state: unix.NUD_STALE})
	r.AddData(nl.NewRtAttr(unix.NDA_DST, address))
	r.AddData(nl.NewRtAttr(unix.NDA_LLADDR, mac))
	b.addExcused("replace neighbour "+ip.String(), r, unix.ENOENT)
}

// neighbourMessage is struct ndmsg.
type neighbourMessage struct {
	family uint8
	index  uint32
	state  uint16
}

func (m *neighbourMessage) Len() int { return unix.SizeofNdMsg }

func (m *neighbourMessage) Serialize() []byte {
	b := make([]byte, 0, unix.SizeofNdMsg)
	b = append(b, m.family, 0, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, m.index)
	b = binary.NativeEndian.AppendUint16(b, m.state)
	return append(b, 0, 0) // flags and type
}

func (r *Route) metrics() *nl.RtAttr {
	if r.MTU == 0 && r.AdvMSS == 0 {
		return nil
	}
	metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
	if r.MTU != 0 {
		metrics.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(r.MTU)))
	}
	if r.AdvMSS != 0 {
		metrics.AddRtAttr(unix.RTAX_ADVMSS, nl.Uint32Attr(uint32(r.AdvMSS)))
	}
	return metrics
}

// Routes are those of the sandbox to the destination of a wanted one, through
// its gateway and in its table where it names them.
func (s *Sandbox) Routes(want *types.Route) ([]netlink.Route, error) {
	h, err := s.Handle()
	if err != nil {
		return nil, err
	}
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
	routes, err := retry.List(func() ([]netlink.Route, error) { return h.RouteListFiltered(family, filter, mask) })
	if err != nil {
		return nil, fmt.Errorf("list routes to %s: %w", want.Dst.String(), err)
	}
	return routes, nil
}
