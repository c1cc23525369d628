package configurator

import (
	"errors"
	"slices"

	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/record"
)

// isHeld reports whether an ADD has failed because another allocation that is set up has a
// requested address: it does not become free by waiting. The address of an allocation that is
// being removed does, and so may an address whose owner has no record.
func (c *Configurator) isHeld(p *plan.Plan, addErr error) bool {
	if !errors.Is(addErr, ErrAddressUnavailable) {
		return false
	}
	wanted := plan.RequestedAddresses(p.Record)
	if len(wanted) == 0 {
		return false
	}
	records, _ := c.store.List() // of those that cannot be read, nothing is known
	return slices.ContainsFunc(records, func(r *record.Record) bool {
		return r.ID != p.ID && r.Phase == record.Ready && !r.FormerBoot && plan.HasAddress(r, p.Record, wanted)
	})
}

// isFull reports whether an ADD has failed because a network has no free address, and no allocation in its networks
// is being removed: an address becomes free only when another allocation ends.
func (c *Configurator) isFull(p *plan.Plan, addErr error) bool {
	if !errors.Is(addErr, ErrExhausted) {
		return false
	}
	ofPlan := func(a record.Attachment) bool {
		return slices.ContainsFunc(p.Attachments, func(b record.Attachment) bool { return a.Network == b.Network })
	}
	records, _ := c.store.List()
	return !slices.ContainsFunc(records, func(r *record.Record) bool {
		return r.ID != p.ID && r.Phase == record.Deleting && slices.ContainsFunc(r.Attachments, ofPlan)
	})
}
