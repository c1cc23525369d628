package announce

import (
	"context"
	"net/netip"
	"sync"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

type checkKey struct{}

// listings are tables that were listed once for many checks.
type listings struct {
	mu     sync.Mutex
	tables map[listed]map[place]bool
}

type listed struct {
	table    uint32
	protocol uint8
}

// place is what distinguishes the routes of a listing.
type place struct {
	to   netip.Prefix
	link int // 0 for none
}

// CheckOnce returns a context for the checks of many attachments in a row. In this context,
// Check lists a table only once, because the kernel walks the whole table for each route. It
// looks again for a route that it has not found, so it sees repairs made in the meantime.
func CheckOnce(ctx context.Context) context.Context {
	return context.WithValue(ctx, checkKey{}, &listings{tables: map[listed]map[place]bool{}})
}

// has reports whether a table has a route.
func (a Announcer) has(ctx context.Context, r *ruleset.Route) (bool, error) {
	if all, once := ctx.Value(checkKey{}).(*listings); once && all.has(a, r) {
		return true, nil
	}
	return a.Kernel.HasTableRoute(kernelRoute(r))
}

func (l *listings) has(a Announcer, r *ruleset.Route) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := listed{r.Table, r.Protocol}
	places, known := l.tables[key]
	if !known {
		places = map[place]bool{}
		list, err := a.Kernel.TableRoutes(int(r.Table), r.Protocol)
		if err != nil {
			return false // the caller looks for the route itself
		}
		for _, one := range list {
			ip, _ := netip.AddrFromSlice(one.Dst.IP)
			ones, _ := one.Dst.Mask.Size()
			at := place{to: netip.PrefixFrom(ip, ones), link: one.Index}
			if one.Unreachable { // those of IPv6 have the loopback link
				at.link = 0
			}
			places[at] = true
		}
		l.tables[key] = places
	}
	return places[place{r.Address.Masked(), r.Link}]
}
