package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

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

// HostAddresses returns the addresses of all links in the network namespace of the thread.
func HostAddresses() (map[netip.Addr]bool, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the host: %w", err)
	}
	addresses := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			addresses[p.Addr().Unmap()] = true
		}
	}
	return addresses, nil
}
