// Package flock waits for locks of files that a context can end: see flock(2).
package flock

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// A lock is usually held for less than a millisecond. A thread in flock(2) cannot be cancelled: for each
// caller whose context ends, one would keep waiting. So the lock is tried again and again.
const (
	firstPoll = 100 * time.Microsecond
	lastPoll  = 5 * time.Millisecond
)

// Wait locks an open file; how is unix.LOCK_SH or unix.LOCK_EX. It returns the context's cause if that
// ends first.
func Wait(ctx context.Context, fd, how int) error {
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		err := unix.Flock(fd, how|unix.LOCK_NB)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}
