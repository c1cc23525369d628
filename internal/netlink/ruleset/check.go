package ruleset

import (
	"context"
	"fmt"
	"strings"
)

// Check looks up all elements by their keys. It returns ErrMissing if one does not
// exist, or has another owner or value, or if a table that the elements belong to is
// incomplete. The error text names all that is missing.
func (r *Ruleset) Check(ctx context.Context, e *Elements) error {
	list, err := e.elements()
	if err != nil {
		return fmt.Errorf("check elements of %s: %w", e.Owner, err)
	}
	missing, err := r.missing(ctx, list)
	if err != nil {
		return fmt.Errorf("check elements of %s: %w", e.Owner, err)
	}
	return missingError(missing)
}

// missingError returns ErrMissing with the names of what is missing, or nil.
func missingError(missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrMissing, strings.Join(missing, ", "))
}

func (r *Ruleset) missing(ctx context.Context, list []element) ([]string, error) {
	var missing []string
	for _, t := range every {
		if !t.used(list) {
			continue
		}
		problems, err := r.problemsOf(ctx, t)
		if err != nil {
			return nil, err
		}
		missing = append(missing, problems...)
	}
	found, err := r.lookUp(ctx, list)
	if err != nil {
		return nil, err
	}
	waiting, err := r.waiting(ctx, list, found)
	if err != nil {
		return nil, err
	}
	for i := range list {
		want, is := &list[i], &found[i]
		switch {
		case waiting[i]:
		case is.set == nil:
			missing = append(missing, want.String())
		case want.set.interval && is.covers(want):
		case !want.set.interval && is.value == want.value && is.owner == want.owner && (want.zone == "" || is.zone == want.zone):
		case is.owner != "":
			missing = append(missing, fmt.Sprintf("%s (there is %s of %s)", want, is, is.owner))
		default:
			missing = append(missing, fmt.Sprintf("%s (there is %s)", want, is))
		}
	}
	return missing, nil
}
