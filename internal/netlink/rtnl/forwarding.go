package rtnl

import (
	"context"
	"errors"
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

// Forwarding tells whether the host forwards packets. Its sysctls are net.ipv4.ip_forward; net.ipv4.conf.LINK.forwarding, for
// packets that arrive over a link; and net.ipv6.conf.all.forwarding: IPv6 has none for links, see ip-sysctl.rst of the kernel.
type Forwarding struct{ IPv4, IPv4Link, IPv6 bool }

// Forwarding returns what concerns packets of some families that arrive over a link; of other families, all is true. It asks
// the kernel with RTM_GETNETCONF, for which it takes no lock.
func (h *Host) Forwarding(index int, v4, v6 bool) (f Forwarding, err error) {
	f = Forwarding{IPv4: true, IPv4Link: true, IPv6: true}
	var on []*bool // of each request
	var failed error
	err = sock.Build(func(r *sock.Requests) {
		ask := func(family uint8, index int, is *bool) {
			r.Begin("", unix.RTM_GETNETCONF, unix.NLM_F_ACK)
			r.Append(family, 0, 0, 0)
			r.Uint32(netconfIndex, uint32(int32(index)))
			on = append(on, is)
		}
		if v4 {
			ask(unix.AF_INET, netconfAllLinks, &f.IPv4)
			ask(unix.AF_INET, index, &f.IPv4Link)
		}
		if v6 {
			ask(unix.AF_INET6, netconfAllLinks, &f.IPv6)
		}
	}, func(r *sock.Requests) error {
		return h.conns.Exchange(context.Background(), r, func(i int, answer []byte, err error) {
			failed = errors.Join(failed, err)
			sock.EachAttribute(sock.After(sizeofNetconf, answer), func(kind uint16, value []byte) {
				if kind == netconfForwarding {
					*on[i] = sock.Uint32(value) != 0
				}
			})
		})
	})
	if err = errors.Join(err, failed); err != nil {
		return f, fmt.Errorf("read whether the host forwards packets: %w", err)
	}
	return f, nil
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
