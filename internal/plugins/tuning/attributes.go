package tuning

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attributes are attributes of a link, either to be set or as they were before. The
// zero value of a field means that the attribute is not set.
type attributes struct {
	MAC      string `json:"mac,omitempty"`
	Promisc  *bool  `json:"promisc,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	Allmulti *bool  `json:"allmulti,omitempty"`
	TxQLen   *int   `json:"txQLen,omitempty"`
}

func (a *attributes) empty() bool { return *a == attributes{} }

// of returns the link's current values of the attributes that a sets.
func (a *attributes) of(link netlink.Link) attributes {
	have := link.Attrs()
	var had attributes
	if a.MAC != "" {
		had.MAC = have.HardwareAddr.String()
	}
	if a.Promisc != nil {
		had.Promisc = flag(have, unix.IFF_PROMISC)
	}
	if a.MTU != 0 {
		had.MTU = have.MTU
	}
	if a.Allmulti != nil {
		had.Allmulti = flag(have, unix.IFF_ALLMULTI)
	}
	if a.TxQLen != nil {
		had.TxQLen = &have.TxQLen
	}
	return had
}

// flag reports whether a flag is set on the link itself. A program that
// captures all packets does not set it.
func flag(link *netlink.LinkAttrs, bit uint32) *bool {
	on := link.RawFlags&bit != 0
	return &on
}

// change sets one attribute.
type change struct {
	name string
	do   func() error
}

// changes returns the functions that set the attributes.
func (a *attributes) changes(h *netlink.Handle, link netlink.Link) []change {
	var list []change
	add := func(name string, do func() error) { list = append(list, change{name, do}) }
	if a.MAC != "" {
		add("MAC "+a.MAC, func() error { return setMAC(h, link, a.MAC) })
	}
	if a.Promisc != nil {
		add("promisc", func() error { return onOff(*a.Promisc, h.SetPromiscOn, h.SetPromiscOff, link) })
	}
	if a.MTU != 0 {
		add(fmt.Sprintf("MTU %d", a.MTU), func() error { return h.LinkSetMTU(link, a.MTU) })
	}
	if a.Allmulti != nil {
		add("allmulti", func() error {
			return onOff(*a.Allmulti, h.LinkSetAllmulticastOn, h.LinkSetAllmulticastOff, link)
		})
	}
	if a.TxQLen != nil {
		add(fmt.Sprintf("txQLen %d", *a.TxQLen), func() error { return h.LinkSetTxQLen(link, *a.TxQLen) })
	}
	return list
}

// setMAC sets a MAC of the link's length. The kernel would truncate a longer
// one.
func setMAC(h *netlink.Handle, link netlink.Link, text string) error {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return err
	}
	if have := link.Attrs().HardwareAddr; len(have) != 0 && len(have) != len(mac) {
		return fmt.Errorf("the MAC has %d bytes, not %d", len(mac), len(have))
	}
	return h.LinkSetHardwareAddr(link, mac)
}

func onOff(on bool, set, unset func(netlink.Link) error, link netlink.Link) error {
	if on {
		return set(link)
	}
	return unset(link)
}

// set sets the attributes until one fails.
func (a *attributes) set(h *netlink.Handle, link netlink.Link) error {
	for _, c := range a.changes(h, link) {
		if err := c.do(); err != nil {
			return fmt.Errorf("set %s of link %q: %w", c.name, link.Attrs().Name, err)
		}
	}
	return nil
}

// restore sets all attributes and joins the errors.
func (a *attributes) restore(h *netlink.Handle, link netlink.Link) error {
	var errs []error
	for _, c := range a.changes(h, link) {
		if err := c.do(); err != nil {
			errs = append(errs, fmt.Errorf("restore %s of link %q: %w", c.name, link.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// ifSet returns those attributes whose present values are those that an ADD has set.
func (a *attributes) ifSet(set *attributes, link netlink.Link) attributes {
	have, some := set.of(link), *a
	if set.MAC == "" || have.MAC != set.MAC {
		some.MAC = ""
	}
	if set.MTU == 0 || have.MTU != set.MTU {
		some.MTU = 0
	}
	if !equal(have.Promisc, set.Promisc) {
		some.Promisc = nil
	}
	if !equal(have.Allmulti, set.Allmulti) {
		some.Allmulti = nil
	}
	if !equal(have.TxQLen, set.TxQLen) {
		some.TxQLen = nil
	}
	return some
}

// unlike returns those attributes that the link does not have. A link must not be promiscuous unless that was
// requested.
func (a *attributes) unlike(link netlink.Link) attributes {
	have, some := a.of(link), *a
	if have.MAC == a.MAC {
		some.MAC = ""
	}
	if have.MTU == a.MTU {
		some.MTU = 0
	}
	if equal(have.Allmulti, a.Allmulti) {
		some.Allmulti = nil
	}
	if equal(have.TxQLen, a.TxQLen) {
		some.TxQLen = nil
	}
	on := a.Promisc != nil && *a.Promisc
	some.Promisc = &on
	if *flag(link.Attrs(), unix.IFF_PROMISC) == on {
		some.Promisc = nil
	}
	return some
}

// equal reports whether both are given, and the same.
func equal[T comparable](a, b *T) bool { return a != nil && b != nil && *a == *b }

// check returns an error if an attribute of the link differs. A link must not
// be promiscuous unless that was requested.
func (a *attributes) check(link netlink.Link) error {
	have := link.Attrs()
	if mac := have.HardwareAddr.String(); a.MAC != "" && a.MAC != mac {
		return fmt.Errorf("the MAC is %s, not %s", mac, a.MAC)
	}
	if on := *flag(have, unix.IFF_PROMISC); on != (a.Promisc != nil && *a.Promisc) {
		return fmt.Errorf("promisc is %t", on)
	}
	if a.MTU != 0 && a.MTU != have.MTU {
		return fmt.Errorf("the MTU is %d, not %d", have.MTU, a.MTU)
	}
	if on := *flag(have, unix.IFF_ALLMULTI); a.Allmulti != nil && on != *a.Allmulti {
		return fmt.Errorf("allmulti is %t", on)
	}
	if a.TxQLen != nil && *a.TxQLen != have.TxQLen {
		return fmt.Errorf("txQLen is %d, not %d", have.TxQLen, *a.TxQLen)
	}
	return nil
}
