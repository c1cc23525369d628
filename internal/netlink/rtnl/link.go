package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Loopback is the index of the loopback link in every namespace: LOOPBACK_IFINDEX
// of linux/net/flow.h.
const Loopback = 1

// LoopbackName is the name of the loopback link in every namespace.
const LoopbackName = "lo"

// Link returns a link of the host without its statistics. IsNotFound reports whether
// the error means that the link does not exist.
func (h *Host) Link(name string) (netlink.Link, error) { return link(&h.conns, byName(name)) }

// LinkByName is like Host.Link in the network namespace of the calling thread.
func LinkByName(name string) (netlink.Link, error) { return link(here, byName(name)) }

// Link returns a link of the sandbox: see Host.Link.
func (s *Sandbox) Link(name string) (netlink.Link, error) { return link(s.conn, byName(name)) }

// LinkByIndex returns a link of the sandbox by its index: see Host.Link.
func (s *Sandbox) LinkByIndex(index int) (netlink.Link, error) {
	return link(s.conn, func(r *sock.Requests) { linkInquiry(r, index) })
}

// Index returns the index of a link of the sandbox.
func (s *Sandbox) Index(name string) (int, error) { return index(s.conn, name) }

// Index returns the index of a link of the host.
func (h *Host) Index(name string) (int, error) { return index(&h.conns, name) }

func link(e sock.Exchanger, build func(*sock.Requests)) (netlink.Link, error) {
	var answer []byte
	if err := get(e, build, func(a []byte) { answer = slices.Clone(a) }); err != nil {
		return nil, fmt.Errorf("find link: %w", err)
	}
	return netlink.LinkDeserialize(nil, answer)
}

func index(e interface{ LinkIndex(string) (int, error) }, name string) (int, error) {
	index, err := e.LinkIndex(name)
	if err != nil {
		return 0, fmt.Errorf("find link %q: %w", name, err)
	}
	return index, nil
}

// indexOf reads the index from a message about a link or an address; 0 if the message
// is too short.
func indexOf(answer []byte) int {
	if len(answer) < 8 {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(answer[4:])))
}

// Has reports whether the sandbox has a link of the given name.
func (s *Sandbox) Has(name string) (bool, error) {
	_, err := index(s.conn, name)
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	return err == nil, err
}

func byName(name string) func(*sock.Requests) {
	return func(r *sock.Requests) {
		linkInquiry(r, 0)
		if len(name) >= unix.IFNAMSIZ {
			r.CString(unix.IFLA_ALT_IFNAME, name)
		} else {
			r.CString(unix.IFLA_IFNAME, name)
		}
	}
}

// skipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h.
const skipStats = 1 << 3

func linkInquiry(r *sock.Requests, index int) {
	r.Begin("", unix.RTM_GETLINK, 0)
	putLink(r, index, 0)
	r.Uint32(unix.IFLA_EXT_MASK, skipStats)
}

// SetUp brings a link up. Except for the loopback link, it also sets arp_notify:
// whenever the link gets another MAC, or goes down and up, it announces its IPv4
// addresses to its neighbours. arp_notify is set first, because the kernel notifies all
// its subsystems of a change to a link that is up.
func (b *Batch) SetUp(index int) {
	if index != Loopback {
		r := b.begin("set arp_notify of link", unix.RTM_NEWLINK, 0)
		putLink(r, index, 0)
		putInet(r, arpNotify)
	}
	putLink(b.begin("bring up link", unix.RTM_NEWLINK, 0), index, unix.IFF_UP)
}

// SetDown takes a link of the host down that is to be deleted later: no packet passes it
// any more, and the kernel removes the routes through it. If the link does not exist,
// found is false and err is nil.
func (h *Host) SetDown(name string) (found bool, err error) {
	err = do(&h.conns, func(r *sock.Requests) {
		r.Begin("", unix.RTM_NEWLINK, unix.NLM_F_ACK)
		var m [unix.SizeofIfInfomsg]byte
		binary.NativeEndian.PutUint32(m[12:], unix.IFF_UP) // the mask of the flags to change
		r.Append(m[:]...)
		r.CString(unix.IFLA_IFNAME, name)
		r.Uint32(unix.IFLA_GROUP, disconnectedGroup) // the kernel sets it first
	})
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("take link %q down: %w", name, err)
	}
	return true, nil
}

// RouteLoopback sets route_localnet of a link of the host, so that the link can carry
// packets of 127.0.0.0/8. IsNotFound reports whether the error means that the link does
// not exist. RouteLoopback does not use the sysctl file: opening the file takes longer
// than the whole request, and the link's deletion waits for it.
func (h *Host) RouteLoopback(name string) error {
	err := do(&h.conns, func(r *sock.Requests) {
		r.Begin("", unix.RTM_NEWLINK, unix.NLM_F_ACK)
		putNamed(r, name, 0)
		putInet(r, routeLocalnet)
	})
	if err != nil {
		return fmt.Errorf("set route_localnet of link %q: %w", name, err)
	}
	return nil
}

// LoopbackRouted reports whether a link in the network namespace of the calling thread has
// route_localnet. It is not known of a link that does not exist, or is named by an altname. It
// uses the sysctl file because a request for the link takes time for the number of the peer's
// namespace (see nsids).
func LoopbackRouted(name string) (on, known bool) {
	if strings.Contains(name, "/") {
		return false, false
	}
	value, err := Sysctl("net/ipv4/conf/" + name + "/route_localnet")
	return value == "1", err == nil
}

// EnableARP makes a link resolve addresses, for IPv6 by neighbour discovery.
func (b *Batch) EnableARP(index int) {
	r := b.begin("enable ARP on link", unix.RTM_NEWLINK, 0)
	var m [unix.SizeofIfInfomsg]byte
	binary.NativeEndian.PutUint32(m[4:], uint32(index))
	binary.NativeEndian.PutUint32(m[12:], unix.IFF_NOARP) // the mask of the flags to change
	r.Append(m[:]...)
}

// SetPromiscuous sets whether a link receives frames for others.
func (b *Batch) SetPromiscuous(index int, on bool) {
	r := b.begin("set promiscuous mode of link", unix.RTM_NEWLINK, 0)
	var m [unix.SizeofIfInfomsg]byte
	binary.NativeEndian.PutUint32(m[4:], uint32(index))
	if on {
		binary.NativeEndian.PutUint32(m[8:], unix.IFF_PROMISC)
	}
	binary.NativeEndian.PutUint32(m[12:], unix.IFF_PROMISC) // the mask of the flags to change
	r.Append(m[:]...)
}

// LeaveBridge makes a bridge port one no more.
func (b *Batch) LeaveBridge(index int) {
	r := b.begin("detach port from bridge", unix.RTM_NEWLINK, 0)
	putLink(r, index, 0)
	r.Uint32(unix.IFLA_MASTER, 0)
}

// State returns the index of a link of the host, and its flags, as unix.IFF_UP. It is for many
// links: unlike Port, it takes no time for the number of the peer's namespace (see nsids).
// IsNotFound reports whether the error means that the link does not exist.
func (h *Host) State(name string) (index int, flags uint16, err error) {
	err = h.conns.Do(func(s *sock.Socket) error {
		index, flags, err = s.LinkState(name)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("find link %q: %w", name, err)
	}
	return index, flags, nil
}

// IPV4_DEVCONF_FORWARDING, _ARP_IGNORE, _ARP_NOTIFY and _ROUTE_LOCALNET of linux/ip.h.
const (
	forwarding    = 1
	arpIgnore     = 19
	arpNotify     = 22
	routeLocalnet = 26
)

const inetConf = 1 // IFLA_INET_CONF of linux/if_link.h

// IsUp reports whether a link of the sandbox is up.
func (s *Sandbox) IsUp(name string) (bool, error) {
	_, flags, err := s.conn.LinkState(name)
	if err != nil {
		return false, fmt.Errorf("find link %q: %w", name, err)
	}
	return flags&unix.IFF_UP != 0, nil
}

// putInet appends the attribute that sets one IPv4 sysctl of a link to 1.
func putInet(r *sock.Requests, sysctl uint16) {
	spec := r.Nest(unix.IFLA_AF_SPEC)
	putInetConf(r, sysctl)
	r.End(spec)
}

// putInetConf appends the part of that attribute for IPv4, with several sysctls.
func putInetConf(r *sock.Requests, sysctls ...uint16) {
	inet := r.Nest(unix.AF_INET)
	conf := r.Nest(inetConf)
	for _, sysctl := range sysctls {
		r.Uint32(sysctl, 1)
	}
	r.End(conf)
	r.End(inet)
}

// SetUp brings a link of the sandbox up: see Batch.SetUp.
func (s *Sandbox) SetUp(index int) error {
	var b Batch
	b.SetUp(index)
	return s.Apply(&b)
}
