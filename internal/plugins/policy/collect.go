package policy

import (
	"context"
	"errors"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Collect removes the members whose owners are stale, with their elements, and then the policies
// that have no users.
func Collect(ctx context.Context, host *sdk.Host, stale func(names.Owner) bool) error {
	if !host.Policies.Exists() {
		return nil
	}
	s, err := host.Policies.Share(ctx)
	if err != nil {
		return err
	}
	members, err := s.Members("")
	errs := []error{err}
	dropped := false
	var gone []string
	for _, m := range members {
		if stale(m.Owner) {
			unused, err := drop(ctx, host, s, m, m.Owner)
			if errs, dropped = append(errs, err), true; len(unused) > 0 {
				gone = append(gone, m.Key)
			}
		}
	}
	s.Unlock()
	if dropped {
		errs = append(errs, host.DelOwned(ctx, stale))
	}
	return errors.Join(append(errs, sweep(ctx, host, gone...))...)
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
	return host.Rules.DelOrphans(ctx, instance, ids, selections)
}
