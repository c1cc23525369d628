// Package announce writes routes to the addresses of attachments into routing tables from
// which routing daemons export them.
//
// # Owners
//
// A route cannot name its owner, and its protocol is the same for all attachments. A route
// over the host's end of an attachment's own veth needs no owner: the alias of the link names
// it, and the kernel removes the route when the link goes down or is deleted. Every other
// route, over a bridge or without a link, has an element in allocnet's nftables tables
// (ruleset.Route), which names the owner and has the destination, table, protocol and link.
// The element is added before the route and deleted after it, so that a process that is
// killed in between leaves no route without an element. An element without a route does no
// harm, and is removed in the same ways.
//
// A removal therefore needs neither the result of the ADD nor the configuration. It never
// lists routes to find those to delete: a route without an element of allocnet is not
// touched, even if it has the same table and protocol. Only if another program has deleted
// the element, the caller's own knowledge of the address counts.
//
// # Routes to networks
//
// The route to a network belongs to all attachments whose elements have it as destination,
// and is deleted with the last of them. There is no lock: a process that has deleted or
// kept the route looks afterwards whether the elements agree, and corrects it; see settle.
package announce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// Announcer adds and removes routes. It is safe for concurrent use, also by several
// processes.
type Announcer struct {
	Kernel *rtnl.Host
	Rules  *ruleset.Ruleset
}

// Route is a route to an address of an attachment, or to the network of the address.
type Route struct {
	ruleset.Route
	// Own reports that the link is the attachment's own, so that the route needs no
	// element.
	Own bool
}

// Gone is the Link of a route whose link does not exist any more. No table has such a route.
const Gone = -1

// ErrMissing: a route is not in its table.
var ErrMissing = errors.New("the table does not have the route")

// Add adds the routes of an attachment. It is idempotent. After an error, some of them may
// exist; Withdraw removes them.
func (a Announcer) Add(ctx context.Context, owner names.Owner, routes []Route) error {
	if e := Elements(owner, routes); e != nil {
		if err := a.Rules.Add(ctx, e); err != nil {
			return err
		}
	}
	for i := range routes {
		if _, err := a.Kernel.Announce(kernelRoute(&routes[i].Route)); err != nil {
			return err
		}
	}
	return nil
}

// Ensure adds a route if its table has none to the destination. It does not add the
// element.
func (a Announcer) Ensure(route Route) (added bool, err error) {
	return a.Kernel.EnsureRoute(kernelRoute(&route.Route))
}

// Check returns ErrMissing for each route that its table does not have, and
// ruleset.ErrMissing if the element of one is missing.
func (a Announcer) Check(ctx context.Context, owner names.Owner, routes []Route) error {
	var errs []error
	if e := Elements(owner, routes); e != nil {
		errs = append(errs, a.Rules.Check(ctx, e))
	}
	for i := range routes {
		r := &routes[i]
		has, err := a.has(ctx, &r.Route)
		if err == nil && !has {
			err = fmt.Errorf("%w: table %d, %s, protocol %d", ErrMissing, r.Table, r.Address.Masked(), r.Protocol)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Elements returns the elements of the routes that need one; nil if there is none.
func Elements(owner names.Owner, routes []Route) *ruleset.Elements {
	e := &ruleset.Elements{Owner: owner}
	for i := range routes {
		if !routes[i].Own {
			e.Announced = append(e.Announced, routes[i].Route)
		}
	}
	if len(e.Announced) == 0 {
		return nil
	}
	return e
}

// Withdraw removes the routes of an attachment. It is idempotent. What an element says about
// a route precedes the given one, which may have another link by now. A route whose element
// names another owner stays.
func (a Announcer) Withdraw(ctx context.Context, owner names.Owner, routes []Route) error {
	e := Elements(owner, routes)
	var remove []ruleset.Route
	for i := range routes {
		if routes[i].Own {
			remove = append(remove, routes[i].Route)
		}
	}
	if e == nil {
		return a.delete(remove)
	}
	found, err := a.Rules.Announced(ctx, e.Announced)
	if err != nil {
		return err
	}
	for i, is := range found {
		switch {
		case is.Owner.String() == owner.String():
			remove = append(remove, is.Route)
		case is.Owner == names.Owner{}:
			remove = append(remove, e.Announced[i])
		}
	}
	return a.withdraw(ctx, e, remove, func(o names.Owner) bool { return o.String() == owner.String() })
}

// WithdrawOf removes the routes whose elements name an owner for which of(owner) is true. It
// reads all elements of routes. Routes over an attachment's own link have none, and are
// removed with the link.
func (a Announcer) WithdrawOf(ctx context.Context, of func(names.Owner) bool) error {
	list, err := a.Rules.AnnouncedOf(ctx, of)
	if err != nil {
		return err
	}
	byOwner := map[names.Owner]*ruleset.Elements{}
	for _, r := range list {
		if byOwner[r.Owner] == nil {
			byOwner[r.Owner] = &ruleset.Elements{Owner: r.Owner}
		}
		byOwner[r.Owner].Announced = append(byOwner[r.Owner].Announced, r.Route)
	}
	var errs []error
	for _, e := range byOwner {
		errs = append(errs, a.withdraw(ctx, e, e.Announced, of))
	}
	return errors.Join(errs...)
}

// withdraw deletes routes and then the elements of an attachment. Routes to networks stay
// while there are elements of owners that are not leaving.
func (a Announcer) withdraw(ctx context.Context, e *ruleset.Elements, routes []ruleset.Route, leaving func(names.Owner) bool) error {
	var remove, networks []ruleset.Route
	used := map[netip.Prefix]bool{}
	for _, r := range routes {
		if r.Address.IsSingleIP() {
			remove = append(remove, r)
			continue
		}
		_, is, err := a.Rules.FindAnnounced(ctx, r.Address, r.Table, func(o names.Owner) bool { return !leaving(o) })
		if err != nil {
			return err
		}
		networks = append(networks, r)
		if used[r.Address.Masked()] = is; !is {
			remove = append(remove, r)
		}
	}
	if err := a.delete(remove); err != nil {
		return err
	}
	if err := a.Rules.Del(ctx, e); err != nil {
		return err
	}
	var errs []error
	for i := range networks {
		errs = append(errs, a.settle(ctx, &networks[i], used[networks[i].Address.Masked()]))
	}
	return errors.Join(errs...)
}

// attempts bounds the corrections of settle. Each follows the change of another process.
const attempts = 10

// settle makes the route to a network exist if and only if an element has it as destination.
// exists tells whether the caller has left it in place. Other processes may add and delete
// elements meanwhile: the last process that changes the route finds no difference afterwards. If
// the caller has deleted the route, another one may have added it again, and have left it because of
// the caller's element, so it is deleted once more.
func (a Announcer) settle(ctx context.Context, r *ruleset.Route, exists bool) error {
	for i := range attempts {
		one, used, err := a.Rules.FindAnnounced(ctx, r.Address, r.Table, func(names.Owner) bool { return true })
		if err != nil || used && exists || used == exists && i > 0 {
			return err
		}
		if used {
			_, err = a.Kernel.EnsureRoute(kernelRoute(&one.Route))
		} else {
			err = a.delete([]ruleset.Route{*r})
		}
		if err != nil {
			return err
		}
		exists = used
	}
	return fmt.Errorf("route to %s in table %d: other processes keep changing who needs it", r.Address.Masked(), r.Table)
}

func (a Announcer) delete(routes []ruleset.Route) error {
	if len(routes) == 0 {
		return nil
	}
	var b rtnl.Batch
	for i := range routes {
		b.DeleteRoute(kernelRoute(&routes[i]))
	}
	return a.Kernel.Apply(&b)
}

// kernelRoute returns a route as the kernel gets it.
func kernelRoute(r *ruleset.Route) *rtnl.Route {
	to := r.Address.Masked()
	k := &rtnl.Route{
		Index: r.Link, Table: int(r.Table), Protocol: r.Protocol, Unreachable: r.Link == 0,
		Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
	}
	if to.Addr().Is4() && !k.Unreachable {
		k.Scope = unix.RT_SCOPE_LINK
	}
	return k
}
