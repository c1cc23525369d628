package heal

import (
	"context"
	"net/netip"
	"time"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/watch"
)

// routes are destinations to which the host's routes have changed. Those of allocations have to be
// found among them, because a routing daemon changes many.
type routes struct {
	changed map[netip.Prefix]bool
	next    time.Time // not before, the records are listed
}

// maxRoutes bounds the destinations.
const maxRoutes = 1 << 16

// add adds destinations. It returns false, and forgets all, if they are too many, or nil for any.
func (r *routes) add(destinations []netip.Prefix) bool {
	if destinations == nil || len(r.changed)+len(destinations) > maxRoutes {
		r.changed = nil
		return false
	}
	if r.changed == nil {
		r.changed = make(map[netip.Prefix]bool, len(destinations))
	}
	for _, d := range destinations {
		r.changed[d] = true
	}
	return true
}

func (r *routes) due(now time.Time) bool { return len(r.changed) > 0 && !r.next.After(now) }

// compareRoutes notes a change if a changed route has the address of an allocation as its
// destination, or the network of one. Listing the records uses only a share of the time.
func (h *Healer) compareRoutes(ctx context.Context) {
	began := time.Now()
	changed := h.routes.changed
	h.routes.changed = nil
	records, err := h.Service().List(ctx)
	if err != nil {
		h.Logger.Debug("changed routes: not all records could be read", "error", err)
	}
	for i := range records {
		if to, ok := destinationIn(changed, &records[i]); ok {
			h.note(watch.Change{Kind: watch.Route, Object: "change of the route to " + to.String()})
			break
		}
	}
	h.routes.next = began.Add(share * time.Since(began))
}

// destinationIn returns the first of some destinations that is an address of an allocation, or the
// network of one.
func destinationIn(destinations map[netip.Prefix]bool, r *configurator.Record) (to netip.Prefix, ok bool) {
	if r.Status == nil {
		return to, false
	}
	for _, itf := range r.Status.Interfaces {
		for _, a := range itf.Addresses {
			p, err := netip.ParsePrefix(a.Address)
			if err != nil {
				continue
			}
			for _, to := range []netip.Prefix{netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), p.Masked()} {
				if destinations[to] {
					return to, true
				}
			}
		}
	}
	return to, false
}
