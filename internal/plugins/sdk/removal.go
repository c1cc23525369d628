package sdk

import (
	"context"
	"net/netip"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// Removals collects what the plugins of one chain remove when they disconnect an attachment, so that
// Apply removes all of it in one transaction. It is not safe for concurrent use.
type Removals struct {
	elements  *ruleset.Elements
	after     []func(context.Context) error
	addresses []netip.Addr
}

// DelElements removes elements of the attachment. If the arguments have Removals, Apply removes
// them.
func (a *CmdArgs) DelElements(ctx context.Context, e *ruleset.Elements) error {
	x := a.Removals
	if x == nil {
		return a.Host.Rules.Del(ctx, e)
	}
	if x.elements == nil {
		x.elements = &ruleset.Elements{Owner: e.Owner}
	}
	x.elements.Append(e)
	return nil
}

// AfterElements calls a function, or has Apply call it after the elements of all plugins are removed.
func (a *CmdArgs) AfterElements(ctx context.Context, do func(context.Context) error) error {
	if a.Removals == nil {
		return do(ctx)
	}
	a.Removals.after = append(a.Removals.after, do)
	return nil
}

// FlushAddresses deletes the tracked connections of addresses of the attachment. If the arguments
// have Removals, Apply does it, after the elements that could lead to new ones are removed.
func (a *CmdArgs) FlushAddresses(ctx context.Context, addrs ...netip.Addr) error {
	if a.Removals == nil {
		return a.Host.Conntrack.FlushAddresses(ctx, addrs...)
	}
	a.Removals.addresses = append(a.Removals.addresses, addrs...)
	return nil
}

// Apply removes what the plugins have removed: first the elements, then what AfterElements has
// collected, and at last the tracked connections.
func (x *Removals) Apply(ctx context.Context, host *Host) error {
	if x.elements != nil {
		if err := host.Rules.Del(ctx, x.elements); err != nil {
			return err
		}
	}
	for _, do := range x.after {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return host.Conntrack.FlushAddresses(ctx, x.addresses...)
}
