package rtnl

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// WayOut are the MTUs of the host's default routes, one of each family: the
// smallest of the route's own and of the links that it leads over. 0 stands for no
// such route.
type WayOut struct{ IPv4, IPv6 int }

// wayOut remembers a WayOut: to ask takes 20 to 30 µs. A change of the host's routes
// counts a second later, as if it had come after the ADDs in between.
type wayOut struct {
	mu    sync.Mutex
	known WayOut
	until time.Time
}

const wayOutTime = time.Second

// anywhere4 and anywhere6 are the first addresses of all that the Internet's
// registries give out. Nobody has a route to one of them alone, so the kernel names
// the route to everything: among several the one with the lowest metric, with its
// policy rules, and where it is split into halves, as tunnels do, one of these.
var (
	anywhere4 = net.IP{1, 0, 0, 0}
	anywhere6 = net.ParseIP("2000::")
)

// WayOut asks the kernel, unless it was asked within the last second.
func (h *Host) WayOut() (WayOut, error) {
	h.wayOut.mu.Lock()
	defer h.wayOut.mu.Unlock()
	if time.Now().Before(h.wayOut.until) {
		return h.wayOut.known, nil
	}
	found, err := h.findWayOut()
	if err != nil {
		return WayOut{}, fmt.Errorf("find the MTU of the default route: %w", err)
	}
	h.wayOut.known, h.wayOut.until = found, time.Now().Add(wayOutTime)
	return found, nil
}

func (h *Host) findWayOut() (WayOut, error) {
	routes := make([]routeOut, 2)
	requests := []*nl.NetlinkRequest{routeInquiry(unix.AF_INET, anywhere4), routeInquiry(unix.AF_INET6, anywhere6)}
	// An errno says that there is no route, or none that lets packets pass.
	err := h.conns.exchange(requests, func(i int, answer []byte, errno unix.Errno) {
		if errno == 0 {
			routes[i] = parseRouteOut(answer)
		}
	})
	if err != nil {
		return WayOut{}, err
	}
	mtus, err := h.mtus(routes)
	if err != nil {
		return WayOut{}, err
	}
	return WayOut{IPv4: routes[0].smallest(mtus), IPv6: routes[1].smallest(mtus)}, nil
}

// mtus are the MTUs of the links of routes, by index. Links that went meanwhile are
// left out.
func (h *Host) mtus(routes []routeOut) (map[int]int, error) {
	mtus := map[int]int{}
	var requests []*nl.NetlinkRequest
	for _, r := range routes {
		for _, index := range r.links {
			if _, asked := mtus[index]; !asked {
				mtus[index] = 0
				requests = append(requests, linkInquiry(index))
			}
		}
	}
	if len(requests) == 0 {
		return mtus, nil
	}
	err := h.conns.exchange(requests, func(_ int, answer []byte, errno unix.Errno) {
		if errno != 0 || len(answer) < unix.SizeofIfInfomsg {
			return
		}
		eachAttribute(answer[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) {
			if kind == unix.IFLA_MTU && len(value) == 4 {
				mtus[indexOf(answer)] = int(binary.NativeEndian.Uint32(value))
			}
		})
	})
	return mtus, err
}

// routeInquiry asks for the route to an address: the entry of the routing table,
// with all its next hops.
func routeInquiry(family uint8, to net.IP) *nl.NetlinkRequest {
	r := inquiry(unix.RTM_GETROUTE)
	r.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Dst_len: uint8(8 * len(to)), Flags: unix.RTM_F_FIB_MATCH}})
	r.AddData(nl.NewRtAttr(unix.RTA_DST, to))
	return r
}

// routeOut is what a route says of its MTU.
type routeOut struct {
	mtu   int   // 0: its links'
	links []int // by index, one per next hop
}

func parseRouteOut(answer []byte) (r routeOut) {
	if len(answer) < unix.SizeofRtMsg {
		return r
	}
	eachAttribute(answer[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch {
		case kind == unix.RTA_OIF && len(value) == 4:
			r.links = append(r.links, int(binary.NativeEndian.Uint32(value)))
		case kind == unix.RTA_MULTIPATH:
			r.links = append(r.links, nextHops(value)...)
		case kind == unix.RTA_METRICS:
			eachAttribute(value, func(kind uint16, value []byte) {
				if kind == unix.RTAX_MTU && len(value) == 4 {
					r.mtu = int(binary.NativeEndian.Uint32(value))
				}
			})
		}
	})
	return r
}

// nextHops are the links of the structs rtnexthop in an RTA_MULTIPATH.
func nextHops(data []byte) (links []int) {
	for len(data) >= unix.SizeofRtNexthop {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofRtNexthop || length > len(data) {
			break
		}
		links = append(links, int(int32(binary.NativeEndian.Uint32(data[4:]))))
		data = data[min(len(data), nlAlign(length)):]
	}
	return links
}

func (r *routeOut) smallest(mtus map[int]int) int {
	smallest := r.mtu
	for _, index := range r.links {
		if mtu := mtus[index]; mtu != 0 && (smallest == 0 || mtu < smallest) {
			smallest = mtu
		}
	}
	return smallest
}
