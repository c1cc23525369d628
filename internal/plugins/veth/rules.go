package veth

import (
	"context"
	"errors"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Rules are the rules of the attachments of a network: masquerading, the source guard and the drop of
// fragments. All have elements in allocnet's tables, and Rules removes, checks and restores those of an attachment
// together, in one transaction. ADD adds each as a step of its own: sdk.Additions collects them.
type Rules struct {
	Network    string
	Masquerade Masquerade
	// Guard is nil if the attachments have no elements of the source guard.
	Guard Guard
	// Unfragmented drops fragments from links of a routed network.
	Unfragmented bool
}

// Guard returns the guarded bridge ports of an attachment according to its result. Their elements
// are what the source guard lets them send.
type Guard func(*sdk.CmdArgs, *types100.Result) []ruleset.BridgePort

// any reports whether attachments have rules.
func (u Rules) any() bool { return u.Masquerade.On || u.Guard != nil || u.Unfragmented }

// elements returns the elements of an attachment.
func (u Rules) elements(c *sdk.CmdArgs, r *types100.Result) *ruleset.Elements {
	e := &ruleset.Elements{Owner: c.Owner(u.Network)}
	if u.Masquerade.hasElements() {
		e = u.Masquerade.elements(c, r)
	}
	if u.Guard != nil {
		e.Ports = u.Guard(c, r)
	}
	if u.Unfragmented && !sdk.AddedByReference(c, u.Network, r) {
		e.Unfragmented = []string{e.Owner.Veth()}
	}
	return e
}

// Del removes the rules of an attachment. Without a result, it finds elements by their owner. With
// a backend it does so as well, because ADD may have had a configuration without a backend.
func (u Rules) Del(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) error {
	switch {
	case !u.any():
		return nil
	case u.Masquerade.hasBackend():
		return errors.Join(u.Masquerade.delReference(ctx, c), sdk.DelOwned(ctx, c, u.Network))
	case r == nil:
		return sdk.DelOwned(ctx, c, u.Network)
	}
	return c.DelElements(ctx, u.elements(c, r))
}

// Check returns an error if a rule of an attachment is missing. It does not check rules that the
// reference plugins added: neither do those plugins.
func (u Rules) Check(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) error {
	if !u.any() || !has(r, c.Owner(u.Network).Veth(), "") {
		return nil
	}
	return errors.Join(c.Host.Rules.Check(ctx, u.elements(c, r)), u.Masquerade.checkReference(ctx, c, r))
}

// Restore adds the rules of an attachment that are missing.
func (u Rules) Restore(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) error {
	return errors.Join(u.Masquerade.restoreReference(ctx, c, r), c.Host.Rules.Add(ctx, u.elements(c, r)))
}

// Want adds the elements of an attachment to what the host must have. The rules of a backend need
// a CHECK of their own.
func (u Rules) Want(w *sdk.Wanted, c *sdk.CmdArgs, r *types100.Result) {
	w.Individual = w.Individual || u.Masquerade.hasBackend()
	if u.Masquerade.hasElements() || u.Guard != nil || u.Unfragmented {
		w.Elements = u.elements(c, r)
	}
}
