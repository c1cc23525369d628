package veth

import (
	"bytes"
	"context"
	"fmt"
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// RestoreNames gives the ends of the veth the names that ADD has given them, if another program has renamed one.
func (e *Ends) RestoreNames() error {
	owner, host := e.Args.Owner(e.Common.Name), e.Args.Host.Kernel
	end, err := host.Link(owner.Veth())
	if rtnl.IsNotFound(err) {
		return e.restoreHostName(owner.Veth(), owner.String())
	}
	if err != nil || end.Attrs().ParentIndex <= 0 {
		return err
	}
	s, err := e.Args.Sandbox()
	if err != nil {
		return err
	}
	if has, err := s.Has(e.Args.IfName); has || err != nil {
		return err
	}
	peer, err := s.LinkByIndex(end.Attrs().ParentIndex)
	if rtnl.IsNotFound(err) {
		return nil // CHECK reports it
	}
	if err != nil || peer.Type() != "veth" || peer.Attrs().ParentIndex != end.Attrs().Index {
		return err
	}
	var changes rtnl.Batch
	changes.SetName(peer.Attrs().Index, e.Args.IfName)
	return s.Apply(&changes)
}

func (e *Ends) restoreHostName(name, alias string) error {
	now, err := renamed(e.Args, alias)
	if err != nil || now == "" {
		return err
	}
	host := e.Args.Host.Kernel
	index, err := host.Index(now)
	if err != nil {
		return err
	}
	var changes rtnl.Batch
	changes.SetName(index, name)
	return host.Apply(&changes)
}

// RestoreSandbox restores what another program has changed of the container's end: its settings, addresses and routes. It
// does nothing if it is not known what later plugins of the chain have made of them.
func (e *Ends) RestoreSandbox(ctx context.Context) error {
	if !e.knowsInside() {
		return nil
	}
	i, s, err := e.inside()
	if err != nil {
		return err
	}
	link, arpIgnore, err := s.Inspect(e.Args.IfName)
	if err == nil && link.Type() != "veth" {
		err = fmt.Errorf("it is a %s, not a veth", link.Type())
	}
	if err != nil {
		return fmt.Errorf("find interface %q in the sandbox: %w", e.Args.IfName, err)
	}
	changed, err := e.restoreLink(s, link, arpIgnore, e.Result.Interfaces[i])
	if err != nil {
		return err
	}
	for _, restore := range []func(*rtnl.Sandbox, netlink.Link, int) (bool, error){e.restoreAddresses, e.restoreRoutes} {
		restored, err := restore(s, link, i)
		if err != nil {
			return err
		}
		changed = changed || restored
	}
	if !changed {
		return nil
	}
	return s.AwaitReception(ctx, link.Attrs().Index, IPs(&types100.Result{IPs: e.addresses(i)})...)
}

// restoreLink restores the settings of the container's end.
func (e *Ends) restoreLink(s *rtnl.Sandbox, link netlink.Link, arpIgnore int, want *types100.Interface) (changed bool, err error) {
	attrs := link.Attrs()
	var changes rtnl.Batch
	if mtu := e.mtuOf(want); mtu != 0 && mtu != attrs.MTU {
		changes.SetMTU(attrs.Index, mtu)
		changed = true
	}
	if mac, err := net.ParseMAC(want.Mac); err == nil && !bytes.Equal(mac, attrs.HardwareAddr) {
		changes.SetMAC(attrs.Index, mac)
		changed = true
	}
	if attrs.RawFlags&unix.IFF_NOARP != 0 {
		changes.EnableARP(attrs.Index)
		changed = true
	}
	if attrs.RawFlags&unix.IFF_UP == 0 {
		changes.SetUp(attrs.Index)
		changed = true
	}
	if changed {
		if err := s.Apply(&changes); err != nil {
			return true, fmt.Errorf("interface %q: %w", e.Args.IfName, err)
		}
	}
	if !e.silentInside(arpIgnore) {
		return changed, nil
	}
	return true, s.Do(func() error { _, err := RestoreARP(e.Args.IfName, true); return err })
}

// restoreAddresses adds missing addresses. One with another prefix length is in their way.
func (e *Ends) restoreAddresses(s *rtnl.Sandbox, link netlink.Link, i int) (changed bool, err error) {
	index := link.Attrs().Index
	have, err := s.Addresses(index)
	if err != nil {
		return false, err
	}
	for _, ip := range e.addresses(i) {
		if hasAddress(have, ip) {
			continue
		}
		if ip.Address.IP.To4() == nil {
			if err := enableIPv6(s, e.Args.IfName, e.Options); err != nil {
				return changed, err
			}
		}
		var changes rtnl.Batch
		for _, other := range have {
			if other.IP.Equal(ip.Address.IP) {
				changes.DeleteAddress(index, other.IPNet)
			}
		}
		changes.AddAddress(index, &ip.Address, addressFlags(ip, e.Options))
		if err := s.Apply(&changes); err != nil {
			return changed, fmt.Errorf("interface %q: %w", e.Args.IfName, err)
		}
		changed = true
	}
	return changed, nil
}

// restoreRoutes adds missing routes, in place of those that reject packets to their destination.
func (e *Ends) restoreRoutes(s *rtnl.Sandbox, link netlink.Link, i int) (changed bool, err error) {
	missing, err := missingRoutes(s, e.routes(link.Attrs().Index, i))
	if err != nil || len(missing) == 0 {
		return false, err
	}
	var changes rtnl.Batch
	for _, r := range missing {
		route := *r.added
		route.Exclusive, route.Replace = false, true
		changes.AddRoute(&route)
	}
	if err := s.Apply(&changes); err != nil {
		return false, fmt.Errorf("interface %q: %w", e.Args.IfName, err)
	}
	return true, nil
}
