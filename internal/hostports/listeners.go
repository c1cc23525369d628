// Package hostports finds what the host does with the host ports of allocations: processes that listen
// on them, whose packets are redirected to an allocation and do not reach them, addresses on which
// they do not answer, and numbers that are free.
package hostports

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sockdiag"
	"github.com/allocnet/allocnet/portmap"
)

// Port is a published host port on which a process of the host listens.
type Port struct {
	Mapping  portmap.Mapping
	Listener sockdiag.Listener
}

// protocols are the protocols whose listening sockets the kernel lists.
var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}

// mostProbed is the number of ports from which on Look is quicker than Unused.
const mostProbed = 8

// Unused reports whether nothing listens on the host ports of mappings, in the network
// namespace of the calling thread. If it returns false, call Look for the sockets that
// listen: there may be none. An error means that no descriptor or memory is left to find out.
func Unused(mappings []portmap.Mapping) (bool, error) {
	if len(mappings) > mostProbed {
		return false, nil
	}
	return sockdiag.Unused(wanted(mappings)...)
}

// Look returns the sockets that listen on the host ports of mappings, in the network
// namespace of the calling thread.
func Look(mappings []portmap.Mapping) ([]sockdiag.Listener, error) {
	return sockdiag.Look(wanted(mappings)...)
}

// wanted returns the host ports of mappings by protocol.
func wanted(mappings []portmap.Mapping) (list []sockdiag.Ports) {
	numbers, both := map[uint8][]uint16{}, map[uint8]bool{}
	for _, m := range mappings {
		protocol, known := protocols[m.Protocol]
		if !known {
			continue
		}
		numbers[protocol] = append(numbers[protocol], uint16(m.HostPort))
		for _, ip := range hostIPs(m, true, true) {
			both[protocol] = both[protocol] || ip.Is4()
		}
	}
	for protocol, ports := range numbers {
		list = append(list, sockdiag.Ports{Protocol: protocol, Numbers: ports, Only6: !both[protocol]})
	}
	return list
}

// hostIPs returns the host addresses on which a port is published for an allocation
// with addresses of the given families. An unspecified address stands for all addresses
// of its family.
func hostIPs(m portmap.Mapping, ipv4, ipv6 bool) (ips []netip.Addr) {
	given, err := netip.ParseAddr(m.HostIP)
	given = given.Unmap().WithZone("")
	if ipv4 && (err != nil || given.Is4()) {
		ips = append(ips, netip.IPv4Unspecified())
	}
	if ipv6 && (err != nil || given.Is6()) {
		ips = append(ips, netip.IPv6Unspecified())
	}
	if err == nil && len(ips) > 0 {
		ips[0] = given
	}
	return ips
}

// Among returns the listeners whose packets are redirected to an allocation with these
// mappings and with addresses of the given families. Several listeners on the same
// address and port count as one.
func Among(found []sockdiag.Listener, mappings []portmap.Mapping, ipv4, ipv6 bool) (list []Port) {
	if len(found) == 0 {
		return nil
	}
	type slot struct {
		protocol uint8
		port     uint16
	}
	at := map[slot][]sockdiag.Listener{}
	seen := map[netip.AddrPort]map[uint8]bool{}
	for _, f := range found {
		if seen[f.Address] == nil {
			seen[f.Address] = map[uint8]bool{}
		}
		if !seen[f.Address][f.Protocol] {
			seen[f.Address][f.Protocol] = true
			s := slot{f.Protocol, f.Address.Port()}
			at[s] = append(at[s], f)
		}
	}
	for _, m := range mappings {
		for _, f := range at[slot{protocols[m.Protocol], uint16(m.HostPort)}] {
			for _, ip := range hostIPs(m, ipv4, ipv6) {
				if f.Takes(ip) {
					list = append(list, Port{m, f})
					break
				}
			}
		}
	}
	return list
}
