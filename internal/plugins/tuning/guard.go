package tuning

import (
	"context"
	"errors"
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/object"
)

// guard makes the source guard of the plugin bridge let the new MAC through, and no longer the
// one before, so that the container can announce it.
func (a *addition) guard(ctx context.Context) error {
	if a.want.link.MAC == "" {
		return nil
	}
	changed := *a.result
	changed.Interfaces = nil
	for _, itf := range a.result.Interfaces {
		changed.Interfaces = append(changed.Interfaces, itf.Copy())
	}
	a.want.link.update(&changed, a.ifName)
	return a.moveGuard(ctx, a.result, &changed)
}

func (a *addition) unguard(ctx context.Context) error {
	if a.want.link.MAC == "" {
		return nil
	}
	return a.moveGuard(ctx, nil, a.result)
}

// moveGuard changes the elements of the guard from those for one result to those for another.
// If this plugin runs alone, the elements are those that bridge has added, if any.
func (a *addition) moveGuard(ctx context.Context, from, to *types100.Result) error {
	if a.args.Additions != nil {
		return a.args.Additions.Advance(ctx, a.args.Host, to)
	}
	if a.args.Host == nil || a.args.Host.Rules == nil {
		return nil
	}
	if from == nil {
		from = &types100.Result{Interfaces: []*types100.Interface{{Name: a.ifName, Sandbox: a.args.Netns, Mac: a.want.link.MAC}}}
	}
	before, after := a.guarded(from), a.guarded(to)
	if before == nil || after == nil {
		return nil
	}
	err := a.args.Host.Rules.Check(ctx, before)
	if errors.Is(err, ruleset.ErrMissing) {
		return nil // another plugin made the interface, or its sources are not guarded
	}
	if err != nil {
		return err
	}
	return a.args.Host.Rules.Replace(ctx, before, after)
}

// guarded returns the elements that depend on the MAC in a result.
func (a *addition) guarded(r *types100.Result) *ruleset.Elements {
	for _, itf := range r.Interfaces {
		mac, err := net.ParseMAC(itf.Mac)
		if itf.Name != a.ifName || itf.Sandbox == "" || err != nil || len(mac) != 6 {
			continue
		}
		port := ruleset.BridgePort{Name: a.owner.Veth(), MAC: mac}
		if len(a.result.IPs) > 0 {
			linkLocal, _ := netip.AddrFromSlice(object.LinkLocal(mac))
			port.Addresses = []netip.Addr{linkLocal}
		}
		return &ruleset.Elements{Owner: a.owner, Ports: []ruleset.BridgePort{port}}
	}
	return nil
}
