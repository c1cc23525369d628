package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Loopback is the index of the loopback link in every namespace: LOOPBACK_IFINDEX
// of linux/net/flow.h.
const Loopback = 1

// LoopbackName is its name.
const LoopbackName = "lo"

// Link is a link of the host; IsNotFound tells that there is none. Its statistics
// are left out.
func (h *Host) Link(name string) (netlink.Link, error) { return link(&h.conns, byName(name)) }

// Link is a link of the sandbox; IsNotFound tells that there is none. Its
// statistics are left out.
func (s *Sandbox) Link(name string) (netlink.Link, error) { return link(s.conn, byName(name)) }

// LinkByIndex is a link of the sandbox.
func (s *Sandbox) LinkByIndex(index int) (netlink.Link, error) {
	return link(s.conn, linkInquiry(index))
}

// Index is the index of a link in the sandbox.
func (s *Sandbox) Index(name string) (int, error) { return index(s.conn, name) }

// Index is the index of a link of the host.
func (h *Host) Index(name string) (int, error) { return index(&h.conns, name) }

func link(e exchanger, r *nl.NetlinkRequest) (netlink.Link, error) {
	var answer []byte
	if err := get(e, r, func(a []byte) { answer = slices.Clone(a) }); err != nil {
		return nil, fmt.Errorf("find link: %w", err)
	}
	return netlink.LinkDeserialize(nil, answer)
}

func index(e exchanger, name string) (int, error) {
	var index int
	if err := get(e, byName(name), func(answer []byte) { index = indexOf(answer) }); err != nil {
		return 0, fmt.Errorf("find link %q: %w", name, err)
	}
	return index, nil
}

// indexOf is the index in a message about a link.
func indexOf(answer []byte) int { return int(int32(binary.NativeEndian.Uint32(answer[4:]))) }

// Has reports whether the sandbox has a link of that name.
func (s *Sandbox) Has(name string) (bool, error) {
	err := get(s.conn, byName(name), func([]byte) {})
	if err == unix.ENODEV {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find link %q: %w", name, err)
	}
	return true, nil
}

// ErrNotBridge: a link that is to be a bridge is something else.
var ErrNotBridge = errors.New("already exists but is not a bridge")

// Bridge is a bridge of the host, with its index, name, flags, MTU and MAC only.
// IsNotFound tells that there is no link of that name, ErrNotBridge that it is
// another kind of link.
func (h *Host) Bridge(name string) (*netlink.Bridge, error) {
	var br *netlink.Bridge
	if err := get(&h.conns, byName(name), func(answer []byte) { br = parseBridge(answer) }); err != nil {
		return nil, fmt.Errorf("find bridge %q: %w", name, err)
	}
	if br == nil {
		return nil, fmt.Errorf("%q %w", name, ErrNotBridge)
	}
	br.Name = name
	return br, nil
}

// parseBridge reads what Bridge returns, but for the name; nil is no bridge.
func parseBridge(answer []byte) *netlink.Bridge {
	if len(answer) < unix.SizeofIfInfomsg {
		return nil
	}
	br := &netlink.Bridge{}
	br.Index, br.RawFlags = indexOf(answer), binary.NativeEndian.Uint32(answer[8:])
	if br.RawFlags&unix.IFF_UP != 0 {
		br.Flags = net.FlagUp
	}
	var kind string
	eachAttribute(answer[unix.SizeofIfInfomsg:], func(attribute uint16, value []byte) {
		switch {
		case attribute == unix.IFLA_ADDRESS:
			br.HardwareAddr = slices.Clone(value)
		case attribute == unix.IFLA_MTU && len(value) == 4:
			br.MTU = int(binary.NativeEndian.Uint32(value))
		case attribute == unix.IFLA_LINKINFO:
			eachAttribute(value, func(attribute uint16, value []byte) {
				if attribute == nl.IFLA_INFO_KIND {
					kind = strings.TrimRight(string(value), "\x00")
				}
			})
		}
	})
	if kind != br.Type() {
		return nil
	}
	return br
}

func byName(name string) *nl.NetlinkRequest {
	r := linkInquiry(0)
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return r
}

func linkInquiry(index int) *nl.NetlinkRequest {
	// RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h
	const skipStats = 1 << 3
	r := inquiry(unix.RTM_GETLINK)
	r.AddData(linkMessage(index))
	r.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	return r
}

// IsOperational reports whether a link of the host carries traffic: RFC 2863's
// state up, which for a bridge port means that the bridge forwards.
func (h *Host) IsOperational(name string) (up bool, err error) {
	err = get(&h.conns, byName(name), func(answer []byte) {
		eachAttribute(answer[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) {
			up = up || kind == unix.IFLA_OPERSTATE && len(value) > 0 && netlink.LinkOperState(value[0]) == netlink.OperUp
		})
	})
	if err != nil {
		return false, fmt.Errorf("find link %q: %w", name, err)
	}
	return up, nil
}

// SetUp brings a link up. From then on an Ethernet link that gets another MAC, or
// goes down and up, announces its IPv4 addresses to its neighbours (arp_notify).
// Loopback has none. That is asked for first: of a change to a link that is up, the
// kernel tells all its parts.
func (b *Batch) SetUp(index int) {
	if index != Loopback {
		r := request(unix.RTM_NEWLINK, 0)
		r.AddData(linkMessage(index))
		r.AddData(inet(arpNotify))
		b.add("set arp_notify of link", r)
	}
	r := request(unix.RTM_NEWLINK, 0)
	r.AddData(upMessage(index))
	b.add("bring up link", r)
}

// RouteLoopback lets a link of the host carry packets of 127.0.0.0/8
// (route_localnet). IsNotFound tells that there is no such link. To open the sysctl
// instead takes longer than to make it so, and the link's deletion waits for that.
func (h *Host) RouteLoopback(name string) error {
	r := request(unix.RTM_NEWLINK, 0)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	r.AddData(inet(routeLocalnet))
	if err := do(&h.conns, r); err != nil {
		return fmt.Errorf("set route_localnet of link %q: %w", name, err)
	}
	return nil
}

// IPV4_DEVCONF_ARP_NOTIFY and IPV4_DEVCONF_ROUTE_LOCALNET of linux/ip.h.
const (
	arpNotify     = 22
	routeLocalnet = 26
)

// inet is the attribute that sets one IPv4 sysctl of a link to 1.
func inet(sysctl int) *nl.RtAttr {
	const inetConf = 1 // IFLA_INET_CONF of linux/if_link.h
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(sysctl, nl.Uint32Attr(1))
	return spec
}

// SetUp brings a link of the sandbox up: see Batch.SetUp.
func (s *Sandbox) SetUp(index int) error {
	var b Batch
	b.SetUp(index)
	return s.Apply(&b)
}

func linkMessage(index int) *nl.IfInfomsg {
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(index)
	return m
}

func upMessage(index int) *nl.IfInfomsg {
	m := linkMessage(index)
	m.Flags, m.Change = unix.IFF_UP, unix.IFF_UP
	return m
}
