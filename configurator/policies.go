package configurator

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/policystate"
)

// policyType is the plugin whose leftovers leavePolicies removes: cleanup does not know them.
const policyType = "policy"

// leavePolicies removes the attachments of a target from the store of policies, and the policies
// that no other allocation has.
func (c *Configurator) leavePolicies(ctx context.Context, t cleanup.Target) error {
	return c.native.CollectPolicies(ctx, func(o names.Owner) bool {
		return o.ID == t.ID && slices.ContainsFunc(t.Attachments, func(a cleanup.Attachment) bool {
			return a.Network == o.Network && a.IfName == o.IfName
		})
	})
}

// sweepPolicies removes the policies without attachments, and those in the kernel whose state was lost and
// that nothing uses. Before that it removes the attachments that no record has, for example because the
// record was lost, unless they are kept by the ID of their container or allocation. Without kept it keeps
// all: it cannot know whether they still run.
func (c *Configurator) sweepPolicies(ctx context.Context, kept []string) error {
	members, err := c.policies.Members("")
	if err != nil {
		return err
	}
	policies, err := c.policies.Policies()
	if err != nil {
		return err
	}
	if len(members)+len(policies) == 0 {
		return c.native.CollectLostPolicies(ctx)
	}
	recorded, err := c.containers() // after the members: a record is older than its member
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range members {
		if kept != nil && !recorded[m.Owner.ID] && !slices.Contains(kept, m.Owner.ID) && !slices.Contains(kept, m.Allocation) {
			errs = append(errs, c.sweepMember(ctx, m))
		}
	}
	errs = append(errs, c.native.CollectPolicies(ctx, func(names.Owner) bool { return false }))
	return errors.Join(append(errs, c.native.CollectLostPolicies(ctx))...)
}

// containers returns the container IDs of all records.
func (c *Configurator) containers() (map[string]bool, error) {
	records, err := c.store.List()
	ids := map[string]bool{}
	for _, r := range records {
		ids[r.Container()] = true
	}
	return ids, err
}

// sweepMember removes one attachment, unless its allocation is set up meanwhile. The ID of its
// container may be another one than that of the allocation.
func (c *Configurator) sweepMember(ctx context.Context, m *policystate.Member) error {
	unlock, err := c.lock(ctx, cmp.Or(m.Allocation, m.Owner.ID))
	if err != nil {
		return err
	}
	defer unlock()
	if recorded, err := c.containers(); err != nil || recorded[m.Owner.ID] {
		return err
	}
	return c.native.CollectPolicies(ctx, func(o names.Owner) bool { return o == m.Owner })
}
