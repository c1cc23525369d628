package kernel

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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
}

// ErrBridgeFull: a bridge has its 1023 ports (BR_MAX_PORTS of the kernel).
var ErrBridgeFull = errors.New("the bridge is full: it has 1023 ports, the most that the kernel allows; use another network, or ptp, which has no such limit")

// CreateVeth makes the pair with one request: both names, both MACs, the peer
// in its namespace, the master, and the host's end up. Nothing is ever moved
// between namespaces, which would wait for RCU. The peer is down: it cannot be
// brought up before it has a peer itself.
func (h *Host) CreateVeth(v *Veth, to *Sandbox) error {
	err := to.With(func(fd int) error {
		req := h.create.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
		req.AddData(upMessage(0))
		addEnd(req.AddData, v.Name, v.MAC, v.MTU)
		if v.Master != 0 {
			req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(v.Master))))
		}
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
		peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
		peer.AddChild(nl.NewIfInfomsg(unix.AF_UNSPEC))
		addEnd(func(d nl.NetlinkRequestData) { peer.AddChild(d) }, v.PeerName, v.PeerMAC, v.MTU)
		peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(fd)))
		req.AddData(info)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	switch {
	case errors.Is(err, unix.EXFULL):
		return ErrBridgeFull
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("interface %q of the sandbox, or %q of the host, is there already: %w", v.PeerName, v.Name, err)
	case err != nil:
		return fmt.Errorf("create veth %q: %w", v.Name, err)
	}
	if err := h.describe(v); err != nil {
		_, deleteErr := h.DeleteLink(context.Background(), v.Name)
		return errors.Join(err, deleteErr)
	}
	return nil
}

// describe sets what the kernel does not take from a request that creates.
func (h *Host) describe(v *Veth) error {
	req := h.create.request(unix.RTM_NEWLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.Name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, nl.NonZeroTerminated(v.Alias)))
	if v.Hairpin || v.Isolated {
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
		port := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
		port.AddRtAttr(nl.IFLA_BRPORT_MODE, flag(v.Hairpin))
		port.AddRtAttr(nl.IFLA_BRPORT_ISOLATED, flag(v.Isolated))
		req.AddData(info)
	}
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("name the owner of veth %q: %w", v.Name, err)
	}
	return nil
}

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

func upMessage(index int) *nl.IfInfomsg {
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(index)
	m.Flags, m.Change = unix.IFF_UP, unix.IFF_UP
	return m
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

// IsOperational reports whether a link of the host carries traffic: RFC 2863's
// state up, which for a bridge port means that the bridge forwards.
func (h *Host) IsOperational(name string) (bool, error) {
	link, err := h.LinkByName(name)
	if err != nil {
		return false, fmt.Errorf("find link %q: %w", name, err)
	}
	return link.Attrs().OperState == netlink.OperUp, nil
}
