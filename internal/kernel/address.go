package kernel

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Loopback is the index of the loopback link in every namespace: LOOPBACK_IFINDEX
// of linux/net/flow.h.
const Loopback = 1

// Index is the index of a link in the sandbox.
func (s *Sandbox) Index(name string) (int, error) { return s.requester.index(name) }

// Index is the index of a link of the host.
func (h *Host) Index(name string) (int, error) { return h.create.index(name) }

func (r requester) index(name string) (int, error) {
	req := r.request(unix.RTM_GETLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	messages, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err == nil && len(messages) != 1 {
		err = unix.ENODEV
	}
	if err != nil {
		return 0, fmt.Errorf("find link %q: %w", name, err)
	}
	return int(nl.DeserializeIfInfomsg(messages[0]).Index), nil
}

// skipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h: the answer is read
// for the index only.
const skipStats = 1 << 3

// SetUp brings a link of the sandbox up. An Ethernet link announces its IPv4
// addresses to its neighbours (arp_notify), who may remember another MAC.
func (s *Sandbox) SetUp(index int) error {
	req := s.requester.request(unix.RTM_NEWLINK, 0)
	req.AddData(upMessage(index))
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil)
	conf.AddRtAttr(arpNotify, nl.Uint32Attr(1))
	req.AddData(spec)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("bring up link %d: %w", index, err)
	}
	return nil
}

const (
	inetConf  = 1  // IFLA_INET_CONF of linux/if_link.h
	arpNotify = 21 // IPV4_DEVCONF_ARP_NOTIFY of linux/ip.h
)

// Address flags.
const (
	// NoDAD: the address can be used at once; nobody else has it.
	NoDAD = unix.IFA_F_NODAD
	// NoPrefixRoute: the kernel makes no route to the address's network.
	NoPrefixRoute = unix.IFA_F_NOPREFIXROUTE
)

// AddAddress gives an address to a link of the host.
func (h *Host) AddAddress(index int, address *net.IPNet, flags int) error {
	return addAddress(h.Handle, index, address, flags)
}

// AddAddress gives an address to a link of the sandbox.
func (s *Sandbox) AddAddress(index int, address *net.IPNet, flags int) error {
	return addAddress(s.Handle, index, address, flags)
}

func addAddress(h *netlink.Handle, index int, address *net.IPNet, flags int) error {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: address, Flags: flags}); err != nil {
		return fmt.Errorf("add address %s: %w", address, err)
	}
	return nil
}

// Addresses are those of a link of the sandbox, of both families.
func (s *Sandbox) Addresses(index int) ([]netlink.Addr, error) { return addresses(s.Handle, index) }

// Addresses are those of a link of the host, of both families. It reads those of
// all links.
func (h *Host) Addresses(index int) ([]netlink.Addr, error) { return addresses(h.Handle, index) }

func addresses(h *netlink.Handle, index int) ([]netlink.Addr, error) {
	var addresses []netlink.Addr
	err := retryDump(func() (err error) {
		addresses, err = h.AddrList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}, netlink.FAMILY_ALL)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses of link %d: %w", index, err)
	}
	return addresses, nil
}

// dumpTries bounds how often a dump is made again that another change
// interrupted.
const dumpTries = 10

// retryDump lists again what changed while it was listed.
func retryDump(dump func() error) error {
	var err error
	for range dumpTries {
		if err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}
