package subnets

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/retry"
)

// Kind is what the host has at a prefix.
type Kind int

// The kinds.
const (
	Address Kind = iota
	Route
	NextHop // of a route, also of a default route
)

// Taken is something that the host has at a prefix.
type Taken struct {
	Kind   Kind
	Prefix netip.Prefix // of an address: not masked
	// Fallback reports that the kernel prefers the route of a link's own address to this one.
	Fallback bool
	Link     string      // "" for a route without a link
	Index    int         // of the link
	Bridge   bool        // the link is a bridge
	Owner    names.Owner // of the link; the zero value if it is not an attachment's
	What     string      // the text for messages: route 10.0.0.0/8 via 192.0.2.1 through eth0
}

const (
	shortestPause = 10 * time.Second
	// pauseShare bounds the part of the time that looking takes: a five-hundredth.
	pauseShare = 500
)

// Pause returns for how long what OfHost has returned is good enough, if that took a time: it grows with the number of links.
func Pause(took time.Duration) time.Duration { return max(shortestPause, pauseShare*took) }

// OfHost returns the addresses of all links, and the routes of all tables but local with their next
// hops. It leaves out the loopback interface, link-local and multicast ones, the prefixes of default routes, and
// the routes for which leftOut, which may be nil, returns true.
func OfHost(leftOut func(*netlink.Route) bool) (list []Taken, err error) {
	routes, addrs, err := prefixesOfHost()
	if err != nil {
		return nil, err
	}
	links, err := retry.List(netlink.LinkList) // after the routes: see addRoute
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	h := host{links: map[int]netlink.Link{}}
	for _, l := range links {
		h.links[l.Attrs().Index] = l
	}
	for _, a := range addrs {
		if l := h.links[a.LinkIndex]; l != nil {
			h.add(Address, l, a.IPNet, fmt.Sprintf("address %s of %s", a.IPNet, l.Attrs().Name))
		}
	}
	for i := range routes {
		if leftOut == nil || !leftOut(&routes[i]) {
			h.addRoute(&routes[i])
		}
	}
	return h.taken, nil
}

// prefixesOfHost returns the routes of all tables, and the addresses of all links.
func prefixesOfHost() (routes []netlink.Route, addrs []netlink.Addr, err error) {
	routes, err = retry.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	addrs, err = retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	return routes, addrs, nil
}

// host collects what a host has.
type host struct {
	links    map[int]netlink.Link
	taken    []Taken
	fallback bool // of the route that is being added
}

// kernelMetric is the highest metric of the routes that the kernel makes for addresses: that of IPv6.
const kernelMetric = 256

// addRoute adds a route and its next hops. The links were listed after the routes, so a route whose link is not
// in the list is gone with its link.
func (h *host) addRoute(r *netlink.Route) {
	if r.Table == unix.RT_TABLE_LOCAL || r.LinkIndex != 0 && h.links[r.LinkIndex] == nil {
		return
	}
	h.fallback = r.Priority > kernelMetric
	defer func() { h.fallback = false }()
	where := "without a link"
	if l := h.links[r.LinkIndex]; l != nil {
		where = "through " + l.Attrs().Name
	}
	if r.Gw != nil {
		where = "via " + r.Gw.String() + " " + where
	}
	text := "the default route " + where
	if r.Dst != nil {
		h.add(Route, h.links[r.LinkIndex], r.Dst, fmt.Sprintf("route %s %s", r.Dst, where))
		if ones, _ := r.Dst.Mask.Size(); ones > 0 {
			text = fmt.Sprintf("the route %s %s", r.Dst, where)
		}
	}
	h.addNextHop(r.LinkIndex, r.Gw, text)
	for _, n := range r.MultiPath {
		h.addNextHop(n.LinkIndex, n.Gw, text)
	}
}

func (h *host) addNextHop(link int, gateway net.IP, route string) {
	if gateway == nil {
		return
	}
	bits := 8 * net.IPv6len
	if v4 := gateway.To4(); v4 != nil {
		gateway, bits = v4, 8*net.IPv4len
	}
	h.add(NextHop, h.links[link], &net.IPNet{IP: gateway, Mask: net.CIDRMask(bits, bits)}, fmt.Sprintf("%s, the next hop of %s", gateway, route))
}

func (h *host) add(kind Kind, l netlink.Link, dst *net.IPNet, what string) {
	addr, ok := netip.AddrFromSlice(dst.IP)
	bits, _ := dst.Mask.Size()
	p := netip.PrefixFrom(addr.Unmap(), bits)
	if !ok || bits == 0 || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsLoopback() || !p.IsValid() {
		return
	}
	t := Taken{Kind: kind, Prefix: p, What: what, Fallback: h.fallback && kind == Route}
	if l != nil {
		t.Index = l.Attrs().Index
		t.Link, t.Bridge = l.Attrs().Name, l.Type() == "bridge"
		t.Owner, _ = names.ParseOwner(l.Attrs().Alias)
		if l.Attrs().Flags&net.FlagLoopback != 0 {
			return
		}
	}
	h.taken = append(h.taken, t)
}
