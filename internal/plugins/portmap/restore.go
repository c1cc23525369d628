package portmap

import (
	"context"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

var _ sdk.Restorer = (*portmap)(nil)

// Repair implements sdk.Repairer. It repeats ADD, which only changes the host
// and is idempotent.
func (p *portmap) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	previous, err := p.Add(ctx, c)
	if _, own := p.backend.(native); err == nil && own && p.publication(c, previous).everywhere() {
		_, err = c.Host.RestoreServices(ctx) // also within the time for which ADD does not look again
	}
	return err
}

// Wanted implements sdk.Restorer. An individual CHECK finds missing rules of another
// backend, and those of the reference plugin.
func (p *portmap) Wanted(_ context.Context, c *sdk.CmdArgs) (*sdk.Wanted, error) {
	previous, err := p.previous(c)
	if err != nil || len(p.mappings) == 0 {
		return &sdk.Wanted{}, err
	}
	pub := p.publication(c, previous)
	if len(pub.addresses) == 0 {
		return &sdk.Wanted{}, nil
	}
	w := &sdk.Wanted{}
	if pub.routesLoopback() {
		w.Objects = append(w.Objects, pub.loopback(c)...)
	}
	if _, own := p.backend.(native); !own || sdk.AddedByReference(c, p.Name, previous) {
		w.Individual = true
		return w, nil
	}
	w.Elements = pub.elements(c)
	if pub.everywhere() {
		w.Objects = append(w.Objects, sdk.Object{Key: "addresses of services", Restore: c.Host.RestoreServices})
	}
	w.Restored = func(ctx context.Context) error { return pub.flushStale(ctx, c) }
	return w, nil
}

// loopback returns the guard of the loopback, and route_localnet of the interface that
// leads to the container: see routeLoopback.
func (p *publication) loopback(c *sdk.CmdArgs) []sdk.Object {
	guard := sdk.Object{Key: "guard of the loopback", Restore: func(ctx context.Context) (bool, error) {
		return c.Host.RestoreGuard(ctx, ruleset.IPv4)
	}}
	if p.first == "" {
		return []sdk.Object{guard}
	}
	return []sdk.Object{guard, {Key: "route_localnet " + p.first, Restore: func(context.Context) (bool, error) {
		if p.checkLoopback() == nil {
			return false, nil
		}
		return true, c.Host.EnsureLoopbackRouted(p.first)
	}}}
}
