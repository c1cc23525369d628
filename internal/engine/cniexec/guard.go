package cniexec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
)

const (
	// polite is how long go-cni may take to notice the end of the context.
	polite = 50 * time.Millisecond
	// lingering is how long the plugins' processes may take to die.
	lingering = time.Second
)

// ErrAbandoned: a plugin could be neither waited for nor killed; go-cni goes on
// waiting for it in the background.
var ErrAbandoned = errors.New("plugin could not be stopped")

// guard runs one go-cni operation and returns shortly after the context ends,
// whatever the plugins do: the runner kills only the process group of a plugin. All
// that work on this command for the allocation are killed then, in whatever group;
// what an earlier ADD left running on purpose is not. As long as go-cni is at work,
// the path of the namespace leads there.
func guard(ctx context.Context, r *engine.Request, command string, op func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- noPanic(func() error { return r.Hold(func() error { return op(ctx) }) }) }()
	select {
	case err := <-done:
		return withCause(ctx, err)
	case <-ctx.Done():
	}
	var killErr error
	for end := time.After(polite + lingering); ; {
		select {
		case err := <-done:
			return withCause(ctx, err)
		case <-end:
			return errors.Join(fmt.Errorf("%w: %w", ErrAbandoned, ctx.Err()), killErr)
		case <-time.After(polite):
			killErr = pluginexec.KillOrphans(r.Work(), command)
		}
	}
}

// withCause adds the end of the context to the error of a plugin that it
// killed, and shortens what a plugin said at great length.
func withCause(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if len(err.Error()) > maxErrorText {
		return &clippedError{err}
	}
	return err
}

// maxErrorText is where the text of an error ends; libcni puts all that a plugin
// wrote to stdout into it.
const maxErrorText = 4 << 10

type clippedError struct{ err error }

func (e *clippedError) Error() string { return e.err.Error()[:maxErrorText] + "..." }
func (e *clippedError) Unwrap() error { return e.err }

// noPanic turns a panic into an error: go-cni reads results that it has not
// fully checked.
func noPanic(op func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: go-cni panicked: %v", engine.ErrInvalidResult, p)
		}
	}()
	return op()
}
