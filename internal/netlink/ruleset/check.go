package ruleset

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Check finds by key whether all elements are in, as the owner's and with the
// right value, and whether the tables that they are in are complete; ErrMissing
// names what is not.
func (r *Ruleset) Check(ctx context.Context, e *Elements) error {
	list, err := e.elements()
	if err != nil {
		return fmt.Errorf("check elements of %s: %w", e.Owner, err)
	}
	missing, err := r.missing(ctx, list)
	if err != nil {
		return fmt.Errorf("check elements of %s: %w", e.Owner, err)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s", ErrMissing, strings.Join(missing, ", "))
	}
	return nil
}

func (r *Ruleset) missing(ctx context.Context, list []element) ([]string, error) {
	var missing []string
	for _, t := range tables {
		if !t.used(list) {
			continue
		}
		is, err := r.inspect(ctx, t)
		if err != nil {
			return nil, err
		}
		missing = append(missing, t.problems(is)...)
	}
	found, err := r.lookUp(ctx, list)
	if err != nil {
		return nil, err
	}
	standing, err := r.standing(ctx, list, found)
	if err != nil {
		return nil, err
	}
	for i := range list {
		want, is := &list[i], &found[i]
		switch {
		case standing[i]:
		case is.set == nil:
			missing = append(missing, want.String())
		case want.set.interval && is.covers(want):
		case is.value == want.value && is.owner == want.owner && (want.zone == "" || is.zone == want.zone):
		case is.owner != "":
			missing = append(missing, fmt.Sprintf("%s (there is %s of %s)", want, is, is.owner))
		default:
			missing = append(missing, fmt.Sprintf("%s (there is %s)", want, is))
		}
	}
	return missing, nil
}

// standing finds those of the mappings that wait as they should.
func (r *Ruleset) standing(ctx context.Context, list, found []element) (map[int]bool, error) {
	var ports []element
	var at []int
	for i := range list {
		if waits(&list[i], &found[i]) {
			ports, at = append(ports, list[i]), append(at, i)
		}
	}
	queues, err := r.queues(ctx, ports)
	standing := make(map[int]bool, len(at))
	for i := range queues {
		standing[at[i]] = slices.Contains(queues[i], ports[i])
	}
	return standing, err
}
