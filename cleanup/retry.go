package cleanup

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

// errChanged says that something changed while it was being listed.
var errChanged = errors.New("changed meanwhile")

// retry lets act try again for as long as others are changing what it lists or commits, within reason.
func retry(ctx context.Context, act func() error) error {
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

func isTransient(err error) bool {
	for _, transient := range []error{
		errChanged, netlink.ErrDumpInterrupted, unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ERESTART,
	} {
		if errors.Is(err, transient) {
			return true
		}
	}
	return false
}

// isUnsupported reports whether the kernel does not have what was asked for, so that there is nothing in it.
func isUnsupported(err error) bool {
	for _, missing := range []error{unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, missing) {
			return true
		}
	}
	return false
}
