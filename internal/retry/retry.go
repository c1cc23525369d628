// Package retry repeats what others got in the way of: lists that changed while
// they were read, and transactions that met another.
package retry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	retries  = 30
	maxPause = 20 * time.Millisecond
)

// ErrChanged says that something changed while it was being listed.
var ErrChanged = errors.New("changed meanwhile")

// Do lets act try again for as long as others are changing what it lists or
// commits, within reason. It returns act's last error, with the context's where
// that ended first.
func Do(ctx context.Context, act func() error) error {
	pause := time.Millisecond
	for attempt := 1; ; attempt++ {
		err := act()
		if attempt == retries || !isTransient(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// List has list called again for as long as others are changing what it lists, within reason.
func List[T any](list func() ([]T, error)) (items []T, err error) {
	err = Do(context.Background(), func() (err error) {
		items, err = list()
		return err
	})
	return items, err
}

func isTransient(err error) bool {
	for _, transient := range []error{
		ErrChanged, netlink.ErrDumpInterrupted, unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ERESTART,
	} {
		if errors.Is(err, transient) {
			return true
		}
	}
	return false
}
