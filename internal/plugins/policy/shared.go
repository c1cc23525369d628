package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/policystate"
)

// makePolicy makes the attachment's policy in the kernel, with the attachment as its first user. If
// the store has it already, because another process has made it meanwhile, what is missing in the
// kernel is made again. The store is locked exclusively.
func (a *attachment) makePolicy(ctx context.Context, s *policystate.Session) error {
	if err := knowAll(ctx, a.args.Host, s, a.member.Key); err != nil {
		return err
	}
	if found, err := s.Use(a.policy.ID, a.member.Key); err != nil {
		return err
	} else if found {
		a.restored, err = restoreLocked(ctx, a.args.Host, s, a.policy.ID, a.args.Host.Rules.RestorePolicy)
		return err
	}
	p := a.policy.Policy
	if err := a.add(ctx, s, &p); err != nil {
		undo, cancel := sdk.UndoContext(ctx)
		defer cancel()
		return errors.Join(err, remove(undo, a.args.Host, s, &p))
	}
	return s.Publish(p.ID, a.member.Key)
}

// knowAll adds the addresses of all members to the kernel if another program has removed the tables of policies.
// Whatever makes these tables again calls it before anything leads to a policy: otherwise a policy that allows the
// world would allow an allocation whose address is not restored yet. The store is locked exclusively, and a member
// removes its addresses once more when it leaves: see drop. A member that is being set up, with the key except, may
// have the address of another one by mistake, and adds it itself.
func knowAll(ctx context.Context, host *sdk.Host, s *policystate.Session, except string) error {
	known, err := host.Rules.KnowsAllocations(ctx)
	if err != nil || known {
		return err
	}
	members, err := s.Members("")
	if err != nil {
		return err
	}
	var list []*ruleset.Elements
	for _, m := range members {
		if !m.Gone && m.Key != except && len(m.Addresses) > 0 {
			list = append(list, &ruleset.Elements{Owner: m.Owner, Known: m.Addresses})
		}
	}
	if len(list) > 0 {
		if _, err := host.Rules.Restore(ctx, list); err != nil {
			return err
		}
	}
	return host.Rules.EnsurePolicies(ctx) // of both families
}

// knowAllOnce is knowAll with the lock.
func knowAllOnce(ctx context.Context, host *sdk.Host) (changed bool, err error) {
	known, err := host.Rules.KnowsAllocations(ctx)
	if err != nil || known {
		return false, err
	}
	s, err := host.Policies.Exclusive(ctx)
	if err != nil {
		return false, err
	}
	defer s.Unlock()
	return true, knowAll(ctx, host, s, "")
}

// maxGroups is how many groups of links are tried.
const maxGroups = 100

// add adds a policy to the kernel, with a group of links that no other one has. A process that
// died may have added it before, so its group is tried first: only Del with the same group removes
// what leads to the policy.
func (a *attachment) add(ctx context.Context, s *policystate.Session, p *policystate.Policy) error {
	begun, err := s.Policy(p.ID)
	if err != nil {
		return err
	}
	former := begun
	for i := range maxGroups {
		if i == 0 && begun != nil {
			p.Group = begun.Group
		} else if p.Group, err = s.NewGroup(names.FirstPolicyGroup, names.LastPolicyGroup); err != nil {
			return err
		}
		if err = s.Begin(p, former); err == nil {
			wanted := rulesOf(p, &a.policy.content)
			wanted.New = begun == nil
			err = addToKernel(ctx, a.args.Host, s, p, wanted)
		}
		stored := *p
		former = &stored
		if err == nil {
			a.policy.group.Store(p.Group)
			return nil
		}
		// By a policy of another state directory, or one that began before this one was made.
		if !errors.Is(err, ruleset.ErrGroupTaken) && !errors.Is(err, policystate.ErrGroupTaken) {
			return err
		}
	}
	return fmt.Errorf("policy %s: no group of links is free", p.ID)
}

// addToKernel adds a stored policy to the kernel. It does not read the members of selections that
// other policies of the store have already: each member adds itself. If the kernel does not have one of
// those, another program has removed it. A selection may also exist whose state was lost; its members are
// not known to have joined it.
func addToKernel(ctx context.Context, host *sdk.Host, s *policystate.Session, p *policystate.Policy, wanted *ruleset.Policy) error {
	alone, err := s.UnusedWithout(p)
	if err != nil {
		return err
	}
	for i := range wanted.Selections {
		wanted.Selections[i].Present = !slices.Contains(alone, wanted.Selections[i].Name)
	}
	err = populateAndAdd(ctx, host, s, p, wanted)
	if errors.Is(err, unix.ENOENT) {
		for i := range wanted.Selections {
			wanted.Selections[i].Present, wanted.Selections[i].Members = false, nil
		}
		err = populateAndAdd(ctx, host, s, p, wanted)
	}
	return err
}

func populateAndAdd(ctx context.Context, host *sdk.Host, s *policystate.Session, p *policystate.Policy, wanted *ruleset.Policy) error {
	if err := populate(s.Store, p, wanted); err != nil {
		return err
	}
	return host.Rules.AddPolicy(ctx, wanted)
}

// inKernel returns a stored policy for the kernel, without the members of its selections.
func inKernel(p *policystate.Policy) (*ruleset.Policy, error) {
	var c content
	if err := json.Unmarshal(p.Content, &c); err != nil {
		return nil, fmt.Errorf("policy %s: %w", p.ID, err)
	}
	return rulesOf(p, &c), nil
}

// rulesOf returns a policy with this content for the kernel, without the members of its selections.
func rulesOf(p *policystate.Policy, c *content) *ruleset.Policy {
	wanted := &ruleset.Policy{ID: p.ID, Instance: p.Instance, Family: c.Family, Group: p.Group, Egress: c.Egress, Ingress: c.Ingress}
	for _, n := range p.Selections {
		wanted.Selections = append(wanted.Selections, ruleset.Selection{Name: n.Name})
	}
	return wanted
}

// populate adds the members to the selections of a policy that are not Present.
func populate(store *policystate.Store, p *policystate.Policy, wanted *ruleset.Policy) error {
	for i, n := range p.Selections {
		if wanted.Selections[i].Present {
			continue
		}
		candidates, err := store.Members(n.Label)
		if err != nil {
			return err
		}
		for _, m := range candidates {
			if m.Gone {
				continue
			}
			yes, err := selects(&n, m)
			if err != nil {
				return err
			}
			if yes {
				wanted.Selections[i].Members = append(wanted.Selections[i].Members, ruleset.Member{Owner: m.Owner, Addresses: m.Addresses})
			}
		}
	}
	return nil
}

// sweep removes all policies that no attachment uses, and then members that are Gone.
func sweep(ctx context.Context, host *sdk.Host, gone ...string) error {
	s, err := host.Policies.Exclusive(ctx)
	if err != nil {
		return err
	}
	defer s.Unlock()
	if err := leaveStale(host, s); err != nil {
		return err
	}
	unused, err := s.Unused()
	if err != nil {
		return err
	}
	return removeUnused(ctx, host, s, unused, gone)
}

// sweepLeft is sweep of the policies that an attachment has left. Its time does not depend on the
// number of others.
func sweepLeft(ctx context.Context, host *sdk.Host, left []string, gone ...string) error {
	s, err := host.Policies.Exclusive(ctx)
	if err != nil {
		return err
	}
	defer s.Unlock()
	unused, err := s.UnusedOf(left)
	if err != nil {
		return err
	}
	return removeUnused(ctx, host, s, unused, gone)
}

func removeUnused(ctx context.Context, host *sdk.Host, s *policystate.Session, unused []*policystate.Policy, gone []string) error {
	var errs []error
	for _, p := range unused {
		errs = append(errs, remove(ctx, host, s, p))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, key := range gone {
		m, err := s.Member(key)
		if err == nil && m != nil && m.Gone { // else it has been set up again meanwhile
			err = s.DeleteMember(m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leaveStale removes users whose process has died between two steps. A user without a file of its member
// whose link exists has lost it, and is still subject to the policy.
func leaveStale(host *sdk.Host, s *policystate.Session) error {
	ids, err := s.Policies()
	if err != nil {
		return err
	}
	for _, id := range ids {
		users, err := s.Users(id)
		if err != nil {
			return err
		}
		for _, key := range users {
			m, err := s.Member(key)
			if err != nil {
				return err
			}
			stale := m == nil || m.Policy != id && m.Former != id
			if m == nil {
				_, err := host.Kernel.LinkState(key)
				if stale = rtnl.IsNotFound(err); err != nil && !stale {
					return err
				}
			}
			if !stale {
				continue
			}
			if _, err := s.Leave(id, key); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes a policy from the kernel, and then from the store. If an attachment whose state was
// lost has the same policy, its element still leads to the chains: they stay, and CollectOrphans
// removes them.
func remove(ctx context.Context, host *sdk.Host, s *policystate.Session, p *policystate.Policy) error {
	wanted, err := inKernel(p)
	if err != nil {
		return err
	}
	selections, err := s.UnusedWithout(p)
	if err != nil {
		return err
	}
	if p.Group != 0 {
		if err := host.Rules.DelPolicy(ctx, wanted, selections); err != nil && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return s.Delete(p)
}
