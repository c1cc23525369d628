package configurator

import (
	"context"
	"errors"

	"github.com/allocnet/allocnet/internal/names"
)

// sweepPolicies removes the attachments in the store of policies that no record has, for example
// because the record was lost, policies without attachments, and those in the kernel whose state
// was lost.
func (c *Configurator) sweepPolicies(ctx context.Context) error {
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
	records, err := c.store.List() // after the members: a record is older than its member
	if err != nil {
		return err
	}
	recorded := map[string]bool{}
	for _, r := range records {
		recorded[r.Container()] = true
	}
	var errs []error
	for _, m := range members {
		if !recorded[m.Owner.ID] {
			errs = append(errs, c.sweepMember(ctx, m.Owner))
		}
	}
	errs = append(errs, c.native.CollectPolicies(ctx, func(names.Owner) bool { return false }))
	return errors.Join(append(errs, c.native.CollectLostPolicies(ctx))...)
}

// sweepMember removes one attachment, unless its ID is set up meanwhile.
func (c *Configurator) sweepMember(ctx context.Context, owner names.Owner) error {
	unlock, err := c.lock(ctx, owner.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if c.hasRecord(owner.ID) {
		return nil
	}
	return c.native.CollectPolicies(ctx, func(o names.Owner) bool { return o == owner })
}
