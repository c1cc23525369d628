package hostports

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/portmap"
)

// maxHostIPs bounds the number of host IPs that are checked for one allocation.
const maxHostIPs = 16

// addressWarnings logs the host IPs of ports that do not answer on the host as it is, or because the
// allocation with a Status has no address of their family, and returns the texts for
// Status.Warnings. They are not errors, because an address may come later, for example from
// keepalived.
func (c Checker) addressWarnings(ports []portmap.Mapping, id string, s *allocnet.Status) (texts []string) {
	for _, ip := range addresses(ports) {
		why, err := unanswered(ip, s)
		switch {
		case err != nil && c.First(err.Error()):
			c.Logger.Warn("cannot check a host IP", "alloc", id, "error", err)
		case why != "":
			texts = append(texts, fmt.Sprintf("host ports on %s: %s", ip, why))
			c.Logger.Warn("host ports on an address do not answer", "alloc", id, "hostIP", ip.String(), "reason", why)
		}
	}
	return texts
}

// unanswered returns why host ports on an address do not answer, or "" if nothing is known
// against it.
func unanswered(ip netip.Addr, s *allocnet.Status) (string, error) {
	ipv4, ipv6 := families(s)
	switch {
	case ip == netip.IPv6Loopback():
		return "the kernel routes nothing from ::1 off the loopback, so they do not answer; use 127.0.0.1 or another address of the host", nil
	case (ipv4 || ipv6) && (ip.Is4() && !ipv4 || ip.Is6() && !ipv6):
		family := "IPv6"
		if ip.Is4() {
			family = "IPv4"
		}
		return fmt.Sprintf("the allocation has no %s address, so they do not answer", family), nil
	case ip.IsUnspecified(), ip.IsLoopback(): // every host has 127.0.0.0/8
		return "", nil
	}
	local, err := rtnl.IsLocal(ip)
	if err != nil || local {
		return "", err
	}
	return "no interface of the host has this address; they do not answer until one has it", nil
}

// addresses returns the host IPs of ports, without duplicates.
func addresses(ports []portmap.Mapping) (ips []netip.Addr) {
	for _, m := range ports {
		if m.HostIP == "" || len(ips) == maxHostIPs {
			continue
		}
		ip, err := netip.ParseAddr(m.HostIP)
		if ip = ip.Unmap(); err == nil && !slices.Contains(ips, ip) {
			ips = append(ips, ip)
		}
	}
	return ips
}
