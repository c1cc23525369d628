package rtnl

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// OwnedLinks returns the names of the host's links for which of(owner) is true. It
// reads all links.
func (h *Host) OwnedLinks(of func(names.Owner) bool) ([]string, error) {
	return ownedLinks(&h.conns, of)
}

// OwnedLinks is like Host.OwnedLinks in the network namespace of the calling thread.
func OwnedLinks(of func(names.Owner) bool) ([]string, error) { return ownedLinks(here, of) }

// here makes requests in the network namespace of the calling thread.
var here = sock.Here{Protocol: unix.NETLINK_ROUTE}

func ownedLinks(e sock.Exchanger, of func(names.Owner) bool) ([]string, error) {
	owned, err := retry.List(func() (list []string, err error) {
		err = dump(e, allLinks, func(payload []byte) error {
			name, alias := readNames(payload)
			if owner, ok := names.ParseOwner(alias); ok && of(owner) {
				list = append(list, name)
			}
			return nil
		})
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return owned, nil
}

func allLinks(r *sock.Requests) {
	r.Begin("", unix.RTM_GETLINK, unix.NLM_F_DUMP)
	putLink(r, 0, 0)
	r.Uint32(unix.IFLA_EXT_MASK, skipStats)
}

func readNames(payload []byte) (name, alias string) {
	sock.EachAttribute(sock.After(unix.SizeofIfInfomsg, payload), func(kind uint16, value []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			name = sock.String(value)
		case unix.IFLA_IFALIAS:
			alias = sock.String(value)
		}
	})
	return name, alias
}

// GroupedLink is a link of an interface group.
type GroupedLink struct {
	Index       int
	Name, Alias string
}

// LinksOfGroup returns the host's links of an interface group. It reads all links.
func (h *Host) LinksOfGroup(group uint32) ([]GroupedLink, error) {
	links, err := retry.List(func() (list []GroupedLink, err error) {
		err = dump(&h.conns, allLinks, func(payload []byte) error {
			if groupOf(payload) == group {
				l := GroupedLink{Index: indexOf(payload)}
				l.Name, l.Alias = readNames(payload)
				list = append(list, l)
			}
			return nil
		})
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

func groupOf(payload []byte) (group uint32) {
	sock.EachAttribute(sock.After(unix.SizeofIfInfomsg, payload), func(kind uint16, value []byte) {
		if kind == unix.IFLA_GROUP {
			group = sock.Uint32(value)
		}
	})
	return group
}
