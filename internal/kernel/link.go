package kernel

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Loopback is the index of the loopback link in every namespace: LOOPBACK_IFINDEX
// of linux/net/flow.h.
const Loopback = 1

// Link is a link of the host; IsNotFound tells that there is none. Its statistics
// are left out.
func (h *Host) Link(name string) (netlink.Link, error) { return link(&h.conns, byName(name)) }

// Link is a link of the sandbox; IsNotFound tells that there is none. Its
// statistics are left out.
func (s *Sandbox) Link(name string) (netlink.Link, error) { return link(s.conn, byName(name)) }

// LinkByIndex is a link of the sandbox.
func (s *Sandbox) LinkByIndex(index int) (netlink.Link, error) {
	return link(s.conn, linkInquiry(index))
}

// Index is the index of a link in the sandbox.
func (s *Sandbox) Index(name string) (int, error) { return index(s.conn, name) }

// Index is the index of a link of the host.
func (h *Host) Index(name string) (int, error) { return index(&h.conns, name) }

func link(e exchanger, r *nl.NetlinkRequest) (netlink.Link, error) {
	answer, err := get(e, r)
	if err != nil {
		return nil, fmt.Errorf("find link: %w", err)
	}
	return netlink.LinkDeserialize(nil, answer)
}

func index(e exchanger, name string) (int, error) {
	answer, err := get(e, byName(name))
	if err != nil {
		return 0, fmt.Errorf("find link %q: %w", name, err)
	}
	return int(nl.DeserializeIfInfomsg(answer).Index), nil
}

func byName(name string) *nl.NetlinkRequest {
	r := linkInquiry(0)
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return r
}

func linkInquiry(index int) *nl.NetlinkRequest {
	// RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h
	const skipStats = 1 << 3
	r := inquiry(unix.RTM_GETLINK)
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(index)
	r.AddData(m)
	r.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	return r
}

// Operational is the index of a link of the host and whether it carries traffic:
// RFC 2863's state up, which for a bridge port means that the bridge forwards.
func (h *Host) Operational(name string) (index int, up bool, err error) {
	answer, err := get(&h.conns, byName(name))
	if err != nil {
		return 0, false, fmt.Errorf("find link %q: %w", name, err)
	}
	attrs, err := nl.ParseRouteAttr(answer[unix.SizeofIfInfomsg:])
	if err != nil {
		return 0, false, fmt.Errorf("read link %q: %w", name, err)
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.IFLA_OPERSTATE && len(a.Value) > 0 {
			up = netlink.LinkOperState(a.Value[0]) == netlink.OperUp
		}
	}
	return int(nl.DeserializeIfInfomsg(answer).Index), up, nil
}

// SetUp brings a link up. An Ethernet link announces its IPv4 addresses to its
// neighbours (arp_notify), who may remember another MAC.
func (b *Batch) SetUp(index int) {
	const (
		inetConf  = 1  // IFLA_INET_CONF of linux/if_link.h
		arpNotify = 21 // IPV4_DEVCONF_ARP_NOTIFY of linux/ip.h
	)
	r := request(unix.RTM_NEWLINK, 0)
	r.AddData(upMessage(index))
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil)
	conf.AddRtAttr(arpNotify, nl.Uint32Attr(1))
	r.AddData(spec)
	b.add("bring up link", r)
}

// SetUp brings a link of the sandbox up: see Batch.SetUp.
func (s *Sandbox) SetUp(index int) error {
	var b Batch
	b.SetUp(index)
	return s.Apply(&b)
}

func upMessage(index int) *nl.IfInfomsg {
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(index)
	m.Flags, m.Change = unix.IFF_UP, unix.IFF_UP
	return m
}
