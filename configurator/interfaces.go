package configurator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
)

// checkInterfaces verifies that the interfaces of a record's results exist in the network
// namespace and have their addresses, unless that was not so right after ADD, and that loopback is up. It is
// cheaper than CHECK, and the only check of networks without CHECK.
func checkInterfaces(r *record.Record) error {
	missing, err := missingInside(r, false)
	errs := []error{err}
	for _, m := range missing {
		if !slices.Contains(r.Absent, m.what) {
			errs = append(errs, faultError{m.err})
		}
	}
	return errors.Join(errs...)
}

// missingObject is an object in the network namespace that the results list and that does not exist.
type missingObject struct {
	what string // for Record.Absent
	err  error
}

// missingInside looks in the network namespace of a record for the interfaces of the results and for their
// addresses, and, if routes is true, for the routes. Otherwise it also returns a fault if loopback is down, for which
// nothing has to be set up again. An interface of another sandbox, such as a virtual machine, is not looked for.
func missingInside(r *record.Record, routes bool) (missing []missingObject, err error) {
	status, err := plan.StatusOf(r)
	if err != nil {
		return nil, faultError{err}
	}
	release, err := netns.Open(r)
	if err != nil {
		return nil, err
	}
	defer release()
	inside, err := rtnl.EnterSandbox(r.Sandbox)
	if err != nil {
		return nil, err
	}
	defer inside.Close()
	var errs []error
	for _, i := range status.Interfaces {
		if plan.IsNetns(i.Sandbox, r.Netns) {
			list, err := missingOf(inside, i)
			missing, errs = append(missing, list...), append(errs, err)
		}
	}
	if routes {
		list, err := missingRoutes(inside, r)
		missing, errs = append(missing, list...), append(errs, err)
	} else {
		errs = append(errs, checkLoopback(inside))
	}
	return missing, errors.Join(errs...)
}

// missingRoutes returns the routes of the results that the network namespace does not have, in any table.
func missingRoutes(inside *rtnl.Sandbox, r *record.Record) (missing []missingObject, err error) {
	for _, a := range r.Attachments {
		result, err := engine.ParseResult(a.Result)
		if err != nil {
			return nil, faultError{err}
		}
		for _, route := range result.Routes {
			if route == nil {
				continue
			}
			exists, err := inside.RouteExists(route)
			if err != nil {
				return nil, err
			}
			if !exists {
				what := fmt.Sprintf("route to %s", route.Dst.String())
				missing = append(missing, missingObject{what, fmt.Errorf("network %q has lost its %s", a.Network, what)})
			}
		}
	}
	return missing, nil
}

// errLoopbackDown: another program has brought down loopback, which Setup brings up.
var errLoopbackDown = faultError{errors.New("the loopback interface is down")}

func checkLoopback(inside *rtnl.Sandbox) error {
	up, err := inside.IsUp(rtnl.LoopbackName)
	switch {
	case err != nil:
		return fmt.Errorf("look at loopback: %w", err)
	case !up:
		return errLoopbackDown
	}
	return nil
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

// missingOf looks for an interface and its addresses.
func missingOf(inside *rtnl.Sandbox, want Interface) (missing []missingObject, err error) {
	index, err := inside.Index(want.Name)
	switch {
	case rtnl.IsNotFound(err):
		what := fmt.Sprintf("interface %q", want.Name)
		return []missingObject{{what, fmt.Errorf("%s: %w", what, err)}}, nil
	case err != nil:
		return nil, fmt.Errorf("look at interface %q: %w", want.Name, err)
	}
	addrs, err := inside.Addresses(index)
	if err != nil {
		return nil, fmt.Errorf("interface %q: %w", want.Name, err)
	}
	have := map[netip.Addr]bool{}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			have[ip.Unmap()] = true
		}
	}
	for _, a := range want.Addresses {
		if p, err := netip.ParsePrefix(a.Address); err == nil && !have[p.Addr().Unmap()] {
			err := fmt.Errorf("interface %q has lost its address %s", want.Name, a.Address)
			missing = append(missing, missingObject{fmt.Sprintf("address %s of interface %q", a.Address, want.Name), err})
		}
	}
	return missing, nil
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
