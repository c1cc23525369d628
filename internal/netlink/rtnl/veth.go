package rtnl

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
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
	var created, described unix.Errno
	err := to.With(func(fd int) error {
		requests := []*nl.NetlinkRequest{v.create(fd), v.describe()}
		if !v.Down {
			requests = append(requests, v.bringUp())
		}
		return h.conns.exchange(requests, func(i int, link []byte, errno unix.Errno) {
			switch {
			case link != nil:
				v.Index, v.PeerIndex = ends(link)
			case i == 0:
				created = errno
			case described == 0:
				described = errno
			}
		})
	})
	switch {
	case err != nil:
	case created == unix.EXFULL:
		return ErrBridgeFull
	case created == unix.EEXIST:
		return fmt.Errorf("interface %q of the sandbox, or %q of the host, is there already: %w", v.PeerName, v.Name, created)
	case created != 0:
		return fmt.Errorf("create veth %q: %w", v.Name, created)
	case described != 0:
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
	eachAttribute(link[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) {
		if kind == unix.IFLA_LINK && len(value) == 4 {
			peer = int(binary.NativeEndian.Uint32(value))
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

// create is the request that makes the pair.
func (v *Veth) create(sandbox int) *nl.NetlinkRequest {
	r := request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ECHO)
	r.AddData(linkMessage(0))
	addEnd(r.AddData, v.Name, v.MAC, v.MTU)
	if v.Master != 0 {
		r.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(v.Master))))
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	peer.AddChild(nl.NewIfInfomsg(unix.AF_UNSPEC))
	addEnd(func(d nl.NetlinkRequestData) { peer.AddChild(d) }, v.PeerName, v.PeerMAC, v.MTU)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(sandbox)))
	r.AddData(info)
	return r
}

// describe is the request that sets what the kernel does not take from one that
// creates. Where the link was there already, it is the same owner's.
func (v *Veth) describe() *nl.NetlinkRequest {
	r := v.change(linkMessage(0))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, nl.NonZeroTerminated(v.Alias)))
	if v.NoLinkLocal && hasIPv6() && (v.MTU == 0 || v.MTU >= 1280) {
		spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(addrGenMode, []byte{addrGenNone})
		r.AddData(spec)
	}
	if v.Hairpin || v.Isolated {
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
		port := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
		port.AddRtAttr(nl.IFLA_BRPORT_MODE, flag(v.Hairpin))
		port.AddRtAttr(nl.IFLA_BRPORT_ISOLATED, flag(v.Isolated))
		r.AddData(info)
	}
	return r
}

func (v *Veth) bringUp() *nl.NetlinkRequest { return v.change(upMessage(0)) }

// change begins a request about the host's end.
func (v *Veth) change(m *nl.IfInfomsg) *nl.NetlinkRequest {
	r := request(unix.RTM_NEWLINK, 0)
	r.AddData(m)
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.Name)))
	return r
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

// addEnd adds what both ends of a pair have.
func addEnd(add func(nl.NetlinkRequestData), name string, mac net.HardwareAddr, mtu int) {
	add(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	add(nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1)))
	add(nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1)))
	add(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	if mtu != 0 {
		add(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))))
	}
}

func flag(on bool) []byte {
	if on {
		return []byte{1}
	}
	return []byte{0}
}

// RandomMAC is a locally administered unicast address.
func RandomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	rand.Read(mac) // never fails
	mac[0] = mac[0]&^1 | 2
	return mac
}
