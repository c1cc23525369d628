// Package exhausted recognises errors of the kernel that mean that this process or the host has no
// file descriptor or memory left. They say nothing about the object of the failed call, and the call
// may succeed later.
package exhausted

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
)

var causes = []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS}

// Is reports whether an error has such a cause.
func Is(err error) bool {
	return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
}

// Limit returns an error with such a cause as allocnet.ErrLimit, and others as they are.
func Limit(err error) error {
	if !Is(err) || errors.Is(err, allocnet.ErrLimit) {
		return err
	}
	return fmt.Errorf("%w: %w", allocnet.ErrLimit, err)
}
