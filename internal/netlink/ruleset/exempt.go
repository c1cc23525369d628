package ruleset

import (
	"context"
	"fmt"
	"slices"

	"github.com/allocnet/allocnet/internal/names"
)

// DelUnusedExemptions removes exemptions of networks of which no address is masqueraded,
// and reports how many. An Add that runs at the same time may lose the exemption of the
// first address of its network; Check finds that, and Restore repairs it.
func (r *Ruleset) DelUnusedExemptions(ctx context.Context) (int, error) {
	removed := 0
	for _, t := range tables {
		unused, err := r.unusedExemptions(ctx, t)
		if err == nil {
			err = r.apply(ctx, change{remove: unused})
		}
		if err != nil {
			return removed, fmt.Errorf("remove unused exemptions from masquerading: %w", err)
		}
		removed += len(unused)
	}
	return removed, nil
}

// unusedExemptions reads all masqueraded addresses, unless there are no exemptions.
func (r *Ruleset) unusedExemptions(ctx context.Context, t *table) ([]element, error) {
	unused, err := r.dumpElements(ctx, t.exempt, func(*element) bool { return true })
	if err != nil || len(unused) == 0 {
		return nil, err
	}
	addresses, err := r.dumpSet(ctx, t.masqueraded, func(names.Owner) bool { return true })
	if err != nil {
		return nil, err
	}
	n := t.addrLen
	return slices.DeleteFunc(unused, func(e element) bool {
		return slices.ContainsFunc(addresses, func(a element) bool {
			return within(a.key[:n], a.key[:n], e.key[:n], e.end[:n])
		})
	}), nil
}
