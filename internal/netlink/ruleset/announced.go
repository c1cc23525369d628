package ruleset

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"github.com/allocnet/allocnet/internal/names"
)

// Route is a route in one of the host's routing tables, to an address of an attachment or
// to the network of that address. A route in the kernel cannot name an owner; an element
// for its address and table does, and has everything that is needed to delete the route.
type Route struct {
	// Address is the address with the prefix length of the route's destination.
	Address  netip.Prefix
	Table    uint32
	Protocol uint8
	// Link is the index of the route's link; 0 for a route without one, which refuses
	// packets.
	Link int
}

// AnnouncedRoute is a route of Elements.Announced that is in the tables.
type AnnouncedRoute struct {
	Route
	Owner names.Owner
}

// routes adds the elements of routes.
func (l *lister) routes(t *table, list []Route) {
	for i := range list {
		r := &list[i]
		if !r.Address.IsValid() || r.Address.Addr().Is4In6() {
			l.fail("%s: %s is not an address with a prefix length", t.announced.label, r.Address)
			return
		}
		if tableOf(r.Address.Addr()) != t {
			continue
		}
		one := l.add(t.announced, r.Address.Addr().AsSlice(), native(r.Table))
		one.putNumbers(uint32(r.Protocol), uint32(r.Address.Bits()), uint32(r.Link))
	}
}

// putNumbers sets the data of a map to numbers.
func (e *element) putNumbers(numbers ...uint32) {
	for i, n := range numbers {
		binary.NativeEndian.PutUint32(e.value.data[4*i:], n)
	}
}

// announced returns the route of an element.
func (e *element) announced() AnnouncedRoute {
	owner, _ := names.ParseOwner(e.owner)
	number := func(i int) uint32 { return binary.NativeEndian.Uint32(e.value.data[4*i:]) }
	return AnnouncedRoute{Owner: owner, Route: Route{
		Address: netip.PrefixFrom(e.address(), int(number(1))), Table: binary.NativeEndian.Uint32(e.key[e.set.table.addrLen:]),
		Protocol: uint8(number(0)), Link: int(number(2)),
	}}
}

// Announced looks up routes by their addresses and tables. In the result, which is in the
// same order, a route that is not in the tables is the zero AnnouncedRoute.
func (r *Ruleset) Announced(ctx context.Context, routes []Route) ([]AnnouncedRoute, error) {
	list := make([]AnnouncedRoute, len(routes))
	for i := range routes {
		elements, err := (&Elements{Announced: routes[i : i+1]}).remains()
		if err == nil {
			elements, err = r.lookUp(ctx, elements)
		}
		if err != nil {
			return nil, fmt.Errorf("look up announced routes: %w", err)
		}
		if elements[0].set != nil {
			list[i] = elements[0].announced()
		}
	}
	return list, nil
}

// AnnouncedOf returns the routes for which of(owner) is true. It reads all routes.
func (r *Ruleset) AnnouncedOf(ctx context.Context, of func(names.Owner) bool) ([]AnnouncedRoute, error) {
	var list []AnnouncedRoute
	for _, t := range tables {
		found, err := r.dumpSet(ctx, t.announced, of)
		if err != nil {
			return nil, fmt.Errorf("list announced routes by their owners: %w", err)
		}
		for i := range found {
			list = append(list, found[i].announced())
		}
	}
	return list, nil
}

// FindAnnounced returns one of the routes with a destination and a table for which
// of(owner) is true. It first looks up the one that it has found last, so that it reads all
// routes only now and then.
func (r *Ruleset) FindAnnounced(ctx context.Context, to netip.Prefix, table uint32, of func(names.Owner) bool) (one AnnouncedRoute, found bool, err error) {
	to = to.Masked()
	leads := func(is *AnnouncedRoute) bool {
		return is.Table == table && is.Address.Masked() == to && of(is.Owner)
	}
	if last, known := r.witnesses.get(to, table); known {
		again, err := r.Announced(ctx, []Route{last})
		if err != nil {
			return one, false, err
		}
		if leads(&again[0]) {
			return again[0], true, nil
		}
	}
	list, err := r.dumpSet(ctx, tableOf(to.Addr()).announced, func(names.Owner) bool { return true })
	if err != nil {
		return one, false, fmt.Errorf("find announced route to %s: %w", to, err)
	}
	for i := range list {
		if is := list[i].announced(); leads(&is) {
			r.witnesses.set(to, is.Route)
			return is, true, nil
		}
	}
	return one, false, nil
}

// witnesses are the last found routes to networks.
type witnesses struct {
	mu    sync.Mutex
	known map[destination]Route
}

type destination struct {
	to    netip.Prefix
	table uint32
}

const maxWitnesses = 256

func (w *witnesses) get(to netip.Prefix, table uint32) (Route, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, known := w.known[destination{to, table}]
	return r, known
}

func (w *witnesses) set(to netip.Prefix, r Route) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known == nil || len(w.known) >= maxWitnesses {
		w.known = map[destination]Route{}
	}
	w.known[destination{to, r.Table}] = r
}
