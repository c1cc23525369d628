package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/allocnet/allocnet/internal/wire"
)

// Errors of the connection to the daemon and of its access control, for errors.Is.
var (
	// ErrUnavailable: the daemon is not running. Nothing was changed.
	ErrUnavailable = errors.New("allocnetd is not running")
	// ErrNoAnswer: the daemon took the request and did not answer: it ended, or it hangs. The
	// result of the operation is not known. errors.Is also finds context.DeadlineExceeded if
	// the time limit of the call was exceeded.
	ErrNoAnswer = errors.New("no answer from allocnetd")
	// ErrForbidden: the caller is neither root nor a member of a group that may use the
	// daemon. Nothing was changed.
	ErrForbidden = wire.ErrForbidden
	// ErrConflists: the request contains network configurations, which the daemon accepts
	// only from root, unless its setting allow_conflists permits them. errors.Is also finds
	// ErrForbidden. Nothing was changed.
	ErrConflists = wire.ErrConflists
	// ErrBusy: the daemon has too many concurrent requests. Nothing was changed; try again
	// later.
	ErrBusy = wire.ErrBusy
)

// Remote reports whether the daemon returned the error. Otherwise the error occurred in the
// client or on the connection.
func Remote(err error) bool { return wire.IsRemote(err) }

// transportError returns the error for a request without a response.
func (c *Client) transportError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	case errors.Is(err, syscall.EAGAIN): // the queue of its socket is full
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w: ask the daemon at %s: %w", ErrNoAnswer, c.cfg.Socket, err)
	}
	return fmt.Errorf("ask allocnetd at %s: %w", c.cfg.Socket, err)
}
