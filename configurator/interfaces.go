package configurator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
)

// checkInterfaces verifies that the interfaces of a record's results exist in the network
// namespace and have their addresses. It is cheaper than CHECK, and the only check of networks
// without CHECK.
func checkInterfaces(r *record.Record) error {
	status, err := plan.StatusOf(r)
	if err != nil {
		return faultError{err}
	}
	release, err := netns.Open(r)
	if err != nil {
		return err
	}
	defer release()
	inside, err := rtnl.EnterSandbox(r.Sandbox)
	if err != nil {
		return err
	}
	defer inside.Close()
	var errs []error
	for _, i := range status.Interfaces {
		if i.Sandbox != "" {
			errs = append(errs, checkInterface(inside, i))
		}
	}
	return errors.Join(errs...)
}

// unused returns ErrInUse if the network namespace of a record already has an interface with
// the name of one of its attachments. ADD would fail, and the DEL of the roll-back would
// remove the existing interface.
func unused(r *record.Record) error {
	release, err := netns.Open(r)
	if err != nil {
		return err
	}
	defer release()
	return r.Sandbox.Do(func() error {
		var errs []error
		for i, a := range r.Attachments {
			if a.Loopback || i == plan.PrimaryOf(r) && r.Previous != nil { // the interface is expected to exist
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

func checkInterface(inside *rtnl.Sandbox, want Interface) error {
	index, err := inside.Index(want.Name)
	switch {
	case rtnl.IsNotFound(err):
		return faultError{fmt.Errorf("interface %q: %w", want.Name, err)}
	case err != nil:
		return fmt.Errorf("look at interface %q: %w", want.Name, err)
	}
	addrs, err := inside.Addresses(index)
	if err != nil {
		return fmt.Errorf("interface %q: %w", want.Name, err)
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

// netnsDestroyTime bounds how long Setup waits for the kernel, which destroys a namespace and its
// interfaces in the background.
const netnsDestroyTime = 2 * time.Second

// lostNetns reports whether the namespace of an allocation no longer exists while Setup
// requests another one. If a namespace is destroyed, so are its interfaces and their peers on
// the host. If the allocation has no peer on the host, lostNetns returns false. If the recorded path
// leads to the other namespace, it waits for the kernel.
func (c *Configurator) lostNetns(ctx context.Context, current *plan.Plan, wanted *record.Record) bool {
	if current.SameNetns(wanted) || plan.Difference(current.Record, wanted) != "" {
		return false
	}
	if current.FormerBoot || hostEndsGone(current.Record) {
		return true
	}
	if current.Netns != wanted.Netns {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, netnsDestroyTime)
	defer cancel()
	for pause := time.Millisecond; ctx.Err() == nil; pause *= 2 {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		if hostEndsGone(current.Record) {
			return true
		}
	}
	return false
}

// hostEndsGone reports whether the peers on the host of a record's interfaces no longer exist, and
// there were any.
func hostEndsGone(r *record.Record) bool {
	lost := false
	for _, a := range r.Attachments {
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
