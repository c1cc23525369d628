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

// hostIPWarnings logs the host IPs of ports that do not answer on the host as it is, and returns
// the texts for Status.Warnings. They are not errors, because an address may come later, for
// example from keepalived.
func (c *Configurator) hostIPWarnings(ports []portmap.Mapping, id string) (texts []string) {
	for _, ip := range hostIPs(ports) {
		why, err := unanswered(ip)
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
func unanswered(ip netip.Addr) (string, error) {
	if ip == netip.IPv6Loopback() {
		return "the kernel routes nothing from ::1 off the loopback, so they do not answer; use 127.0.0.1 or another address of the host", nil
	}
	local, err := rtnl.IsLocal(ip)
	if err != nil || local {
		return "", err
	}
	return "no interface of the host has this address; they do not answer until one has it", nil
}

// hostIPs returns the host IPs of ports that may not answer, without duplicates: all except
// unspecified addresses and those of 127.0.0.0/8, which every host has.
func hostIPs(ports []portmap.Mapping) (ips []netip.Addr) {
	for _, m := range ports {
		if m.HostIP == "" || len(ips) == maxHostIPs {
			continue
		}
		ip, err := netip.ParseAddr(m.HostIP)
		ip = ip.Unmap()
		if err == nil && !ip.IsUnspecified() && !(ip.Is4() && ip.IsLoopback()) && !slices.Contains(ips, ip) {
			ips = append(ips, ip)
		}
	}
	return ips
}
