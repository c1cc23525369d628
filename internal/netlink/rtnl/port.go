package rtnl

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// usual are settings of a bridge port that the kernel gives it: with others, frames do not pass, or pass all ports.
var usual = []struct {
	kind uint16
	name string
	on   bool
}{
	{nl.IFLA_BRPORT_LEARNING, "learning", true},
	{nl.IFLA_BRPORT_UNICAST_FLOOD, "flood", true},
	{nl.IFLA_BRPORT_MCAST_FLOOD, "mcast_flood", true},
	{nl.IFLA_BRPORT_BCAST_FLOOD, "bcast_flood", true},
	{nl.IFLA_BRPORT_LOCKED, "locked", false},
}

// setting returns a setting as bridge(8) writes it.
func setting(name string, on bool) string {
	if on {
		return name + " on"
	}
	return name + " off"
}

// hookedGroups is the group_fwd_mask with which all frames of a port pass the bridge's hooks.
// Those to the multicast MACs that bridges do not forward (01:80:c2:00:00:00 to 0f, IEEE
// 802.1Q, 8.6.3) do not pass the hook prerouting otherwise: the bridge learns their sources,
// and gives them to the host as if the port were an interface of its own. The kernel has no
// bit for the second one, whose frames it drops.
const hookedGroups = 0xfffd

// maxPortGroups limits the multicast groups of a hooked port. A bridge has room for 4096 groups of all
// ports; with more it floods all multicasts (br_multicast_new_group). Kernels before 6.3 ignore the limit.
const maxPortGroups = 256

// putPort appends the settings of a bridge port, if one differs from the kernel's default.
func putPort(r *sock.Requests, hairpin, isolated, hooked bool) {
	if !hairpin && !isolated && !hooked {
		return
	}
	putPortData(r, func() {
		r.Uint8(nl.IFLA_BRPORT_MODE, flag(hairpin))
		r.Uint8(nl.IFLA_BRPORT_ISOLATED, flag(isolated))
		if hooked {
			putHooked(r)
		}
	})
}

// putPortData appends the attributes that put appends as settings of a bridge port.
func putPortData(r *sock.Requests, put func()) {
	info := r.Nest(unix.IFLA_LINKINFO)
	r.String(nl.IFLA_INFO_SLAVE_KIND, "bridge")
	port := r.Nest(nl.IFLA_INFO_SLAVE_DATA)
	put()
	r.End(port)
	r.End(info)
}

// putHooked also makes a port one to which no multicast router leads, whatever arrives there.
func putHooked(r *sock.Requests) {
	r.Uint8(nl.IFLA_BRPORT_MULTICAST_ROUTER, 0)
	r.Uint32(nl.IFLA_BRPORT_MCAST_MAX_GROUPS, maxPortGroups)
	r.Attribute(nl.IFLA_BRPORT_GROUP_FWD_MASK, binary.NativeEndian.AppendUint16(nil, hookedGroups))
}

// readSettings reads the settings of a bridge port from the kind of its link.
func (p *LinkState) readSettings(linkInfo []byte, running bool) {
	eachPortSetting(linkInfo, func(kind uint16, value []byte) {
		on := len(value) == 1 && value[0] != 0
		switch kind {
		case nl.IFLA_BRPORT_STATE:
			p.Bridged, p.Disabled = true, running && !on
		case nl.IFLA_BRPORT_MODE:
			p.Hairpin = on
		case nl.IFLA_BRPORT_ISOLATED:
			p.Isolated = on
		case nl.IFLA_BRPORT_GROUP_FWD_MASK:
			p.Hooked = len(value) == 2 && binary.NativeEndian.Uint16(value) == hookedGroups
		}
		for _, u := range usual {
			if kind == u.kind && on != u.on {
				p.Unusual = append(p.Unusual, setting(u.name, on))
			}
		}
	})
}

// eachPortSetting calls a function for each setting of a bridge port in the kind of its link. The
// settings of a link with a master of another kind, as a bond, have other numbers.
func eachPortSetting(linkInfo []byte, each func(kind uint16, value []byte)) {
	bridged := false
	sock.EachAttribute(linkInfo, func(kind uint16, value []byte) {
		bridged = bridged || kind == nl.IFLA_INFO_SLAVE_KIND && sock.String(value) == "bridge"
	})
	if bridged {
		eachNested(linkInfo, nl.IFLA_INFO_SLAVE_DATA, each)
	}
}

// AttachPort makes a link a port of a bridge.
func (b *Batch) AttachPort(index, bridge int, hairpin, isolated bool) {
	r := b.begin("attach port to bridge", unix.RTM_NEWLINK, 0)
	putLink(r, index, 0)
	r.Uint32(unix.IFLA_MASTER, uint32(bridge))
	if !hairpin && !isolated {
		return
	}
	r = b.begin("set port of bridge", unix.RTM_NEWLINK, 0)
	putLink(r, index, 0)
	putPort(r, hairpin, isolated, false)
}

// forwardingState is BR_STATE_FORWARDING of linux/if_bridge.h.
const forwardingState = 3

// RestorePort sets Veth.Hairpin and Veth.Isolated of a bridge port if they are true, sets what is Unusual
// as usual, and makes one that is Disabled forward again.
func (b *Batch) RestorePort(p *LinkState, hairpin, isolated bool) {
	r := b.begin("restore port of bridge", unix.RTM_NEWLINK, 0)
	putLink(r, p.Index, 0)
	putPortData(r, func() {
		r.Uint8(nl.IFLA_BRPORT_MODE, flag(p.Hairpin || hairpin))
		r.Uint8(nl.IFLA_BRPORT_ISOLATED, flag(p.Isolated || isolated))
		for _, u := range usual {
			if slices.Contains(p.Unusual, setting(u.name, !u.on)) {
				r.Uint8(u.kind, flag(u.on))
			}
		}
		if p.Disabled {
			r.Uint8(nl.IFLA_BRPORT_STATE, forwardingState)
		}
	})
}

// HookPort sets Veth.Hooked of a bridge port.
func (b *Batch) HookPort(index int) {
	r := b.begin("set group_fwd_mask of bridge port", unix.RTM_NEWLINK, 0)
	putLink(r, index, 0)
	putPortData(r, func() { putHooked(r) })
}

// SetGroup puts a link into a group.
func (b *Batch) SetGroup(index int, group uint32) {
	r := b.begin("set group of link", unix.RTM_NEWLINK, 0)
	putLink(r, index, 0)
	r.Uint32(unix.IFLA_GROUP, group)
}

// SetMTU sets the MTU of a link.
func (b *Batch) SetMTU(index, mtu int) {
	r := b.begin(fmt.Sprintf("set MTU of link to %d", mtu), unix.RTM_NEWLINK, 0)
	putLink(r, index, 0)
	r.Uint32(unix.IFLA_MTU, uint32(mtu))
}

// SetMAC sets the MAC of a link.
func (b *Batch) SetMAC(index int, mac net.HardwareAddr) {
	r := b.begin("set MAC of link", unix.RTM_NEWLINK, 0)
	putLink(r, index, 0)
	r.Attribute(unix.IFLA_ADDRESS, mac)
}

// SetAlias sets the alias of a link.
func (b *Batch) SetAlias(index int, alias string) {
	r := b.begin("set alias of link", unix.RTM_NEWLINK, 0)
	putLink(r, index, 0)
	r.String(unix.IFLA_IFALIAS, alias)
}

// SetName renames a link. Kernels before 6.2 refuse that for a link that is up.
func (b *Batch) SetName(index int, name string) {
	r := b.begin(fmt.Sprintf("rename link to %q", name), unix.RTM_NEWLINK, 0)
	putLink(r, index, 0)
	r.CString(unix.IFLA_IFNAME, name)
}

// SmallestPortMTU returns the smallest MTU of the ports of a bridge; 0 if it has none. The kernel walks all links.
func (h *Host) SmallestPortMTU(bridge int) (smallest int, err error) {
	err = retry.Do(context.Background(), func() error {
		smallest = 0
		return dump(&h.conns, func(r *sock.Requests) {
			allLinks(r)
			r.Uint32(unix.IFLA_MASTER, uint32(bridge))
		}, func(payload []byte) error {
			mtu, master := 0, 0
			sock.EachAttribute(sock.After(unix.SizeofIfInfomsg, payload), func(kind uint16, value []byte) {
				switch kind {
				case unix.IFLA_MTU:
					mtu = int(sock.Uint32(value))
				case unix.IFLA_MASTER:
					master = int(sock.Uint32(value))
				}
			})
			if master == bridge && (smallest == 0 || mtu < smallest) {
				smallest = mtu
			}
			return nil
		})
	})
	if err != nil {
		return 0, fmt.Errorf("list the ports of a bridge: %w", err)
	}
	return smallest, nil
}

// BringUp brings a link up, without the settings of SetUp.
func (b *Batch) BringUp(index int) {
	putLink(b.begin("bring up link", unix.RTM_NEWLINK, 0), index, unix.IFF_UP)
}

// IsInGroup reports whether a link of the host is in an interface group, according to sysfs. Unlike a
// request of rtnetlink, it does not wait for the kernel's configuration lock. It returns false if
// sysfs does not have the link.
func (h *Host) IsInGroup(name string, group uint32) bool {
	value, err := readShort("/sys/class/net/" + name + "/netdev_group")
	return err == nil && string(bytes.TrimSpace(value)) == strconv.FormatUint(uint64(group), 10)
}

// SetGroup puts a link of the host into a group. It does not ask for the link before: the kernel needs
// long to describe one on a host with many network namespaces.
func (h *Host) SetGroup(name string, group uint32) error {
	var b Batch
	r := b.begin(fmt.Sprintf("set group of link %q", name), unix.RTM_SETLINK, 0)
	putNamed(r, name, 0)
	r.Uint32(unix.IFLA_GROUP, group)
	return h.Apply(&b)
}

// EnsureGroup puts a link of the host into a group, unless it is in that group.
func (h *Host) EnsureGroup(name string, group uint32) error {
	p, err := h.LinkState(name)
	if err != nil || p.Group == group {
		return err
	}
	var b Batch
	b.SetGroup(p.Index, group)
	return h.Apply(&b)
}

// EnsureRoute adds a route of the host if the table has none to that destination.
func (h *Host) EnsureRoute(route *Route) (added bool, err error) {
	exclusive := *route
	exclusive.Exclusive = true
	var b Batch
	b.AddRoute(&exclusive)
	return unlessExists(h.Apply(&b))
}

func unlessExists(err error) (added bool, _ error) {
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return err == nil, err
}

// IsLeaving reports whether the interface group of a link means that SetDown or
// DeleteLink removes the link.
func IsLeaving(group uint32) bool { return group == deletionGroup || group == disconnectedGroup }
