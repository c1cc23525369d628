package rtnl

import (
	"fmt"
	"net"
	"net/netip"
)

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
