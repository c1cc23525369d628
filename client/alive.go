package client

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// alivePeriod is how long a request without a deadline lasts before the client asks
	// whether the daemon still answers, and again after each answer.
	alivePeriod = 10 * time.Second
	// aliveTime bounds that question.
	aliveTime = 10 * time.Second
)

// watched returns a context for a request without a deadline. It ends with the cause
// ErrNoAnswer if the daemon stops answering: an operation may take long, but a daemon that
// is stopped or deadlocked would never end it.
func (c *Client) watched(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(c.alivePeriod, func() {
		for ctx.Err() == nil {
			if err := c.alive(ctx); err != nil {
				cancel(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(c.alivePeriod):
			}
		}
	})
	return ctx, func() { timer.Stop(); cancel(nil) }
}

// alive returns an error if the daemon accepts a request and does not answer in time. Any
// other failure is not one: a daemon that shuts down no longer listens, but ends what it
// has begun.
func (c *Client) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.aliveTime)
	defer cancel()
	answer, err := roundTrip(ctx, c.cfg.Socket, &request{method: "GET", path: "/healthz"})
	if err == nil {
		return answer.body.Close()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: the daemon at %s has not answered for %s", ErrNoAnswer, c.cfg.Socket, c.aliveTime)
	}
	return nil
}

// hung returns the cause of a context of watched if the daemon has stopped answering, or err.
func hung(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrNoAnswer) {
		return cause
	}
	return err
}
