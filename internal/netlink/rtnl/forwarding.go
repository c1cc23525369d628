package rtnl

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// NETCONFA_* of linux/netconf.h.
const (
	netconfIndex      = 1
	netconfForwarding = 2

	netconfAllLinks = -1 // NETCONFA_IFINDEX_ALL
	sizeofNetconf   = 4  // struct netconfmsg with its padding
)

// Forwards reports whether the host forwards packets of a family (AF_INET or AF_INET6). The
// sysctls are net.ipv4.ip_forward and net.ipv6.conf.all.forwarding.
func (h *Host) Forwards(family uint8) (bool, error) { return h.forwards(family, netconfAllLinks) }

// ForwardsFrom reports whether the host forwards IPv4 packets that arrive over a link, which
// has a sysctl of its own: net.ipv4.conf.LINK.forwarding. IPv6 has none: see ip-sysctl.rst of
// the kernel.
func (h *Host) ForwardsFrom(index int) (bool, error) { return h.forwards(unix.AF_INET, index) }

// forwards asks the kernel with RTM_GETNETCONF, for which it takes no lock.
func (h *Host) forwards(family uint8, index int) (on bool, err error) {
	err = get(&h.conns, func(r *sock.Requests) {
		r.Begin("", unix.RTM_GETNETCONF, unix.NLM_F_ACK)
		r.Append(family, 0, 0, 0)
		r.Uint32(netconfIndex, uint32(int32(index)))
	}, func(answer []byte) {
		sock.EachAttribute(sock.After(sizeofNetconf, answer), func(kind uint16, value []byte) {
			if kind == netconfForwarding {
				on = sock.Uint32(value) != 0
			}
		})
	})
	if err != nil {
		return false, fmt.Errorf("read whether the host forwards packets: %w", err)
	}
	return on, nil
}

// EnableForwardingFrom makes the host forward IPv4 packets that arrive over a link.
func (h *Host) EnableForwardingFrom(index int) error {
	err := do(&h.conns, func(r *sock.Requests) {
		r.Begin("", unix.RTM_NEWLINK, unix.NLM_F_ACK)
		putLink(r, index, 0)
		putInet(r, forwarding)
	})
	if err != nil {
		return fmt.Errorf("forward packets from link %d: %w", index, err)
	}
	return nil
}
