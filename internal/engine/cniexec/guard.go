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
	// gracePeriod is how long go-cni may take to notice the end of the context, and the
	// time between two attempts to kill processes.
	gracePeriod = 50 * time.Millisecond
	// killPeriod is how long the processes of plugins may take to end after that.
	killPeriod = time.Second
)

// ErrAbandoned: a plugin neither ended nor could be killed. go-cni still waits for it
// in the background.
var ErrAbandoned = errors.New("plugin could not be stopped")

// guard runs one go-cni operation and returns shortly after the context ends, even if a
// plugin has not ended. The runner kills only the process group of a plugin; guard then
// also kills its processes in other process groups. It finds them by the allocation and
// the command, so it does not kill a process that an earlier ADD left running on
// purpose. While go-cni runs, the path of the namespace stays valid.
func guard(ctx context.Context, r *engine.Request, command string, op func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- noPanic(func() error { return r.Hold(func() error { return op(ctx) }) }) }()
	select {
	case err := <-done:
		return withCause(ctx, err)
	case <-ctx.Done():
	}
	var killErr error
	for end := time.After(gracePeriod + killPeriod); ; {
		select {
		case err := <-done:
			return withCause(ctx, err)
		case <-end:
			return errors.Join(fmt.Errorf("%w: %w", ErrAbandoned, ctx.Err()), killErr)
		case <-time.After(gracePeriod):
			killErr = pluginexec.KillOrphans(r.Work(), command)
		}
	}
}

// withCause adds the error of the context to the error of a plugin that was killed, and
// truncates long errors.
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

// maxErrorText bounds the text of an error, because libcni includes the whole output of
// a plugin.
const maxErrorText = 4 << 10

type clippedError struct{ err error }

func (e *clippedError) Error() string { return e.err.Error()[:maxErrorText] + "..." }
func (e *clippedError) Unwrap() error { return e.err }

// noPanic turns a panic into an error. go-cni panics on some invalid results.
func noPanic(op func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: go-cni panicked: %v", engine.ErrInvalidResult, p)
		}
	}()
	return op()
}
