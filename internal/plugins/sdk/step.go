package sdk

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Step is one part of an ADD. Do leaves nothing when it fails; Undo takes back
// what it did, and is nil where nothing has to be taken back.
type Step struct {
	Name string
	Do   func(context.Context) error
	Undo func(context.Context) error
}

// undoTime is what taking back may last after the caller's context has ended.
const undoTime = 3 * time.Second

// Run does the steps in order. When one fails, those before it are undone, last one first, also when the context has ended; the error holds the
// first cause first.
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

func undo(ctx context.Context, steps []Step) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
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
