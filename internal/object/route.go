package object

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// Route is a route of a sandbox.
type Route struct {
	// Want is what has to be there: see rtnl.Sandbox.RouteExists.
	Want *types.Route
	// Made is the route as ADD makes it. Its index is set when it is made.
	Made rtnl.Route
	// Behind: without a metric, it gets one with which the routes of other interfaces stay in use.
	Behind bool
	// Yields: if another interface has a route to the same destination, the route is not made: see Routes.Yielded.
	Yields bool
}

func (r *Route) made(index int) rtnl.Route {
	route := r.Made
	if route.Index = index; route.Priority == 0 && r.Behind {
		route.Priority = rtnl.Fallback(index)
	}
	return route
}

// Routes are the routes of a sandbox over a link, in an order in which they can be made.
type Routes struct {
	Link string
	List []Route
	// Yielded tells, after Make, which routes were not made.
	Yielded []bool
}

// Compare implements Object.
func (r *Routes) Compare(_ context.Context, v *View) (list []Difference, err error) {
	index, ok, err := v.present(r.Link)
	if err != nil || !ok || len(r.List) == 0 {
		return nil, err
	}
	if v.made {
		r.Yielded = make([]bool, len(r.List))
		return []Difference{{Put: func(b *rtnl.Batch) { r.put(b, index) }}}, nil
	}
	want := make([]*types.Route, len(r.List))
	for i := range r.List {
		want[i] = r.List[i].Want
	}
	missing, err := v.sandbox.MissingRoutes(want)
	for i, w := range want {
		if !slices.Contains(missing, w) {
			continue
		}
		route := r.List[i].made(index)
		route.Exclusive, route.Replace = false, true // one that rejects packets may be in its place
		list = append(list, Difference{
			Finding: fmt.Errorf("the sandbox has no route to %s", w.Dst.String()),
			Put:     func(b *rtnl.Batch) { b.AddRoute(&route) },
		})
	}
	return list, err
}

func (r *Routes) put(b *rtnl.Batch, index int) {
	for i := range r.List {
		route := r.List[i].made(index)
		if r.List[i].Yields {
			b.TryRoute(&route, &r.Yielded[i])
		} else {
			b.AddRoute(&route)
		}
	}
}

// SourceRules make answers from addresses of a sandbox leave over a link, whichever other way there is: see
// rtnl.Batch.AddSourceRule.
type SourceRules struct {
	Link string
	From []net.IP
	// Routes are those of the table of the rules, but for table and index.
	Routes []rtnl.Route
	// MayLack: an ADD of an earlier version, or of the reference plugin, has made none.
	MayLack bool
}

// Compare implements Object.
func (s *SourceRules) Compare(_ context.Context, v *View) (list []Difference, err error) {
	index, ok, err := v.present(s.Link)
	if err != nil || !ok {
		return nil, err
	}
	put := func(b *rtnl.Batch) { s.put(b, index) }
	if v.made {
		return []Difference{{Put: put}}, nil
	}
	// A VRF of the container, to which a later plugin has moved the interface, has its own table.
	if link, err := v.link(s.Link); err != nil || link == nil || link.Master != 0 {
		return nil, err
	}
	from, err := v.sandbox.SourceRules(index)
	if err != nil {
		return nil, err
	}
	table := rtnl.Fallback(index)
	var findings []error
	for _, ip := range s.From {
		if !slices.ContainsFunc(from, ip.Equal) {
			findings = append(findings, fmt.Errorf(
				"the sandbox has no rule from %s lookup %d, so answers from that address may leave over another interface", ip, table))
		}
	}
	want := make([]*types.Route, len(s.Routes))
	for i, r := range s.Routes {
		want[i] = &types.Route{Dst: *r.Dst, Table: &table}
	}
	missing, err := v.sandbox.MissingRoutes(want)
	if err != nil {
		return nil, err
	}
	for _, route := range missing {
		findings = append(findings, fmt.Errorf("table %d of the sandbox has no route to %s", table, route.Dst.String()))
	}
	if len(findings) == 0 {
		return nil, nil
	}
	d := Difference{Finding: errors.Join(findings...), Put: put}
	if s.MayLack && len(from) == 0 && len(missing) == len(want) {
		d.Finding = nil
	}
	return []Difference{d}, nil
}

func (s *SourceRules) put(b *rtnl.Batch, index int) {
	for _, route := range s.Routes {
		route.Index, route.Table = index, rtnl.Fallback(index)
		b.EnsureRoute(&route)
	}
	for _, ip := range s.From {
		b.AddSourceRule(ip, index)
	}
}
