package ruleset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Replace removes those of the elements in before that are not in after, and adds those in
// after that are missing, in one transaction: a packet meets either all of the former or all
// of the latter. Both belong to one owner. Replace makes missing tables and is idempotent. It
// returns a *PortTakenError or ErrAddressTaken as Add does; then nothing has changed.
func (r *Ruleset) Replace(ctx context.Context, before, after *Elements) error {
	gone, err := before.listTo(&lister{owner: before.Owner.String(), removing: true, replacing: true})
	if err != nil {
		return fmt.Errorf("replace elements of %s: %w", before.Owner, err)
	}
	list, err := after.elements()
	if err == nil {
		_, err = r.checkEverywhere(ctx, list, r.termsOf(after))
	}
	if err == nil {
		stays := make(map[place]bool, len(list))
		for i := range list {
			stays[list[i].place()] = true
		}
		err = r.replace(ctx, list, r.termsOf(after), slices.DeleteFunc(gone, func(e element) bool { return e.set.shared || stays[e.place()] }))
	}
	if err == nil {
		err = r.restoreRulesOf(ctx, list)
	}
	if err != nil {
		return fmt.Errorf("replace elements of %s: %w", after.Owner, err)
	}
	return nil
}

// replace looks again after a change if attachments share host ports, because another one may
// have begun to wait for a port that was freed.
func (r *Ruleset) replace(ctx context.Context, list []element, on terms, gone []element) error {
	var err error
	for range attempts {
		var c change
		if c, err = r.settle(ctx, list, gone, on); err != nil {
			return err
		}
		if c.empty() {
			return nil
		}
		switch err = r.apply(ctx, c); {
		case err == nil:
			in, err := r.shared(ctx, c.remove)
			if err != nil || len(in) == 0 && !c.waits() {
				return err
			}
		case errors.Is(err, unix.ENOENT):
			if err := r.ensure(ctx, list); err != nil {
				return err
			}
		case !errors.Is(err, unix.EEXIST):
			return err
		}
	}
	return err
}
