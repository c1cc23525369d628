package ruleset

import (
	"context"
	"fmt"
	"slices"

	"github.com/allocnet/allocnet/internal/names"
)

// Handover gives the elements of one owner to another, and adds further elements of the new
// owner, in one transaction: old are the former owner's elements, now those of the new one,
// with the same keys and values where they are in old as well. If one of the old elements is
// missing, or another owner has one of the new ones, Handover changes nothing, and errors.Is
// finds ENOENT or EEXIST. It returns a *PortTakenError as Add does.
func (r *Ruleset) Handover(ctx context.Context, old, now []*Elements) error {
	var c change
	shared := map[element]bool{}
	for _, e := range old {
		list, err := e.elements()
		if err != nil {
			return fmt.Errorf("hand over elements of %s: %w", e.Owner, err)
		}
		for _, one := range list {
			if one.set.shared {
				shared[one] = true
			} else {
				c.remove = append(c.remove, one)
			}
		}
	}
	var owner names.Owner
	for _, e := range now {
		owner = e.Owner
		list, err := e.elements()
		if err == nil {
			err = r.checkEverywhere(ctx, list)
		}
		if err != nil {
			return fmt.Errorf("hand over elements to %s: %w", owner, err)
		}
		c.add = append(c.add, slices.DeleteFunc(list, func(one element) bool { return shared[one] })...)
	}
	if c.empty() {
		return nil
	}
	if err := r.apply(ctx, c); err != nil {
		return fmt.Errorf("hand over elements to %s: %w", owner, err)
	}
	return nil
}
