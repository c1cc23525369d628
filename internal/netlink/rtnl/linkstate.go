package rtnl

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// LinkState is what the kernel reports about a link, in one answer.
type LinkState struct {
	Index       int
	Name, Alias string
	Kind        string // as "veth"; "" for a device
	Up, NoARP   bool
	Promiscuous bool
	MAC         net.HardwareAddr
	MTU         int
	Group       uint32
	Master      int // index of the bridge, or of another link that it belongs to; 0 for none
	Peer        int // index of the other end of a veth, in the namespace of that
	ARPIgnore   int // the sysctl of IPv4
	// IPv6 reports that the kernel has IPv6 on the link, which it has not with a small MTU. NoIPv6 is the sysctl
	// disable_ipv6.
	IPv6, NoIPv6 bool

	// Bridged reports that it is a port of a bridge.
	Bridged bool
	Hooked  bool // see Veth.Hooked
	// Hairpin and Isolated are as in Veth.
	Hairpin, Isolated bool
	// Disabled reports that the state of the port is disabled (BR_STATE_DISABLED) although its link
	// carries traffic.
	Disabled bool
	// Unusual are the settings of a bridge port that another program has changed, and with which frames are
	// lost or go astray, as bridge(8) writes them: "flood off". See usual.
	Unusual []string
}

// LinkState returns the state of a link of the host. IsNotFound reports whether the error means that the link
// does not exist.
func (h *Host) LinkState(name string) (*LinkState, error) {
	return linkState(&h.conns, fmt.Sprintf("link %q", name), byName(name))
}

// LinkStateAt returns the state of the link of the host with an index.
func (h *Host) LinkStateAt(index int) (*LinkState, error) {
	return linkState(&h.conns, fmt.Sprintf("link %d", index), func(r *sock.Requests) { linkInquiry(r, index) })
}

// LinkState returns the state of a link of the sandbox: see Host.LinkState.
func (s *Sandbox) LinkState(name string) (*LinkState, error) {
	return linkState(s.conn, fmt.Sprintf("link %q", name), byName(name))
}

// LinkStateAt returns the state of the link of the sandbox with an index.
func (s *Sandbox) LinkStateAt(index int) (*LinkState, error) {
	return linkState(s.conn, fmt.Sprintf("link %d", index), func(r *sock.Requests) { linkInquiry(r, index) })
}

// LinkStates returns the states of all links of the sandbox.
func (s *Sandbox) LinkStates() ([]*LinkState, error) {
	list, err := retry.List(func() (list []*LinkState, err error) {
		err = dump(s.conn, allLinks, func(payload []byte) error {
			list = append(list, parseLinkState(payload))
			return nil
		})
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of the sandbox: %w", err)
	}
	return list, nil
}

func linkState(e sock.Exchanger, what string, build func(*sock.Requests)) (l *LinkState, err error) {
	err = get(e, build, func(answer []byte) { l = parseLinkState(answer) })
	if err == nil && l == nil {
		err = unix.EBADMSG
	}
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", what, err)
	}
	return l, nil
}

// parseLinkState reads a message about a link; nil if it is too short.
func parseLinkState(message []byte) *LinkState {
	if len(message) < unix.SizeofIfInfomsg {
		return nil
	}
	flags := binary.NativeEndian.Uint32(message[8:])
	l := &LinkState{Index: indexOf(message), Up: flags&unix.IFF_UP != 0, NoARP: flags&unix.IFF_NOARP != 0, Promiscuous: flags&unix.IFF_PROMISC != 0}
	sock.EachAttribute(message[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = sock.String(value)
		case unix.IFLA_IFALIAS:
			l.Alias = sock.String(value)
		case unix.IFLA_ADDRESS:
			l.MAC = slices.Clone(value)
		case unix.IFLA_MTU:
			l.MTU = int(sock.Uint32(value))
		case unix.IFLA_GROUP:
			l.Group = sock.Uint32(value)
		case unix.IFLA_MASTER:
			l.Master = int(sock.Uint32(value))
		case unix.IFLA_LINK:
			l.Peer = int(sock.Uint32(value))
		case unix.IFLA_AF_SPEC:
			l.readSysctls(value)
		case unix.IFLA_LINKINFO:
			sock.EachAttribute(value, func(kind uint16, value []byte) {
				if kind == nl.IFLA_INFO_KIND {
					l.Kind = sock.String(value)
				}
			})
			l.readSettings(value, flags&unix.IFF_RUNNING != 0)
		}
	})
	return l
}

// readSysctls reads the sysctls of a link: an array for each family, in the order of their numbers. Those of IPv4 begin
// with number 1, those of IPv6 with 0.
func (l *LinkState) readSysctls(spec []byte) {
	read := func(sysctls []byte, at int) int {
		if len(sysctls) < 4*at+4 {
			return 0
		}
		return int(sock.Uint32(sysctls[4*at : 4*at+4]))
	}
	eachNested(spec, unix.AF_INET, func(kind uint16, sysctls []byte) {
		if kind == inetConf {
			l.ARPIgnore = read(sysctls, arpIgnore-1)
		}
	})
	eachNested(spec, unix.AF_INET6, func(kind uint16, sysctls []byte) {
		if kind == inet6Conf {
			l.IPv6, l.NoIPv6 = true, read(sysctls, disableIPv6) != 0
		}
	})
}

const (
	inet6Conf   = 2  // IFLA_INET6_CONF of linux/if_link.h
	disableIPv6 = 26 // DEVCONF_DISABLE_IPV6 of linux/ipv6.h
)
