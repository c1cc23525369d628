package sock

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// Error is the kernel's answer to a request that it refused. errors.Is finds the errno.
type Error struct {
	// Request is the label of the request, which may be empty.
	Request string
	Errno   unix.Errno
}

// Error implements error.
func (e *Error) Error() string {
	if e.Request == "" {
		return e.Errno.Error()
	}
	return e.Request + ": " + e.Errno.Error()
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// Errors are the errors of one transaction, of which no change was made. errors.Is
// finds the errno of each.
type Errors []*Error

// Error implements error.
func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Error()
	}
	return strings.Join(texts, "; ")
}

// Is reports whether one of the errors has the errno target.
func (e Errors) Is(target error) bool {
	for _, one := range e {
		if errors.Is(one.Errno, target) {
			return true
		}
	}
	return false
}
