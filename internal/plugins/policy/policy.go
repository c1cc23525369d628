package policy

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/policystate"
)

var (
	_ sdk.Restorer     = (*plugin)(nil)
	_ sdk.Binder       = (*plugin)(nil)
	_ sdk.Disconnecter = (*plugin)(nil)
)

// Add implements sdk.Plugin. It returns the previous plugin's result.
func (p *plugin) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	a, previous, err := p.previous(c)
	if err != nil {
		return nil, err
	}
	if err := a.enforce(ctx); err != nil {
		undo, cancel := sdk.UndoContext(ctx)
		defer cancel()
		return nil, errors.Join(err, a.leave(undo))
	}
	return previous, nil
}

// Bind implements sdk.Binder: it does for the allocation what Add did for the slot.
func (p *plugin) Bind(ctx context.Context, c *sdk.CmdArgs) error {
	a, _, err := p.previous(c)
	if err != nil {
		return err
	}
	if err := a.prepare(ctx); err != nil {
		return err
	}
	is, err := a.join(ctx)
	if err == nil {
		err = a.endRestored(ctx)
	}
	if err != nil {
		return err
	}
	if is == nil || is.Policy != a.member.Policy || a.member.Former != "" {
		if err := a.lead(ctx); err != nil {
			return err
		}
	}
	if is == nil || is.Policy != a.member.Policy || !sameLabels(is.Labels, a.member.Labels) {
		if err := a.forgetConnections(ctx); err != nil {
			return err
		}
	}
	return a.finish(ctx)
}

// previous returns the attachment and the previous plugin's result, which is required.
func (p *plugin) previous(c *sdk.CmdArgs) (*attachment, *types100.Result, error) {
	r, err := c.Previous(&p.Common)
	if err == nil && r == nil {
		err = errNoResult
	}
	if err != nil {
		return nil, nil, err
	}
	a, err := p.attachmentOf(c, r)
	return a, r, err
}

// enforce makes the policy, and adds the elements and sets the link's group, which lead to it.
// That happens at the end of the chain.
func (a *attachment) enforce(ctx context.Context) error {
	if err := a.prepare(ctx); err != nil {
		return err
	}
	if _, err := a.join(ctx); err != nil {
		return err
	}
	if err := a.endRestored(ctx); err != nil {
		return err
	}
	if err := a.setGroup(); err != nil {
		return err
	}
	return a.args.AddElements(ctx, sdk.Addition{Elements: a.elements(), Added: a.forgetConnections})
}

// forgetConnections deletes the tracked connections of the addresses. They are from before the attachment, or, in
// a slot of a pool, from before its policy and labels, and their packets would pass the rules. These know the
// addresses already, so no connection begins meanwhile that a policy denies.
func (a *attachment) forgetConnections(ctx context.Context) error {
	return a.args.Host.Conntrack.FlushAddresses(ctx, a.member.Addresses...)
}

// prepare refuses a policy that would not be enforced, and makes the traffic within a bridge pass the
// rules.
func (a *attachment) prepare(ctx context.Context) error {
	if err := a.requireEnforceable(); err != nil {
		return err
	}
	return a.callRules(ctx, a.args.Host.Rules.Guard)
}

// setGroup makes the link lead to the policy at the end of the chain.
func (a *attachment) setGroup() error {
	group, err := a.group()
	if err != nil || group == 0 {
		return err
	}
	if a.args.Link == nil { // not in a chain
		return a.args.Host.Kernel.EnsureGroup(a.veth, group)
	}
	a.args.Link.Name, a.args.Link.Group = a.veth, group
	return nil
}

// requireEnforceable returns an error if the policy would not apply to everything that the attachment
// sends and receives.
func (a *attachment) requireEnforceable() error {
	if a.policy == nil {
		return nil
	}
	if a.bridge != "" && len(a.member.Addresses) == 0 {
		return errNoAddress
	}
	group := uint32(0)
	if l := a.args.Link; l != nil && l.Name != "" {
		group = l.Group
	} else {
		port, err := a.args.Host.Kernel.LinkState(a.veth)
		if err != nil {
			return err
		}
		group = port.Group
	}
	if !names.IsGuarded(group) {
		return errUnguarded
	}
	return nil
}

// group returns the group of the link that leads to the policy; 0 if there is no policy, or the
// link is a port of a bridge.
func (a *attachment) group() (uint32, error) {
	if a.policy == nil || a.bridge != "" {
		return 0, nil
	}
	return a.storedGroup()
}

// storedGroup returns the group of links that leads to the policy. It does not change while the
// attachment uses the policy. The file of the policy is only read if it is another one than the latest.
func (a *attachment) storedGroup() (uint32, error) {
	store, latest := a.args.Host.Policies, a.policy.group.Load()
	if latest != 0 && store.HasGroup(a.policy.ID, latest) {
		return latest, nil
	}
	p, err := store.Policy(a.policy.ID)
	if err != nil {
		return 0, err
	}
	if p == nil {
		return 0, fmt.Errorf("policy %s: its file is missing", a.policy.ID)
	}
	a.policy.group.Store(p.Group)
	return p.Group, nil
}

// callRules makes the traffic within a bridge pass the rules of the host. guard makes the source guard
// if it is missing: after a flush of the ruleset, no frame passes without it, so it comes before the
// policies. Its table is older than those, whatever makes them, unless another program deleted it alone.
func (a *attachment) callRules(ctx context.Context, guard func(context.Context, ...ruleset.Family) error) error {
	if a.policy == nil || a.bridge == "" {
		return nil
	}
	if err := guard(ctx, ruleset.Bridge); err != nil {
		return err
	}
	return a.args.Host.Kernel.EnsureBridgeRules(ctx, a.bridge)
}

// restoreRules is callRules that also restores what is missing in the table of the source guard.
func (a *attachment) restoreRules(ctx context.Context) error {
	return a.callRules(ctx, func(ctx context.Context, families ...ruleset.Family) error {
		_, err := a.args.Host.RestoreGuard(ctx, families...)
		return err
	})
}

// Check implements sdk.Plugin.
func (p *plugin) Check(ctx context.Context, c *sdk.CmdArgs) error {
	a, _, err := p.previous(c)
	if err != nil {
		return err
	}
	return errors.Join(a.checkState(), c.Host.Rules.Check(ctx, a.elements()), a.checkPolicy(ctx), a.checkSelections(ctx))
}

// checkSelections checks that the attachment is in its selections. It does not look for the other
// members of the selections that its policy has: CHECK of each of them does.
func (a *attachment) checkSelections(ctx context.Context) error {
	s, err := a.args.Host.Policies.Share(ctx)
	if err != nil {
		return err
	}
	defer s.Unlock()
	in, _, err := selectionsOf(s, &a.member)
	if err != nil {
		return err
	}
	return a.args.Host.Rules.CheckSelections(ctx, a.inRules(), in)
}

// checkState compares the stored member.
func (a *attachment) checkState() error {
	is, err := a.args.Host.Policies.Member(a.member.Key)
	if err != nil {
		return err
	}
	if is == nil || is.Policy != a.member.Policy || is.Allocation != a.member.Allocation || !sameLabels(is.Labels, a.member.Labels) {
		return fmt.Errorf("the stored policy or labels of %s differ from those of the allocation", a.owner)
	}
	return nil
}

// checkPolicy checks the rules of the policy, and that the link leads to them.
func (a *attachment) checkPolicy(ctx context.Context) error {
	if a.policy == nil {
		return a.checkGroup(0)
	}
	stored, err := a.args.Host.Policies.Policy(a.policy.ID)
	if err == nil && stored == nil {
		err = fmt.Errorf("policy %s: its file is missing", a.policy.ID)
	}
	if err != nil {
		return err
	}
	wanted, err := inKernel(stored)
	if err != nil {
		return err
	}
	err = a.args.Host.Rules.CheckPolicy(ctx, wanted)
	if a.bridge != "" {
		return errors.Join(err, a.args.Host.Kernel.CheckBridgeRules(a.bridge))
	}
	return errors.Join(err, a.checkGroup(stored.Group))
}

// checkGroup checks that the link is in a group, or, if that is 0, in none that leads to a
// policy.
func (a *attachment) checkGroup(want uint32) error {
	if a.veth == "" {
		return nil
	}
	port, err := a.args.Host.Kernel.LinkState(a.veth)
	if err != nil {
		return err
	}
	leads := port.Group >= names.PendingGroup && port.Group <= names.LastPolicyGroup
	if want != 0 && port.Group != want || want == 0 && leads {
		return fmt.Errorf("interface %q of the host is in group %d, which does not lead to the policy of %s", a.veth, port.Group, a.owner)
	}
	return nil
}

// Del implements sdk.Plugin. Without a result it looks for the owner.
func (p *plugin) Del(ctx context.Context, c *sdk.CmdArgs) error {
	if c.Host.Policies == nil {
		return nil
	}
	r := c.PreviousOfDel(&p.Common)
	a := &attachment{plugin: p, args: c, owner: c.Owner(p.Name)}
	a.member.Key = a.owner.Veth()
	is, err := a.silence()
	if err != nil {
		return err
	}
	var elements *ruleset.Elements
	switch {
	case is != nil && is.Policy == "" && is.Former == "":
		a.member.Addresses = is.Addresses
		elements = a.elements()
	case r == nil:
		return errors.Join(sdk.DelOwned(ctx, c, p.Name), a.leave(ctx))
	default:
		a.member.Addresses = addressesOf(r)
		elements = a.remains()
	}
	return errors.Join(c.DelElements(ctx, elements), c.AfterElements(ctx, a.leave))
}

// silence takes down the link of an attachment, so that nothing passes it once its policy is removed,
// or once the policies of others no longer select it. Without a policy, Disconnect does not need that:
// the attachment leaves the selections after its link or its port is closed. silence returns the stored
// member.
func (a *attachment) silence() (*policystate.Member, error) {
	is, err := a.args.Host.Policies.Member(a.member.Key)
	if err != nil || is == nil || is.Policy == "" && is.Former == "" && a.args.Removals != nil {
		return is, err
	}
	_, err = a.args.Host.Kernel.SetDown(a.owner.Veth())
	return is, err
}

// Disconnect implements sdk.Disconnecter: no policy may take the address for that of the
// allocation any more.
func (p *plugin) Disconnect(ctx context.Context, c *sdk.CmdArgs) error {
	if c.PreviousOfDel(&p.Common) == nil {
		return sdk.ErrNeedsDel
	}
	return p.Del(ctx, c)
}

// Status implements sdk.Plugin. The configuration is validated before.
func (p *plugin) Status(context.Context, *sdk.CmdArgs) error { return nil }

// NoResult implements sdk.Chained.
func (p *plugin) NoResult() error { return errNoResult }
