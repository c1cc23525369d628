package rtnl

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Veth is a veth with one end in the host's network namespace and the other one, the
// peer, in a sandbox.
type Veth struct {
	Name     string           // of the host's end
	MAC      net.HardwareAddr // of the host's end
	Alias    string           // of the host's end; names the owner
	PeerName string
	PeerMAC  net.HardwareAddr
	MTU      int // 0: the kernel's default
	// Master is the index of the bridge that the host's end becomes a port of; 0 is
	// none. Hairpin and Isolated are properties of that port.
	Master            int
	Hairpin, Isolated bool
	// Hooked makes all frames from the port pass the bridge's hooks: see hookedGroups.
	Hooked bool
	// NoLinkLocal keeps the kernel from giving the host's end an IPv6 link-local
	// address, which is not used, and from duplicate address detection for it.
	NoLinkLocal bool
	// RouteLoopback sets route_localnet of the host's end: see Host.RouteLoopback.
	RouteLoopback bool
	// Forward makes the host forward IPv4 packets from its end, also if it does not do so
	// for new links by default (net.ipv4.conf.default.forwarding).
	Forward bool
	// Group is the group of the host's end; 0 is the kernel's default.
	Group uint32
	// Down leaves the host's end down, for callers that have more to set.
	Down bool

	// Index and PeerIndex are the indexes of the ends. CreateVeth sets them.
	Index, PeerIndex int
}

// ErrBridgeFull: a bridge has the maximum of 1023 ports (BR_MAX_PORTS of the kernel).
var ErrBridgeFull = allocnet.ErrBridgeFull

// CreateVeth makes both ends with one request, which contains both names, both MACs,
// the peer's namespace and the master. No end is moved between namespaces afterwards,
// because that would wait for RCU. The host's end is brought up after everything else
// is set, because the kernel notifies all its subsystems of a change to a link that is
// up. The peer stays down: at that time the kernel has not yet connected it to its own
// peer, and cannot bring it up.
func (h *Host) CreateVeth(v *Veth, to *Sandbox) error {
	if err := h.Limits(); err != nil {
		return err
	}
	var created, described error
	id, numbered := h.nsids.choose(h.lowestNSID)
	err := to.With(func(fd int) error {
		first := 0 // the request that makes both ends
		return sock.Build(func(r *sock.Requests) {
			if numbered {
				putNSID(r, fd, id)
				first = 1
			}
			v.put(r, fd)
		}, func(r *sock.Requests) error {
			return h.conns.Exchange(context.Background(), r, func(i int, link []byte, err error) {
				switch {
				case i < first: // without that number, the kernel chooses one
					h.nsids.chosen(err)
				case link != nil:
					v.Index, v.PeerIndex = ends(link)
				case i == first:
					created = err
				case described == nil:
					described = err
				}
			})
		})
	})
	switch {
	case err != nil:
	case errors.Is(created, unix.EXFULL):
		return ErrBridgeFull
	case errors.Is(created, unix.EEXIST):
		return fmt.Errorf("interface %q of the sandbox, or %q of the host, is there already: %w", v.PeerName, v.Name, created)
	case created != nil:
		return fmt.Errorf("create veth %q: %w", v.Name, created)
	case described != nil:
		err = described
	default:
		err = v.find(h, to)
	}
	if err == nil {
		return nil
	}
	_, deleteErr := h.DeleteLink(context.Background(), v.Name)
	return errors.Join(fmt.Errorf("create veth %q: %w", v.Name, err), deleteErr)
}

// ends reads the indexes of both ends from the kernel's message about the host's end.
func ends(link []byte) (index, peer int) {
	if len(link) < unix.SizeofIfInfomsg {
		return 0, 0
	}
	sock.EachAttribute(link[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) {
		if kind == unix.IFLA_LINK {
			peer = int(sock.Uint32(value))
		}
	})
	return indexOf(link), peer
}

// find looks up the indexes if they are not known: Linux before 6.2 does not report
// them in the answer to a request that makes a link.
func (v *Veth) find(h *Host, to *Sandbox) (err error) {
	if v.Index != 0 && v.PeerIndex != 0 {
		return nil
	}
	if v.Index, err = h.Index(v.Name); err == nil {
		v.PeerIndex, err = to.Index(v.PeerName)
	}
	return err
}

// put appends the requests that make the veth. sandbox is a descriptor of the peer's
// network namespace.
func (v *Veth) put(r *sock.Requests, sandbox int) {
	v.create(r, sandbox)
	v.describe(r)
	if !v.Down {
		r.Begin("", unix.RTM_NEWLINK, unix.NLM_F_ACK)
		putNamed(r, v.Name, unix.IFF_UP)
	}
}

// create appends the request that makes both ends.
func (v *Veth) create(r *sock.Requests, sandbox int) {
	r.Begin("", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ECHO|unix.NLM_F_ACK)
	putEnd(r, v.Name, v.MAC, v.MTU)
	if v.Group != 0 {
		r.Uint32(unix.IFLA_GROUP, v.Group)
	}
	if v.Master != 0 {
		r.Uint32(unix.IFLA_MASTER, uint32(v.Master))
	}
	info := r.Nest(unix.IFLA_LINKINFO)
	r.String(nl.IFLA_INFO_KIND, "veth")
	data := r.Nest(nl.IFLA_INFO_DATA)
	peer := r.Nest(nl.VETH_INFO_PEER)
	putEnd(r, v.PeerName, v.PeerMAC, v.MTU)
	r.Uint32(unix.IFLA_NET_NS_FD, uint32(sandbox))
	r.End(peer)
	r.End(data)
	r.End(info)
}

// describe appends the request for settings that the kernel ignores in a request that
// makes a link. The kernel also processes it if the link already existed; such a link
// has the same owner.
func (v *Veth) describe(r *sock.Requests) {
	r.Begin("", unix.RTM_NEWLINK, unix.NLM_F_ACK)
	putNamed(r, v.Name, 0)
	r.String(unix.IFLA_IFALIAS, v.Alias)
	noLinkLocal := v.NoLinkLocal && HasIPv6() && (v.MTU == 0 || v.MTU >= 1280)
	var sysctls []uint16
	if v.RouteLoopback {
		sysctls = append(sysctls, routeLocalnet)
	}
	if v.Forward {
		sysctls = append(sysctls, forwarding)
	}
	if noLinkLocal || len(sysctls) > 0 {
		spec := r.Nest(unix.IFLA_AF_SPEC)
		if len(sysctls) > 0 {
			putInetConf(r, sysctls...)
		}
		if noLinkLocal {
			inet6 := r.Nest(unix.AF_INET6)
			r.Uint8(addrGenMode, addrGenNone)
			r.End(inet6)
		}
		r.End(spec)
	}
	putPort(r, v.Hairpin, v.Isolated, v.Hooked)
}

const (
	addrGenMode = 8 // IFLA_INET6_ADDR_GEN_MODE of linux/if_link.h
	addrGenNone = 1 // IN6_ADDR_GEN_MODE_NONE
)

// HasIPv6 reports whether the kernel has IPv6. A kernel without IPv6 does not know the
// attributes of that family. It may load the module while the process runs, and cannot unload it
// (af_inet6.c has no exit function).
func HasIPv6() bool {
	if knownIPv6.Load() {
		return true
	}
	_, err := os.Stat("/proc/sys/net/ipv6")
	if err == nil {
		knownIPv6.Store(true)
	}
	return err == nil
}

var knownIPv6 atomic.Bool

// putEnd appends the attributes that both ends have.
func putEnd(r *sock.Requests, name string, mac net.HardwareAddr, mtu int) {
	putNamed(r, name, 0)
	r.Uint32(unix.IFLA_NUM_TX_QUEUES, 1)
	r.Uint32(unix.IFLA_NUM_RX_QUEUES, 1)
	r.Attribute(unix.IFLA_ADDRESS, mac)
	if mtu != 0 {
		r.Uint32(unix.IFLA_MTU, uint32(mtu))
	}
}

func flag(on bool) uint8 {
	if on {
		return 1
	}
	return 0
}

// RandomMAC returns a random, locally administered unicast address.
func RandomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	rand.Read(mac) // never fails
	mac[0] = mac[0]&^1 | 2
	return mac
}

// PortMAC returns a random address for a port of a bridge. A bridge without a fixed address has the lowest one of
// its ports: one that begins with fe leaves it that of the host's uplink.
func PortMAC() net.HardwareAddr {
	mac := RandomMAC()
	mac[0] = 0xfe
	return mac
}
