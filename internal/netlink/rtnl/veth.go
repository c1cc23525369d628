package rtnl

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Veth is a pair of which one end is the host's and the other in a sandbox.
type Veth struct {
	Name     string           // of the host's end
	MAC      net.HardwareAddr // of the host's end
	Alias    string           // of the host's end: its owner
	PeerName string
	PeerMAC  net.HardwareAddr
	MTU      int // 0: the kernel's default
	// Master is the index of the bridge that the host's end becomes a port of; 0
	// is none. Hairpin and Isolated are properties of that port.
	Master            int
	Hairpin, Isolated bool
	// NoLinkLocal spares the host's end an IPv6 link-local address, which nobody
	// uses, and the search for another owner of it.
	NoLinkLocal bool
	// Down leaves the host's end down, for who has more to set.
	Down bool

	// Index and PeerIndex are those of the ends, once they are made.
	Index, PeerIndex int
}

// ErrBridgeFull: a bridge has its 1023 ports (BR_MAX_PORTS of the kernel).
var ErrBridgeFull = allocnet.ErrBridgeFull

// CreateVeth makes the pair with one request: both names, both MACs, the peer
// in its namespace, and the master. Nothing is ever moved between namespaces, which
// would wait for RCU. The host's end is brought up when all else of it is set, for of
// a change to a link that is up the kernel tells all its parts. The peer is down: it
// cannot be brought up before it has a peer itself.
func (h *Host) CreateVeth(v *Veth, to *Sandbox) error {
	if err := h.Limits(); err != nil {
		return err
	}
	var created, described error
	err := to.With(func(fd int) error {
		return sock.Build(func(r *sock.Requests) { v.put(r, fd) }, func(r *sock.Requests) error {
			return h.conns.Exchange(context.Background(), r, func(i int, link []byte, err error) {
				switch {
				case link != nil:
					v.Index, v.PeerIndex = ends(link)
				case i == 0:
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

// ends are the indexes in what the kernel says of the host's end.
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

// find looks for the indexes, unless they are known: Linux before 6.2 does not tell
// them to who makes a link.
func (v *Veth) find(h *Host, to *Sandbox) (err error) {
	if v.Index != 0 && v.PeerIndex != 0 {
		return nil
	}
	if v.Index, err = h.Index(v.Name); err == nil {
		v.PeerIndex, err = to.Index(v.PeerName)
	}
	return err
}

// put appends the requests that make the pair, given a descriptor of the sandbox.
func (v *Veth) put(r *sock.Requests, sandbox int) {
	v.create(r, sandbox)
	v.describe(r)
	if !v.Down {
		r.Begin("", unix.RTM_NEWLINK, unix.NLM_F_ACK)
		putNamed(r, v.Name, unix.IFF_UP)
	}
}

// create is the request that makes the pair.
func (v *Veth) create(r *sock.Requests, sandbox int) {
	r.Begin("", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ECHO|unix.NLM_F_ACK)
	putEnd(r, v.Name, v.MAC, v.MTU)
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

// describe is the request that sets what the kernel does not take from one that
// creates. Where the link was there already, it is the same owner's.
func (v *Veth) describe(r *sock.Requests) {
	r.Begin("", unix.RTM_NEWLINK, unix.NLM_F_ACK)
	putNamed(r, v.Name, 0)
	r.String(unix.IFLA_IFALIAS, v.Alias)
	if v.NoLinkLocal && hasIPv6() && (v.MTU == 0 || v.MTU >= 1280) {
		spec := r.Nest(unix.IFLA_AF_SPEC)
		inet6 := r.Nest(unix.AF_INET6)
		r.Uint8(addrGenMode, addrGenNone)
		r.End(inet6)
		r.End(spec)
	}
	if v.Hairpin || v.Isolated {
		info := r.Nest(unix.IFLA_LINKINFO)
		r.String(nl.IFLA_INFO_SLAVE_KIND, "bridge")
		port := r.Nest(nl.IFLA_INFO_SLAVE_DATA)
		r.Uint8(nl.IFLA_BRPORT_MODE, flag(v.Hairpin))
		r.Uint8(nl.IFLA_BRPORT_ISOLATED, flag(v.Isolated))
		r.End(port)
		r.End(info)
	}
}

const (
	addrGenMode = 8 // IFLA_INET6_ADDR_GEN_MODE of linux/if_link.h
	addrGenNone = 1 // IN6_ADDR_GEN_MODE_NONE
)

// hasIPv6 reports whether the kernel has IPv6: without, it knows no such
// attribute.
var hasIPv6 = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
})

// putEnd appends what both ends of a pair have.
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

// RandomMAC is a locally administered unicast address.
func RandomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	rand.Read(mac) // never fails
	mac[0] = mac[0]&^1 | 2
	return mac
}
