package sdk

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Step is one step of an ADD. If Do fails, it has undone its own changes. Undo
// reverts Do; it is nil if there is nothing to revert.
type Step struct {
	Name string
	Do   func(context.Context) error
	Undo func(context.Context) error
}

// undoTime is how long undoing may take after the caller's context has ended.
const undoTime = 3 * time.Second

// Run runs the steps in order. If a step fails, Run undoes the previous ones in
// reverse order, even if the context has ended. The cause comes first in the
// error.
func Run(ctx context.Context, steps ...Step) error {
	for i, step := range steps {
		err := ctx.Err()
		if err == nil {
			err = step.Do(ctx)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", step.Name, err), undo(ctx, steps[:i]))
		}
	}
	return nil
}

// UndoContext returns the context in which a step that failed undoes its own changes. It does
// not end with ctx, but soon.
func UndoContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), undoTime)
}

// undo undoes steps in reverse order and joins the errors.
func undo(ctx context.Context, steps []Step) error {
	ctx, cancel := UndoContext(ctx)
	defer cancel()
	var errs []error
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].Undo == nil {
			continue
		}
		if err := steps[i].Undo(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", steps[i].Name, err))
		}
	}
	return errors.Join(errs...)
}
