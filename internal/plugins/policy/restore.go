package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/policystate"
)

func sameLabels(a, b map[string]string) bool { return len(a) == len(b) && maps.Equal(a, b) }

// Repair implements sdk.Repairer. It also makes the policy and the labels of an allocation
// active that have changed.
func (p *plugin) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	a, _, err := p.previous(c)
	if err != nil {
		return err
	}
	restored, err := a.restorePolicy(ctx)
	if err := errors.Join(a.restoreRules(ctx), err); err != nil {
		return err
	}
	changed, err := a.changed()
	if err == nil && changed {
		err = a.requireEnforceable()
	}
	if err != nil {
		return err
	}
	if _, err := a.join(ctx); err != nil {
		return err
	}
	if err := a.lead(ctx); err != nil {
		return err
	}
	// Something else than the policy may have been missing as well.
	if err := endDenied(ctx, c.Host, []*attachment{a}, restored || a.restored); err != nil {
		return err
	}
	return a.finish(ctx)
}

// changed reports whether the policy or the labels differ from the stored ones, or a change of them
// was interrupted.
func (a *attachment) changed() (bool, error) {
	is, err := a.args.Host.Policies.Member(a.member.Key)
	if err != nil {
		return false, err
	}
	return is == nil || is.Changing || is.Former != "" || is.Policy != a.member.Policy || !sameLabels(is.Labels, a.member.Labels), nil
}

// lead makes the link and the elements lead to the policy, and removes those that led to
// another one.
func (a *attachment) lead(ctx context.Context) error {
	group, err := a.group()
	if err != nil {
		return err
	}
	if err := a.args.Host.Rules.Replace(ctx, a.remains(), a.elements()); err != nil {
		return err
	}
	if group == 0 {
		if a.checkGroup(0) == nil {
			return nil
		}
		group = names.GuardedGroup
	}
	return a.args.Host.Kernel.EnsureGroup(a.veth, group)
}

// restorePolicy makes the policy that the attachment has now again in the kernel, if something
// of it is missing.
func (a *attachment) restorePolicy(ctx context.Context) (changed bool, err error) {
	if a.policy == nil {
		return false, nil
	}
	return restore(ctx, a.args.Host, a.policy.ID, a.args.Host.Rules.RestorePolicy)
}

// restore makes a stored policy again in the kernel, if something of it is missing. It locks the
// store exclusively only then. Until then other attachments can join selections, so the policy is
// compared again. put puts it into the kernel.
func restore(ctx context.Context, host *sdk.Host, id string, put func(context.Context, *ruleset.Policy) error) (changed bool, err error) {
	s, err := host.Policies.Share(ctx)
	if err != nil {
		return false, err
	}
	_, err = missing(ctx, host, s, id)
	s.Unlock()
	if !errors.Is(err, ruleset.ErrMissing) {
		return false, err
	}
	if s, err = host.Policies.Exclusive(ctx); err != nil {
		return false, err
	}
	defer s.Unlock()
	return restoreLocked(ctx, host, s, id, put)
}

// restoreLocked is restore while the store is locked exclusively.
func restoreLocked(ctx context.Context, host *sdk.Host, s *policystate.Session, id string, put func(context.Context, *ruleset.Policy) error) (changed bool, err error) {
	wanted, err := missing(ctx, host, s, id)
	if errors.Is(err, ruleset.ErrMissing) {
		if err = knowAll(ctx, host, s, ""); err == nil {
			err = put(ctx, wanted)
		}
		return true, err
	}
	return false, err
}

// missing compares a stored policy with the kernel's: if something is missing there, the error is
// ErrMissing. A policy that is not stored misses nothing.
func missing(ctx context.Context, host *sdk.Host, s *policystate.Session, id string) (*ruleset.Policy, error) {
	stored, err := s.Policy(id)
	if err != nil || stored == nil {
		return nil, err
	}
	wanted, err := inKernel(stored)
	if err == nil {
		err = populate(s.Store, stored, wanted)
	}
	if err == nil {
		err = host.Rules.CheckPolicy(ctx, wanted)
	}
	return wanted, err
}

// Wanted implements sdk.Restorer. The chains of the policy are restored before the elements that lead to them
// by address, and what leads to them from links after all elements: otherwise the links of some allocations would
// be open while the rules do not know the addresses of others.
func (p *plugin) Wanted(_ context.Context, c *sdk.CmdArgs) (*sdk.Wanted, error) {
	a, _, err := p.previous(c)
	if err != nil {
		return &sdk.Wanted{}, err
	}
	former := false
	if c.Restoring {
		if former, err = a.asStored(); err != nil {
			return &sdk.Wanted{}, err
		}
	}
	w := &sdk.Wanted{Elements: a.elements(), Settle: endDeniedLater(c.Host), Subject: a, Individual: former}
	w.First = append(w.First, sdk.Object{
		Key:     "addresses of allocations with policies",
		Restore: func(ctx context.Context) (bool, error) { return knowAllOnce(ctx, c.Host) },
	})
	if a.policy != nil {
		prepared := false
		w.First = append(w.First, sdk.Object{
			Key: "policy " + a.policy.ID,
			Restore: func(ctx context.Context) (bool, error) {
				lacks := a.bridge != "" && c.Host.Kernel.CheckBridgeRules(a.bridge) != nil
				if err := a.restoreRules(ctx); err != nil {
					return false, err
				}
				restored, err := restore(ctx, c.Host, a.policy.ID, c.Host.Rules.PreparePolicy)
				prepared = restored && err == nil
				return lacks || restored, err
			},
		})
		w.Last = append(w.Last, sdk.Object{
			Key: "way from links to policy " + a.policy.ID,
			Restore: func(ctx context.Context) (bool, error) {
				if !prepared {
					return false, nil
				}
				return restore(ctx, c.Host, a.policy.ID, c.Host.Rules.AddPolicy)
			},
		})
		w.Objects = append(w.Objects, sdk.Object{
			Key:     "way to the policy of " + a.owner.String(),
			Restore: func(ctx context.Context) (bool, error) { return a.restoreLead(ctx) },
		})
	}
	return w, nil
}

// asStored gives the attachment the policy that the store has for it, and reports whether that is another one: the
// chains of the present one do not exist yet. A release may make other rules of the same policy.
func (a *attachment) asStored() (former bool, err error) {
	is, err := a.args.Host.Policies.Member(a.member.Key)
	if err != nil || is == nil || is.Policy == a.member.Policy {
		return false, err
	}
	if is.Policy == "" {
		a.member.Policy, a.policy = "", nil
		return true, nil
	}
	stored, err := a.args.Host.Policies.Policy(is.Policy)
	if err != nil || stored == nil {
		return true, err
	}
	c := &compiled{Policy: *stored}
	if err := json.Unmarshal(stored.Content, &c.content); err != nil {
		return true, fmt.Errorf("policy %s: %w", stored.ID, err)
	}
	a.member.Policy, a.policy = stored.ID, c
	return true, nil
}

// endDeniedLater returns what ends the connections that were admitted while something of what enforces the policies of
// attachments was missing.
func endDeniedLater(host *sdk.Host) func(context.Context, []any) error {
	return func(ctx context.Context, subjects []any) error {
		var list []*attachment
		for _, one := range subjects {
			list = append(list, one.(*attachment))
		}
		return endDenied(ctx, host, list, true)
	}
}

// restoreLead restores what leads to the policy and is not in allocnet's tables.
func (a *attachment) restoreLead(ctx context.Context) (changed bool, err error) {
	if a.bridge != "" {
		if a.args.Host.Kernel.CheckBridgeRules(a.bridge) == nil {
			return false, nil
		}
		return true, a.restoreRules(ctx)
	}
	group, err := a.group()
	if err != nil || a.checkGroup(group) == nil {
		return false, err
	}
	return true, a.args.Host.Kernel.EnsureGroup(a.veth, group)
}
