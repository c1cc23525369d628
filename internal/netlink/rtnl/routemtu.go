package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// DefaultRouteMTUs contains the MTUs of the host's default routes, one of each
// family: the smallest of the MTU of the route itself and those of its links. 0 means
// that there is no such route.
type DefaultRouteMTUs struct{ IPv4, IPv6 int }

// mtuCache is a TTL cache of the MTUs, because reading them takes 20 to 30 µs. A change
// of the host's routes takes effect up to a second later, as if it had come after the
// ADDs in between.
type mtuCache struct {
	mu    sync.Mutex
	known DefaultRouteMTUs
	until time.Time
}

const routeMTUsTTL = time.Second

// anywhere4 and anywhere6 are the first addresses of the ranges that the Internet
// registries assign. No host is expected to have a route to one of these addresses
// alone, so the kernel's answer is the default route. The kernel applies its policy
// rules and, among several default routes, takes the one with the lowest metric. If the
// default route is split into halves, as tunnels do, it takes one of them.
var (
	anywhere4 = net.IP{1, 0, 0, 0}
	anywhere6 = net.ParseIP("2000::")
)

// DefaultRouteMTUs returns the MTUs of the host's default routes. It reads them at most
// once a second.
func (h *Host) DefaultRouteMTUs() (DefaultRouteMTUs, error) {
	h.routeMTUs.mu.Lock()
	defer h.routeMTUs.mu.Unlock()
	if time.Now().Before(h.routeMTUs.until) {
		return h.routeMTUs.known, nil
	}
	found, err := h.readDefaultRouteMTUs()
	if err != nil {
		return DefaultRouteMTUs{}, fmt.Errorf("find the MTU of the default route: %w", err)
	}
	h.routeMTUs.known, h.routeMTUs.until = found, time.Now().Add(routeMTUsTTL)
	return found, nil
}

func (h *Host) readDefaultRouteMTUs() (DefaultRouteMTUs, error) {
	routes := make([]routeInfo, 2)
	err := sock.Build(func(r *sock.Requests) {
		routeInquiry(r, unix.AF_INET, anywhere4)
		routeInquiry(r, unix.AF_INET6, anywhere6)
	}, func(r *sock.Requests) error {
		// An errno means that there is no route, or only one that rejects
		// packets.
		return h.conns.Exchange(context.Background(), r, func(i int, answer []byte, err error) {
			if err == nil {
				routes[i] = parseRouteInfo(answer)
			}
		})
	})
	if err != nil {
		return DefaultRouteMTUs{}, err
	}
	mtus, err := h.mtus(routes)
	if err != nil {
		return DefaultRouteMTUs{}, err
	}
	return DefaultRouteMTUs{IPv4: routes[0].smallest(mtus), IPv6: routes[1].smallest(mtus)}, nil
}

// mtus returns the MTUs of the routes' links, by index. The MTU of a link that no
// longer exists is 0.
func (h *Host) mtus(routes []routeInfo) (map[int]int, error) {
	mtus := map[int]int{}
	var requests sock.Requests
	for _, r := range routes {
		for _, index := range r.links {
			if _, asked := mtus[index]; !asked {
				mtus[index] = 0
				linkInquiry(&requests, index)
			}
		}
	}
	err := h.conns.Exchange(context.Background(), &requests, func(_ int, answer []byte, _ error) {
		sock.EachAttribute(sock.After(unix.SizeofIfInfomsg, answer), func(kind uint16, value []byte) {
			if kind == unix.IFLA_MTU {
				mtus[indexOf(answer)] = int(sock.Uint32(value))
			}
		})
	})
	return mtus, err
}

// routeInquiry appends a request for the route to an address. The answer is the entry
// of the routing table, with all its next hops.
func routeInquiry(r *sock.Requests, family uint8, to net.IP) {
	r.Begin("", unix.RTM_GETROUTE, 0)
	putRoute(r, &unix.RtMsg{Family: family, Dst_len: uint8(8 * len(to)), Flags: unix.RTM_F_FIB_MATCH})
	r.Attribute(unix.RTA_DST, to)
}

// routeInfo contains the links of a route, and its own MTU.
type routeInfo struct {
	mtu     int   // 0: the route has none of its own
	links   []int // indexes, one per next hop
	gateway bool  // the only next hop has one
}

func parseRouteInfo(answer []byte) (r routeInfo) {
	sock.EachAttribute(sock.After(unix.SizeofRtMsg, answer), func(kind uint16, value []byte) {
		switch {
		case kind == unix.RTA_OIF && len(value) == 4:
			r.links = append(r.links, int(sock.Uint32(value)))
		case kind == unix.RTA_GATEWAY, kind == unix.RTA_VIA:
			r.gateway = true
		case kind == unix.RTA_MULTIPATH:
			r.links = append(r.links, nextHops(value)...)
		case kind == unix.RTA_METRICS:
			sock.EachAttribute(value, func(kind uint16, value []byte) {
				if kind == unix.RTAX_MTU {
					r.mtu = int(sock.Uint32(value))
				}
			})
		}
	})
	return r
}

// nextHops reads the indexes of the links from an RTA_MULTIPATH, which consists of
// structs rtnexthop.
func nextHops(data []byte) (links []int) {
	for len(data) >= unix.SizeofRtNexthop {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofRtNexthop || length > len(data) {
			break
		}
		links = append(links, int(int32(binary.NativeEndian.Uint32(data[4:]))))
		data = data[min(len(data), sock.Align(length)):]
	}
	return links
}

// smallest returns the smallest of the MTU of the route itself and those of its links.
func (r *routeInfo) smallest(mtus map[int]int) int {
	smallest := r.mtu
	for _, index := range r.links {
		if mtu := mtus[index]; mtu != 0 && (smallest == 0 || mtu < smallest) {
			smallest = mtu
		}
	}
	return smallest
}
