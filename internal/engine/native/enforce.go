package native

import (
	"context"
	"fmt"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Enforce makes the network policy and the labels of a request active for an allocation that is
// set up, in place of those that it had. A packet meets either the former policy or this one.
// The request has the results of ADD. Enforce is idempotent.
func (e *Engine) Enforce(ctx context.Context, r *engine.Request) error {
	exec, err := e.exec(r)
	if err != nil {
		return fmt.Errorf("enforce the policy of allocation %q: %w", r.ID, err)
	}
	defer exec.Close()
	if err := e.enforce(ctx, exec, r); err != nil {
		return fmt.Errorf("enforce the policy of allocation %q: %w", r.ID, err)
	}
	return nil
}

// enforce is Enforce. Which addresses may be used over a bridge depends on the policies: those that may
// not are closed before, and the others opened after the policies apply to them.
func (e *Engine) enforce(ctx context.Context, exec *sdk.Exec, r *engine.Request) error {
	list, err := e.attachments(ctx, exec, r, nil)
	if err != nil {
		return err
	}
	for _, elements := range eachPair(list, refused) {
		if err := exec.Host.Rules.Del(ctx, elements); err != nil {
			return err
		}
	}
	for i, a := range r.Attachments {
		c := e.newChain(exec, r, i)
		for j, p := range a.Network.List.Plugins {
			if p.Network.Type != policy.Capability {
				continue
			}
			if err := c.run(ctx, sdk.Repair, j, a.Result); err != nil {
				return fmt.Errorf("network %q: %w", a.Network.Name, err)
			}
		}
	}
	for _, elements := range crossings(list) {
		if err := exec.Host.Rules.Add(ctx, elements); err != nil {
			return err
		}
	}
	return nil
}

// HoldGuard makes a long-lived process hold the guard of the host that exists.
func (e *Engine) HoldGuard(ctx context.Context) error {
	host, err := e.open()
	if err != nil {
		return err
	}
	return host.HoldGuard(ctx)
}

// CollectPolicies removes the attachments from the store of policies whose owners are stale, and
// then the policies that have none.
func (e *Engine) CollectPolicies(ctx context.Context, stale func(names.Owner) bool) error {
	host, err := e.open()
	if err != nil {
		return err
	}
	return policy.Collect(ctx, host, stale)
}

// CollectLostPolicies removes policies from the kernel whose state was lost.
func (e *Engine) CollectLostPolicies(ctx context.Context) error {
	host, err := e.open()
	if err != nil {
		return err
	}
	return policy.CollectOrphans(ctx, host, e.instance)
}
