package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/sandbox"
)

// The network between the host and the external machine, from the ranges that
// are reserved for documentation.
var (
	hostAddresses    = prefixes("198.51.100.1/24", "2001:db8:a110:c::1/64")
	outsideAddresses = prefixes("198.51.100.2/24", "2001:db8:a110:c::2/64")
)

const (
	outsideName = "allocnet-demo-outside"
	hostLink    = "allocdemo0"
	outsideLink = "eth0"
)

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// outside is a namespace that simulates an external machine.
type outside struct {
	ns *sandbox.Sandbox
}

func (d *demo) makeOutside(ctx context.Context) error {
	d.outside = &outside{}
	err := d.steps.do(ctx, "make an outside, linked to the host", func(context.Context) (string, error) {
		var err error
		if d.outside.ns, err = sandbox.Create(outsideName); err != nil {
			return "", err
		}
		d.steps.later("remove the outside", func(context.Context) (string, error) {
			return "with its link", d.outside.remove()
		})
		if err := d.outside.link(); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s and %s", outsideAddresses[0].Addr(), outsideAddresses[1].Addr()), nil
	})
	return err
}

// link creates a veth between the host and the external machine.
func (o *outside) link() error {
	ns, err := os.Open(o.ns.Path())
	if err != nil {
		return err
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = hostLink
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: outsideLink, PeerNamespace: netlink.NsFd(ns.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %q: %w", hostLink, err)
	}
	if err := configure(hostLink, hostAddresses); err != nil {
		return err
	}
	return o.ns.Do(func() error { return configure(outsideLink, outsideAddresses) })
}

// configure assigns addresses to a link and brings it up.
func configure(name string, addresses []netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %q: %w", name, err)
	}
	for _, p := range addresses {
		address := &netlink.Addr{IPNet: &net.IPNet{
			IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		}}
		if p.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add address %s to link %q: %w", p, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up link %q: %w", name, err)
	}
	return nil
}

// remove removes the link first: the namespace and its end of the link exist as
// long as any process has the namespace open.
func (o *outside) remove() error {
	var errs []error
	link, err := netlink.LinkByName(hostLink)
	switch {
	case err == nil:
		errs = append(errs, netlink.LinkDel(link))
	case !errors.As(err, &netlink.LinkNotFoundError{}):
		errs = append(errs, fmt.Errorf("find link %q: %w", hostLink, err))
	}
	return errors.Join(append(errs, o.ns.Destroy())...)
}
