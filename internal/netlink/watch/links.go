package watch

import (
	"context"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// links reads the notifications of rtnetlink.
type links struct {
	changes *changes
	// suspects are the links of which something was removed, with the kind. When a link
	// is deleted, the kernel first removes all that belongs to it. So they matter only
	// if the link still exists afterwards.
	suspects map[int]Kind
	// allOff is set if IPv4 forwarding was disabled for all links. The kernel then notifies
	// of each link as well.
	allOff bool
}

// maxSuspects bounds the links that are looked up. If there are more, everything is
// compared.
const maxSuspects = 1024

// linkFilter keeps, in the kernel, deletions of links, of addresses and of unicast
// and unreachable routes, links that were brought down, and forwarding that was disabled.
func linkFilter() []unix.SockFilter {
	const (
		load8  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		load16 = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		load32 = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		isSet  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		give   = unix.BPF_RET | unix.BPF_K

		kindAt      = 4                       // in struct nlmsghdr
		flagsAt     = unix.SizeofNlMsghdr + 8 // in struct ifinfomsg
		changeAt    = flagsAt + 4             // the flags that have changed
		routeTypeAt = unix.SizeofNlMsghdr + 7 // in struct rtmsg
		// A message that a sysctl has changed has a second attribute, which is that sysctl. One
		// that a link was made has more.
		sysctlAt     = unix.SizeofNlMsghdr + forwardingAt
		sysctlLength = sysctlAt + 8
		all          = ^uint32(0)
	)
	lowest := uint32(0) // the byte with IFF_UP of a number of 32 bits
	if network(1) == 1 {
		lowest = 3
	}
	return []unix.SockFilter{
		0:  {Code: load16, K: kindAt},
		1:  {Code: equal, K: network(unix.RTM_DELLINK), Jt: 12},
		2:  {Code: equal, K: network(unix.RTM_DELADDR), Jt: 11},
		3:  {Code: equal, K: network(unix.RTM_DELROUTE), Jt: 7},
		4:  {Code: equal, K: network(unix.RTM_NEWLINK), Jf: 11},
		5:  {Code: load8, K: flagsAt + lowest},
		6:  {Code: isSet, K: unix.IFF_UP, Jt: 8},
		7:  {Code: load32, K: changeAt},
		8:  {Code: equal, K: all, Jt: 6}, // it was made
		9:  {Code: load8, K: changeAt + lowest},
		10: {Code: isSet, K: unix.IFF_UP, Jt: 3, Jf: 4},
		11: {Code: load8, K: routeTypeAt},
		12: {Code: equal, K: unix.RTN_UNICAST, Jt: 1},
		13: {Code: equal, K: unix.RTN_UNREACHABLE, Jf: 1},
		14: {Code: give, K: all},
		15: {Code: give, K: 0},
		16: {Code: equal, K: network(unix.RTM_NEWNETCONF), Jf: 7},
		17: {Code: load32, K: 0},
		18: {Code: equal, K: network32(sysctlLength), Jf: 5},
		19: {Code: load16, K: sysctlAt + 2},
		20: {Code: equal, K: network(netconfForwarding), Jf: 3},
		21: {Code: load32, K: sysctlAt + 4},
		22: {Code: equal, K: 0, Jf: 1},
		23: {Code: give, K: all},
		24: {Code: give, K: 0},
	}
}

const (
	netconfForwarding = 2 // NETCONFA_FORWARDING of linux/netconf.h
	// indexAt and forwardingAt are the places of the attributes in a message about a sysctl.
	indexAt      = 4
	forwardingAt = 12
)

// network returns a number of 16 bits as a filter loads it.
func network(n uint16) uint32 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], n)
	return uint32(binary.BigEndian.Uint16(b[:]))
}

// network32 is like network, for 32 bits.
func network32(n uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return binary.BigEndian.Uint32(b[:])
}

func (l *links) notified(n *sock.Notification) {
	if n.Kind == unix.RTM_DELROUTE && isAnnouncedNetwork(n.Payload) {
		l.changes.add(Change{Kind: Route, Object: "removal of an unreachable route"})
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
	case unix.RTM_DELROUTE:
		l.suspect(index, Route)
	}
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
	if len(payload) < unix.SizeofRtMsg || payload[7] != unix.RTN_UNREACHABLE {
		return false
	}
	table := uint32(payload[4])
	sock.EachAttribute(payload[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		if kind == unix.RTA_TABLE {
			table = sock.Uint32(value)
		}
	})
	return announce.Validate(table, payload[5]) == nil
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
	if n.Kind != unix.RTM_DELROUTE { // a link or an address
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

func (l *links) suspect(index int, kind Kind) {
	if _, known := l.suspects[index]; !known && len(l.suspects) <= maxSuspects {
		l.suspects[index] = kind
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
	for index, kind := range l.suspects {
		one, exists := find(index)
		if exists && !rtnl.IsLeaving(one.group) && (one.kind == "bridge" || one.owned) {
			l.changes.add(Change{Kind: kind, Object: kind.act() + fmt.Sprintf(" %q", one.name)})
		}
	}
	clear(l.suspects)
	l.allOff = false
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
