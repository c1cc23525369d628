package policy

import (
	"context"
	"errors"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Collect removes the members whose owners are stale, with the elements of the same owners, and then
// the policies that have no users.
func Collect(ctx context.Context, host *sdk.Host, stale func(names.Owner) bool) error {
	if !host.Policies.Exists() {
		return nil
	}
	dropped, gone, err := dropStale(ctx, host, stale)
	if len(dropped) > 0 {
		// Their DEL may never have run, and a policy to which an element leads cannot be removed.
		// The same ID in another state directory is another owner.
		err = errors.Join(err, host.DelOwned(ctx, func(o names.Owner) bool { return dropped[o.String()] }))
	}
	return errors.Join(err, sweep(ctx, host, gone...))
}

// GC implements sdk.Plugin. It removes the elements of stale owners also if their members are lost.
// Nothing adds an element for one of them after that, except to the selections of a policy that is
// made meanwhile, and from those dropStale removes it.
func (p *plugin) GC(ctx context.Context, c *sdk.CmdArgs) error {
	if c.Host.Policies == nil {
		return nil
	}
	stale := c.Stale(p.Name)
	err := c.Host.DelOwned(ctx, stale)
	if !c.Host.Policies.Exists() {
		return err
	}
	_, gone, dropErr := dropStale(ctx, c.Host, stale)
	return errors.Join(err, dropErr, sweep(ctx, c.Host, gone...))
}

// dropStale removes the members whose owners are stale from their selections and policies. dropped
// has the texts of these owners; gone are the keys of those that are Gone: see drop.
func dropStale(ctx context.Context, host *sdk.Host, stale func(names.Owner) bool) (dropped map[string]bool, gone []string, err error) {
	s, err := host.Policies.Share(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer s.Unlock()
	dropped = map[string]bool{}
	members, err := s.Members("")
	errs := []error{err}
	for _, m := range members {
		if !stale(m.Owner) {
			continue
		}
		dropped[m.Owner.String()] = true
		unused, err := drop(ctx, host, s, m, m.Owner)
		errs = append(errs, err)
		if len(unused) > 0 {
			gone = append(gone, m.Key)
		}
	}
	return dropped, gone, errors.Join(errs...)
}

// CollectOrphans removes what processes have left in the store that died during a change, and the
// policies of an instance from the kernel whose state was lost.
func CollectOrphans(ctx context.Context, host *sdk.Host, instance string) error {
	found, err := host.Rules.HasPolicies(ctx)
	if err != nil || !found && !host.Policies.Exists() {
		return err
	}
	s, err := host.Policies.Exclusive(ctx)
	if err != nil {
		return err
	}
	defer s.Unlock()
	if err := s.DropOrphans(); err != nil || !found {
		return err
	}
	ids, err := s.Policies()
	if err != nil {
		return err
	}
	var selections []string
	for _, id := range ids {
		p, err := s.Policy(id)
		if err != nil {
			return err
		}
		for _, n := range p.Selections {
			selections = append(selections, n.Name)
		}
	}
	return host.Rules.DelOrphans(ctx, instance, ruleset.KnownPolicies{IDs: ids, Selections: selections, InUse: func(group uint32) (bool, error) {
		links, err := host.Kernel.LinksOfGroup(group)
		return len(links) > 0, err
	}})
}
