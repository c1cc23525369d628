package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// Behind is what the host reaches over a link. It is not safe for concurrent use.
type Behind struct {
	host  *Host
	index int
	// networks are the destinations of the routes of the main table over the link, and its neighbours'
	// link-local addresses. Routes over other links may lead to a part of a network.
	networks []netip.Prefix
	known    map[netip.Addr]bool
}

// Behind returns what the host reaches over a link: what its routes lead to, and the IPv6 link-local
// addresses of neighbours, among them those that the caller knows.
func (h *Host) Behind(link string, neighbours ...netip.Addr) (*Behind, error) {
	index, err := h.Index(link)
	if err != nil {
		return nil, err
	}
	b := &Behind{host: h, index: index, known: map[netip.Addr]bool{}}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		routes, err := h.listTable(family, unix.RT_TABLE_MAIN, 0, index, func(Route, bool) bool { return true })
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			a, ok := netip.AddrFromSlice(r.Dst.IP)
			bits, _ := r.Dst.Mask.Size()
			if ok && !a.IsLinkLocalUnicast() && !a.IsMulticast() {
				b.networks = append(b.networks, netip.PrefixFrom(a, bits))
			}
		}
	}
	found, err := h.linkLocalNeighbours(index)
	for _, a := range append(found, neighbours...) {
		b.networks, b.known[a] = append(b.networks, netip.PrefixFrom(a, a.BitLen())), true
	}
	return b, err
}

// Networks returns networks that contain all addresses for which Has returns true.
func (b *Behind) Networks() []netip.Prefix { return b.networks }

// Has reports whether the host reaches an address over the link.
func (b *Behind) Has(a netip.Addr) (bool, error) {
	if behind, known := b.known[a]; known {
		return behind, nil
	}
	if !slices.ContainsFunc(b.networks, func(n netip.Prefix) bool { return n.Contains(a) }) {
		return false, nil
	}
	links, err := b.host.linksTo(a)
	if err != nil {
		return false, err
	}
	behind := slices.Contains(links, b.index)
	b.known[a] = behind
	return behind, nil
}

// OwnersTo returns the owners of the links over which the host reaches an address; none for the host's own ones.
func (h *Host) OwnersTo(a netip.Addr) (owners []names.Owner, err error) {
	links, err := h.linksTo(a)
	for _, index := range links {
		owner, ok, linkErr := h.OwnerOf(index)
		if err = errors.Join(err, linkErr); ok {
			owners = append(owners, owner)
		}
	}
	return owners, err
}

// linksTo returns the indexes of the links over which the host reaches an address that is not its own. The route
// to an own one names the link that has it.
func (h *Host) linksTo(a netip.Addr) (links []int, err error) {
	family := uint8(unix.AF_INET6)
	if a.Is4() {
		family = unix.AF_INET
	}
	err = get(&h.conns, func(r *sock.Requests) { routeInquiry(r, family, a.AsSlice()) }, func(answer []byte) {
		const typeAt = 7 // in struct rtmsg
		if len(answer) > typeAt && answer[typeAt] == unix.RTN_UNICAST {
			links = parseRouteInfo(answer).links
		}
	})
	for _, none := range noRoute {
		if errors.Is(err, none) {
			err = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("find the route to %s: %w", a, err)
	}
	return links, nil
}

// linkLocalNeighbours returns the IPv6 link-local addresses in the neighbour table of a link.
func (h *Host) linkLocalNeighbours(index int) ([]netip.Addr, error) {
	const sizeofNdMsg, ifindexAt = 12, 4 // struct ndmsg of linux/neighbour.h
	list, err := retry.List(func() (list []netip.Addr, err error) {
		err = dump(&h.strict, func(r *sock.Requests) {
			r.Begin("", unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
			header := make([]byte, sizeofNdMsg)
			header[0] = unix.AF_INET6
			r.Append(header...)
			r.Uint32(unix.NDA_IFINDEX, uint32(index))
		}, func(payload []byte) error {
			if len(payload) < sizeofNdMsg || sock.Uint32(payload[ifindexAt:]) != uint32(index) { // old kernels do not filter
				return nil
			}
			sock.EachAttribute(payload[sizeofNdMsg:], func(kind uint16, value []byte) {
				if a, ok := netip.AddrFromSlice(value); kind == unix.NDA_DST && ok && a.IsLinkLocalUnicast() {
					list = append(list, a)
				}
			})
			return nil
		})
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the neighbours of a link: %w", err)
	}
	return list, nil
}
