package rtnl

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// IsLocal reports whether the kernel delivers packets to an address to the network namespace of
// the thread: a link has the address, or a route of the type local covers it. It takes one
// request, however many addresses the links have.
func IsLocal(ip netip.Addr) (local bool, err error) {
	conn, err := openConn()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	family := uint8(unix.AF_INET6)
	if ip = ip.Unmap().WithZone(""); ip.Is4() {
		family = unix.AF_INET
	}
	err = get(conn, func(r *sock.Requests) { routeInquiry(r, family, ip.AsSlice()) }, func(answer []byte) {
		local = len(answer) >= unix.SizeofRtMsg && answer[7] == unix.RTN_LOCAL // rtm_type
	})
	for _, none := range noRoute {
		if errors.Is(err, none) {
			return false, nil
		}
	}
	if err != nil {
		err = fmt.Errorf("find the route to %s: %w", ip, err)
	}
	return local, err
}

// noRoute are the errors of the kernel if there is no route to an address, only one that rejects
// packets, or no support of its family.
var noRoute = []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAFNOSUPPORT, unix.EOPNOTSUPP}

// HostAddresses are the addresses of a network namespace.
type HostAddresses struct {
	// own are the addresses of its links, and shared those that the kernel derives from their networks:
	// the broadcast addresses of IPv4, and the anycast addresses of the routers of IPv6 networks.
	own, shared map[netip.Addr]bool
}

// ListHostAddresses returns the addresses of the network namespace of the thread.
func ListHostAddresses() (*HostAddresses, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the host: %w", err)
	}
	var prefixes []netip.Prefix
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return HostAddressesOf(prefixes...), nil
}

// HostAddressesOf returns the addresses of a network namespace whose links have those of the prefixes.
func HostAddressesOf(prefixes ...netip.Prefix) *HostAddresses {
	h := &HostAddresses{own: make(map[netip.Addr]bool, len(prefixes)), shared: map[netip.Addr]bool{}}
	for _, p := range prefixes {
		p = netip.PrefixFrom(p.Addr().Unmap().WithZone(""), p.Bits())
		h.own[p.Addr()] = true
		if broadcast := Broadcast(p); broadcast.IsValid() {
			h.shared[broadcast] = true
		}
		if p.Addr().Is6() && p.Bits() < 127 { // RFC 4291, section 2.6.1
			h.shared[p.Masked().Addr()] = true
		}
	}
	return h
}

// Broadcast returns the broadcast address of an IPv4 network; an invalid address if it has none.
func Broadcast(network netip.Prefix) netip.Addr {
	if !network.Addr().Is4() || network.Bits() > 30 {
		return netip.Addr{}
	}
	a := network.Addr().As4()
	mask := net.CIDRMask(network.Bits(), 32)
	for i := range a {
		a[i] |= ^mask[i]
	}
	return netip.AddrFrom4(a)
}

// Unicast returns the addresses of links that others can reach: neither loopback nor link-local ones, sorted.
func (h *HostAddresses) Unicast() []netip.Addr {
	return slices.DeleteFunc(slices.SortedFunc(maps.Keys(h.own), netip.Addr.Compare), func(a netip.Addr) bool { return !a.IsGlobalUnicast() })
}

// Has reports whether a link has an address.
func (h *HostAddresses) Has(a netip.Addr) bool { return h.own[a.Unmap().WithZone("")] }

// Receives reports whether the kernel may deliver packets to an address to the network namespace: as Has, or
// a broadcast, anycast or multicast address.
func (h *HostAddresses) Receives(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return h.own[a] || h.shared[a] || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
