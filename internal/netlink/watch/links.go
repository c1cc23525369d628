package watch

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// links reads the notifications of rtnetlink.
type links struct {
	changes *changes
	// damaged reports whether an allocation is known to be damaged.
	damaged func() bool
	// suspects are the links of which something was removed, with the kind. When a link
	// is deleted, the kernel first removes all that belongs to it. So they matter only
	// if the link still exists afterwards.
	suspects map[int]suspicion
	// destinations are those of the kind Destination.
	destinations []netip.Prefix
	// allOff is set if IPv4 forwarding was disabled for all links. The kernel then notifies
	// of each link as well.
	allOff bool
}

// maxSuspects bounds the links that are looked up. If there are more, everything is
// compared.
const maxSuspects = 1024

const (
	netconfForwarding = 2 // NETCONFA_FORWARDING of linux/netconf.h
	// indexAt and forwardingAt are the places of the attributes in a message about a sysctl.
	indexAt      = 4
	forwardingAt = 12
	// routeProtocolAt and routeTypeAt are the places in struct rtmsg.
	routeProtocolAt = 5
	routeTypeAt     = 7
	// linkLocalBits is the prefix length of the route to link-local addresses.
	linkLocalBits = 64
)

func (l *links) notified(n *sock.Notification) {
	if isRoute(n) {
		l.route(n)
		return
	}
	index, ok := linkOf(n)
	if !ok {
		return
	}
	switch n.Kind {
	case unix.RTM_NEWLINK:
		l.suspect(index, Link)
	case unix.RTM_DELLINK:
		if n.Payload[0] == unix.AF_BRIDGE { // it is no longer a port
			l.suspect(index, Link)
			return
		}
		l.deleted(readLink(n.Payload))
	case unix.RTM_NEWNETCONF:
		l.forwardingOff(index, n.Payload[0] == unix.AF_INET)
	case unix.RTM_DELADDR:
		l.suspect(index, Address)
	}
}

// route reads a notification about a route. A route that replaces another one leads to another
// link, which does not tell whose route it was.
func (l *links) route(n *sock.Notification) {
	if len(n.Payload) < unix.SizeofRtMsg {
		return
	}
	index, hasLink := linkOf(n)
	switch isNew, replaces := n.Kind == unix.RTM_NEWROUTE, n.Flags&unix.NLM_F_REPLACE != 0; {
	case isNew && !replaces:
		// The kernel has enabled IPv6 on a link, as after its MTU was too small.
		if hasLink && l.damaged() && destinationOf(n.Payload).Addr() == linkLocal {
			l.suspectAs(index, suspicion{Address, "IPv6 is enabled again on link"})
		}
	case isNew:
		l.destinations = append(l.destinations, destinationOf(n.Payload))
	default:
		if isAnnouncedNetwork(n.Payload) {
			l.changes.add(Change{Kind: Route, Object: "removal of an unreachable route"})
		} else if hasLink && n.Payload[routeTypeAt] == unix.RTN_UNICAST {
			l.suspect(index, Route)
		}
		if l.damaged() { // it may be the route that has replaced one
			l.destinations = append(l.destinations, destinationOf(n.Payload))
		}
	}
}

func isRoute(n *sock.Notification) bool {
	return n.Kind == unix.RTM_NEWROUTE || n.Kind == unix.RTM_DELROUTE
}

var linkLocal = netip.MustParseAddr("fe80::")

// destinationOf returns the destination of a route.
func destinationOf(payload []byte) (to netip.Prefix) {
	addr := netip.IPv4Unspecified()
	if payload[0] == unix.AF_INET6 {
		addr = netip.IPv6Unspecified()
	}
	sock.EachAttribute(payload[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		if a, ok := netip.AddrFromSlice(value); ok && kind == unix.RTA_DST {
			addr = a
		}
	})
	return netip.PrefixFrom(addr, int(payload[1]))
}

// forwardingOff reads that forwarding was disabled for a link, or for all. Of IPv6 only the
// sysctl of all links matters.
func (l *links) forwardingOff(index int, v4 bool) {
	switch {
	case index == allLinks && v4:
		l.allOff = true
		l.changes.add(Change{Kind: Forwarding, Object: "net.ipv4.ip_forward=0"})
	case index == allLinks:
		l.changes.add(Change{Kind: Forwarding, Object: "net.ipv6.conf.all.forwarding=0"})
	case index > 0 && v4 && !l.allOff:
		l.suspect(index, Forwarding)
	}
}

// isAnnouncedNetwork reports whether a route is one that package announce may have added
// without a link.
func isAnnouncedNetwork(payload []byte) bool {
	if payload[routeTypeAt] != unix.RTN_UNREACHABLE {
		return false
	}
	table := uint32(payload[4])
	sock.EachAttribute(payload[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		if kind == unix.RTA_TABLE {
			table = sock.Uint32(value)
		}
	})
	return announce.Validate(table, payload[routeProtocolAt]) == nil
}

// allLinks is the index of a change that concerns all links: NETCONFA_IFINDEX_ALL.
const allLinks = -1

// linkOf returns the index of the link that a notification is about, or allLinks. It returns
// false if there is none.
func linkOf(n *sock.Notification) (index int, ok bool) {
	if n.Kind == unix.RTM_NEWNETCONF {
		if len(n.Payload) < forwardingAt {
			return 0, false
		}
		return int(int32(binary.NativeEndian.Uint32(n.Payload[indexAt+unix.SizeofNlAttr:]))), true
	}
	if !isRoute(n) { // a link or an address
		if len(n.Payload) < 8 {
			return 0, false
		}
		return int(int32(binary.NativeEndian.Uint32(n.Payload[4:]))), true
	}
	sock.EachAttribute(sock.After(unix.SizeofRtMsg, n.Payload), func(kind uint16, value []byte) {
		if kind == unix.RTA_OIF {
			index, ok = int(sock.Uint32(value)), true
		}
	})
	return index, ok
}

// suspicion is what may have happened to a link.
type suspicion struct {
	kind Kind
	act  string // before the name of the link
}

func (l *links) suspect(index int, kind Kind) { l.suspectAs(index, suspicion{kind, kind.act()}) }

func (l *links) suspectAs(index int, s suspicion) {
	if _, known := l.suspects[index]; !known && len(l.suspects) <= maxSuspects {
		l.suspects[index] = s
	}
}

// deleted adds the change for a link that was deleted.
func (l *links) deleted(one link) {
	switch {
	case one.kind == "bridge":
		l.changes.add(Change{Kind: Link, Object: fmt.Sprintf("deletion of bridge %q", one.name)})
	case one.owned && !rtnl.IsLeaving(one.group):
		l.changes.add(Change{Kind: Veth, Object: fmt.Sprintf("deletion of link %q", one.name), Owners: []names.Owner{one.owner}})
	}
}

// settled looks up the suspects.
func (l *links) settled() {
	if len(l.suspects) > maxSuspects {
		l.changes.add(Change{Kind: Lost, Object: "changes of too many links"})
		clear(l.suspects)
	}
	for index, s := range l.suspects {
		one, exists := find(index)
		if exists && !rtnl.IsLeaving(one.group) && (one.kind == "bridge" || one.owned) {
			l.changes.add(Change{Kind: s.kind, Object: s.act + fmt.Sprintf(" %q", one.name)})
		}
	}
	clear(l.suspects)
	l.allOff = false
	if len(l.destinations) > 0 {
		l.changes.add(Change{Kind: Destination, Object: "other routes", Destinations: l.destinations})
		l.destinations = nil
	}
}

// act describes a change of a link.
func (k Kind) act() string {
	switch k {
	case Address:
		return "removal of an address from link"
	case Route:
		return "removal of a route over link"
	case Forwarding:
		return "no forwarding from link"
	}
	return "change of link"
}

// link is what is known about a link.
type link struct {
	name, kind string
	group      uint32
	owned      bool // its alias names an owner
	owner      names.Owner
}

func readLink(payload []byte) (l link) {
	const (
		group    = 27 // IFLA_GROUP of linux/if_link.h
		linkKind = 1  // IFLA_INFO_KIND
	)
	sock.EachAttribute(sock.After(unix.SizeofIfInfomsg, payload), func(kind uint16, value []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.name = sock.String(value)
		case group:
			l.group = sock.Uint32(value)
		case unix.IFLA_IFALIAS:
			l.owner, l.owned = names.ParseOwner(sock.String(value))
		case unix.IFLA_LINKINFO:
			sock.EachAttribute(value, func(kind uint16, value []byte) {
				if kind == linkKind {
					l.kind = sock.String(value)
				}
			})
		}
	})
	return l
}

// find looks up a link by its index.
func find(index int) (l link, exists bool) {
	err := sock.Build(func(r *sock.Requests) {
		r.Begin("", unix.RTM_GETLINK, 0)
		m := [unix.SizeofIfInfomsg]byte{}
		binary.NativeEndian.PutUint32(m[4:], uint32(index))
		r.Append(m[:]...)
	}, func(r *sock.Requests) error {
		return sock.Here{Protocol: unix.NETLINK_ROUTE}.Exchange(context.Background(), r, func(_ int, payload []byte, err error) {
			if err == nil && payload != nil {
				l, exists = readLink(payload), true
			}
		})
	})
	return l, exists && err == nil
}
