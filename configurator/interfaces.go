package configurator

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/state/record"
)

// checkInterfaces looks for every interface that a record's results put into
// the sandbox, and for its addresses. It is cheaper than any CHECK, and all
// there is for networks that have none.
func checkInterfaces(r *record.Record) error {
	status, err := statusOf(r)
	if err != nil {
		return faultError{err}
	}
	release, err := openNetns(r)
	if err != nil {
		return err
	}
	defer release()
	return r.Sandbox.Do(func() error {
		var errs []error
		for _, i := range status.Interfaces {
			if i.Sandbox != "" {
				errs = append(errs, checkInterface(i))
			}
		}
		return errors.Join(errs...)
	})
}

// unused looks whether the names of a record's interfaces are free in its
// network namespace. A plugin that meets a foreign one fails, and the DEL that
// rolls it back would take the foreign one away.
func unused(r *record.Record) error {
	release, err := openNetns(r)
	if err != nil {
		return err
	}
	defer release()
	return r.Sandbox.Do(func() error {
		var errs []error
		for i, a := range r.Attachments {
			if a.Loopback || i == primaryOf(r) && r.Previous != nil { // the kernel or another plugin has made it
				continue
			}
			var gone netlink.LinkNotFoundError
			_, err := netlink.LinkByName(a.IfName)
			switch {
			case err == nil:
				errs = append(errs, fmt.Errorf("%w: %q has an interface %q already", ErrInUse, r.Netns, a.IfName))
			case !errors.As(err, &gone):
				errs = append(errs, fmt.Errorf("look for interface %q: %w", a.IfName, err))
			}
		}
		return errors.Join(errs...)
	})
}

// checkInterface runs inside the sandbox.
func checkInterface(want Interface) error {
	link, err := netlink.LinkByName(want.Name)
	switch {
	case rtnl.IsNotFound(err):
		return faultError{fmt.Errorf("interface %q: %w", want.Name, err)}
	case err != nil:
		return fmt.Errorf("look at interface %q: %w", want.Name, err)
	}
	addrs, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of interface %q: %w", want.Name, err)
	}
	have := map[netip.Addr]bool{}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			have[ip.Unmap()] = true
		}
	}
	for _, a := range want.Addresses {
		if p, err := netip.ParsePrefix(a.Address); err == nil && !have[p.Addr().Unmap()] {
			return faultError{fmt.Errorf("interface %q has lost its address %s", want.Name, a.Address)}
		}
	}
	return nil
}

// lostNetns reports whether an allocation is to be set up in another namespace than it is,
// and its own namespace no longer exists. A namespace takes its interfaces with it, and
// these their peers on the host. Without a peer on the host it cannot be told: false.
func (c *Configurator) lostNetns(current *plan, wanted *record.Record) bool {
	if current.SameNetns(wanted) || difference(current.Record, wanted) != "" {
		return false
	}
	lost := false
	for _, a := range current.Attachments {
		result, err := engine.ParseResult(a.Result)
		if err != nil {
			return false
		}
		for _, i := range result.Interfaces {
			if i.Sandbox != "" {
				continue
			}
			link, err := netlink.LinkByName(i.Name)
			switch {
			case errors.As(err, new(netlink.LinkNotFoundError)):
				lost = true
			case err != nil || link.Type() != "bridge":
				return false
			}
		}
	}
	return lost
}
