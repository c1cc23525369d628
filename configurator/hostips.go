package configurator

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/portmap"
)

// maxHostIPs bounds the number of host IPs that are checked for one allocation.
const maxHostIPs = 16

// hostIPWarnings logs the host IPs of ports that do not answer on the host as it is, or because the
// allocation with a Status has no address of their family, and returns the texts for
// Status.Warnings. They are not errors, because an address may come later, for example from
// keepalived.
func (c *Configurator) hostIPWarnings(ports []portmap.Mapping, id string, s *Status) (texts []string) {
	for _, ip := range hostIPs(ports) {
		why, err := unanswered(ip, s)
		switch {
		case err != nil && c.warned.first(err.Error()):
			c.cfg.Logger.Warn("cannot check a host IP", "alloc", id, "error", err)
		case why != "":
			texts = append(texts, fmt.Sprintf("host ports on %s: %s", ip, why))
			c.cfg.Logger.Warn("host ports on an address do not answer", "alloc", id, "hostIP", ip.String(), "reason", why)
		}
	}
	return texts
}

// unanswered returns why host ports on an address do not answer, or "" if nothing is known
// against it.
func unanswered(ip netip.Addr, s *Status) (string, error) {
	switch {
	case ip == netip.IPv6Loopback():
		return "the kernel routes nothing from ::1 off the loopback, so they do not answer; use 127.0.0.1 or another address of the host", nil
	case lacksFamily(s, ip.Is4()):
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

// lacksFamily reports whether an allocation has addresses, but none of a family.
func lacksFamily(s *Status, v4 bool) bool {
	var any bool
	for _, i := range s.Interfaces {
		for _, a := range i.Addresses {
			p, err := netip.ParsePrefix(a.Address)
			if err == nil && i.Sandbox != "" {
				if any = true; p.Addr().Unmap().Is4() == v4 {
					return false
				}
			}
		}
	}
	return any
}

// hostIPs returns the host IPs of ports, without duplicates.
func hostIPs(ports []portmap.Mapping) (ips []netip.Addr) {
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
