package veth

import (
	"errors"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// CheckSandbox compares the container's end of the veth with the result: the
// interface, its addresses, its routes and its source rules. It returns the link, also with an error if the link exists.
func (e *Ends) CheckSandbox() (netlink.Link, error) {
	i, s, err := e.inside()
	if err != nil {
		return nil, err
	}
	link, arpIgnore, err := s.Inspect(e.Args.IfName)
	if err != nil {
		return nil, fmt.Errorf("find interface %q in the sandbox: %w", e.Args.IfName, err)
	}
	return link, errors.Join(
		e.compareLink(link, e.Result.Interfaces[i]), e.checkARP(link, arpIgnore), e.checkAddresses(s, link, i), e.checkRoutes(s, link, i),
		checkSourceRules(s, link, e.Result))
}

// checkARP returns an error if the container's end does not use ARP, or does not answer requests.
func (e *Ends) checkARP(link netlink.Link, arpIgnore int) error {
	name := e.Args.IfName
	switch {
	case link.Attrs().RawFlags&unix.IFF_NOARP != 0:
		return fmt.Errorf("interface %q has ARP switched off", name)
	case e.silentInside(arpIgnore):
		return fmt.Errorf("interface %q answers no ARP requests: net.ipv4.conf.%s.arp_ignore is %d", name, name, arpIgnore)
	}
	return nil
}

// silentInside reports whether the container's end answers no ARP requests because of the sysctl, which is not that of
// the chain.
func (e *Ends) silentInside(arpIgnore int) bool {
	v4, _ := familiesOf(e.Result)
	return v4 && e.knowsInside() && !e.Args.Later.Sysctls && silent(arpIgnore, true)
}

func (e *Ends) compareLink(link netlink.Link, want *types100.Interface) error {
	attrs, mtu := link.Attrs(), e.mtuOf(want)
	switch {
	case link.Type() != "veth":
		return fmt.Errorf("interface %q is a %s, not a veth", attrs.Name, link.Type())
	case want.Mac != "" && attrs.HardwareAddr.String() != want.Mac:
		return fmt.Errorf("interface %q has the MAC %s, not %s", attrs.Name, attrs.HardwareAddr, want.Mac)
	case attrs.Flags&net.FlagUp == 0:
		return fmt.Errorf("interface %q is down", attrs.Name)
	case mtu != 0 && attrs.MTU != mtu:
		return fmt.Errorf("interface %q has the MTU %d, not %d", attrs.Name, attrs.MTU, mtu)
	}
	return nil
}

// CheckHost compares the host's end of the veth with its interface in the result, and returns it with its arp_ignore.
// It must be the peer of the container's end and have the MAC of the result. If
// master is not 0, it must be a port of that bridge.
func (e *Ends) CheckHost(want *types100.Interface, peer netlink.Link, master int) (link netlink.Link, arpIgnore int, err error) {
	link, arpIgnore, err = e.Args.Host.Kernel.Inspect(want.Name)
	if err != nil {
		return nil, 0, fmt.Errorf("find interface %q of the host: %w", want.Name, err)
	}
	if err := e.compareLink(link, want); err != nil {
		return nil, 0, err
	}
	attrs, owner := link.Attrs(), e.Args.Owner(e.Common.Name).String()
	switch {
	case attrs.Index != peer.Attrs().ParentIndex || attrs.ParentIndex != peer.Attrs().Index:
		return nil, 0, fmt.Errorf("interface %q of the host is not the other end of %q", want.Name, e.Args.IfName)
	case master != 0 && attrs.MasterIndex != master:
		return nil, 0, fmt.Errorf("interface %q is not a port of the bridge", want.Name)
	case !e.byReference() && attrs.Alias != owner:
		return nil, 0, fmt.Errorf("interface %q of the host has the alias %q, not %q", want.Name, attrs.Alias, owner)
	}
	return link, arpIgnore, nil
}

// checkAddresses returns an error for each address of interface i of the result that
// the link does not have.
func (e *Ends) checkAddresses(s *rtnl.Sandbox, link netlink.Link, i int) error {
	have, err := s.Addresses(link.Attrs().Index)
	if err != nil {
		return err
	}
	var errs []error
	for _, want := range e.addresses(i) {
		if !hasAddress(have, want) {
			errs = append(errs, fmt.Errorf("interface %q does not have the address %s", link.Attrs().Name, want.Address.String()))
		}
	}
	return errors.Join(errs...)
}

func hasAddress(have []netlink.Addr, want *types100.IPConfig) bool {
	return slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IPNet.String() == want.Address.String() })
}

// checkRoutes returns an error for each route that the sandbox does not have.
func (e *Ends) checkRoutes(s *rtnl.Sandbox, link netlink.Link, i int) error {
	missing, err := missingRoutes(s, e.routes(link.Attrs().Index, i))
	errs := []error{err}
	for _, r := range missing {
		errs = append(errs, fmt.Errorf("the sandbox has no route to %s", r.want.Dst.String()))
	}
	return errors.Join(errs...)
}
