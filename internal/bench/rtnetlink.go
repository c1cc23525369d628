package bench

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Values from linux/if_link.h, linux/veth.h and linux/rtnetlink.h that package
// unix lacks.
const (
	infoKind      = 1 // IFLA_INFO_KIND
	infoData      = 2 // IFLA_INFO_DATA
	infoSlaveKind = 4 // IFLA_INFO_SLAVE_KIND
	infoSlaveData = 5 // IFLA_INFO_SLAVE_DATA
	vethPeer      = 1 // VETH_INFO_PEER
	portMode      = 4 // IFLA_BRPORT_MODE: hairpin
	skipStats     = 8 // RTEXT_FILTER_SKIP_STATS
	addrGenMode   = 8 // IFLA_INET6_ADDR_GEN_MODE
	addrGenNone   = 1 // IN6_ADDR_GEN_MODE_NONE
)

// linkHeader returns a struct ifinfomsg.
func linkHeader(index int, flags uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], flags)
	return b
}

// upMessage brings a link up.
func upMessage(index int) *message {
	return newMessage(unix.RTM_NEWLINK, 0, linkHeader(index, unix.IFF_UP))
}

// veth is a veth whose peer is in another namespace.
type veth struct {
	name, peer      string
	mac, peerMAC    [6]byte
	master, sandbox int // index of the bridge, or 0; descriptor of the namespace
}

// create creates the veth, with the host's end up. The kernel refuses to bring
// up a peer in the same request.
func (v *veth) create() *message {
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, linkHeader(0, unix.IFF_UP))
	end(m, v.name, v.mac)
	if v.master != 0 {
		m.number(unix.IFLA_MASTER, uint32(v.master))
	}
	m.nest(unix.IFLA_LINKINFO, func() {
		m.attr(infoKind, []byte("veth")...)
		m.nest(infoData, func() {
			m.nest(vethPeer, func() {
				m.buf = append(m.buf, linkHeader(0, 0)...)
				end(m, v.peer, v.peerMAC)
				m.number(unix.IFLA_NET_NS_FD, uint32(v.sandbox))
			})
		})
	})
	return m
}

// end adds the attributes that both ends of a veth have.
func end(m *message, name string, mac [6]byte) {
	m.text(unix.IFLA_IFNAME, name)
	m.attr(unix.IFLA_ADDRESS, mac[:]...)
	m.number(unix.IFLA_NUM_TX_QUEUES, 1)
	m.number(unix.IFLA_NUM_RX_QUEUES, 1)
}

// portMessage sets properties that the kernel does not accept when it creates a
// link. With hairpin, a bridge sends frames back through the port from which
// they came. Without linkLocal, the link gets no IPv6 address of its own; each
// such address adds a route to a prefix that all links have, to a list that the
// kernel walks.
func portMessage(name string, hairpin, linkLocal bool) *message {
	m := newMessage(unix.RTM_NEWLINK, 0, linkHeader(0, 0))
	m.text(unix.IFLA_IFNAME, name)
	if hairpin {
		m.nest(unix.IFLA_LINKINFO, func() {
			m.attr(infoSlaveKind, []byte("bridge")...)
			m.nest(infoSlaveData, func() { m.attr(portMode, 1) })
		})
	}
	if !linkLocal {
		m.nest(unix.IFLA_AF_SPEC, func() {
			m.nest(unix.AF_INET6, func() { m.attr(addrGenMode, addrGenNone) })
		})
	}
	return m
}

// groupMessage moves a link into a group.
func groupMessage(name string, group uint32) *message {
	m := newMessage(unix.RTM_NEWLINK, 0, linkHeader(0, 0))
	m.text(unix.IFLA_IFNAME, name)
	m.number(unix.IFLA_GROUP, group)
	return m
}

// delLinkMessage deletes a link.
func delLinkMessage(name string) *message {
	m := newMessage(unix.RTM_DELLINK, 0, linkHeader(0, 0))
	m.text(unix.IFLA_IFNAME, name)
	return m
}

// delGroupMessage deletes all links of a group, with a single RCU wait for all
// of them.
func delGroupMessage(group uint32) *message {
	m := newMessage(unix.RTM_DELLINK, 0, linkHeader(0, 0))
	m.number(unix.IFLA_GROUP, group)
	return m
}

// link returns the index of a link and of its peer.
func (s *socket) link(name string) (index, peer int, err error) {
	m := newMessage(unix.RTM_GETLINK, 0, linkHeader(0, 0))
	m.text(unix.IFLA_IFNAME, name)
	m.number(unix.IFLA_EXT_MASK, skipStats)
	err = s.exchange([]*message{m}, m, func(kind int, payload []byte) {
		if kind != unix.RTM_NEWLINK || len(payload) < unix.SizeofIfInfomsg {
			return
		}
		index = int(binary.NativeEndian.Uint32(payload[4:]))
		if other := attributes(payload[unix.SizeofIfInfomsg:])[unix.IFLA_LINK]; len(other) == 4 {
			peer = int(binary.NativeEndian.Uint32(other))
		}
	})
	if err == nil && index == 0 {
		err = errors.New("the kernel did not answer with a link")
	}
	return index, peer, err
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// addrMessage assigns an address to a link, without duplicate address
// detection.
func addrMessage(index int, p netip.Prefix, flags uint32) *message {
	header := make([]byte, unix.SizeofIfAddrmsg)
	header[0], header[1] = family(p.Addr()), byte(p.Bits())
	binary.NativeEndian.PutUint32(header[4:], uint32(index))
	m := newMessage(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header)
	m.attr(unix.IFA_LOCAL, p.Addr().AsSlice()...)
	m.attr(unix.IFA_ADDRESS, p.Addr().AsSlice()...)
	if p.Addr().Is6() {
		flags |= unix.IFA_F_NODAD
	}
	if flags != 0 {
		m.number(unix.IFA_FLAGS, flags)
	}
	return m
}

// route is a route. The zero gateway means that the destination is on the link.
type route struct {
	index           int
	scope           byte // RT_SCOPE; unused for IPv6
	to              netip.Prefix
	gateway, source netip.Addr
}

func (r *route) message() *message {
	header := make([]byte, unix.SizeofRtMsg)
	header[0], header[1] = family(r.to.Addr()), byte(r.to.Bits())
	header[4], header[5] = unix.RT_TABLE_MAIN, unix.RTPROT_BOOT
	header[7] = unix.RTN_UNICAST
	if r.to.Addr().Is4() {
		header[6] = r.scope
	}
	m := newMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header)
	if r.to.Bits() > 0 {
		m.attr(unix.RTA_DST, r.to.Addr().AsSlice()...)
	}
	if r.gateway.IsValid() {
		m.attr(unix.RTA_GATEWAY, r.gateway.AsSlice()...)
	}
	if r.source.IsValid() {
		m.attr(unix.RTA_PREFSRC, r.source.AsSlice()...)
	}
	m.number(unix.RTA_OIF, uint32(r.index))
	return m
}
