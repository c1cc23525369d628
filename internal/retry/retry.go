// Package retry repeats lists and transactions that a change by another process
// interrupted.
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

// ErrChanged means that an object changed while it was being listed.
var ErrChanged = errors.New("changed meanwhile")

// Do calls act until no concurrent change interrupts it, for a limited time. It
// returns act's last error, joined with the context's if the context ended
// first.
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

// List calls list until no concurrent change interrupts it, for a limited time.
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
