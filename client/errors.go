package client

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/allocnet/allocnet/internal/wire"
)

// Errors of the way to the daemon, for errors.Is.
var (
	// ErrUnavailable: no daemon listens on the socket. Nothing was done.
	ErrUnavailable = errors.New("allocnetd is not running")
	// ErrForbidden: the caller is neither root nor in a group that may use the
	// daemon. Nothing was done.
	ErrForbidden = wire.ErrForbidden
	// ErrConflists: the request brings network configurations along, which the
	// daemon takes from root only, unless its setting allow_conflists says otherwise.
	// It is an ErrForbidden as well. Nothing was done.
	ErrConflists = wire.ErrConflists
	// ErrBusy: the daemon has too much to do. Nothing was done; try again later.
	ErrBusy = wire.ErrBusy
)

// Remote reports whether an error came about in the daemon, which did what it was
// asked to.
func Remote(err error) bool { return wire.IsRemote(err) }

// transportError is why there is no answer.
func (c *Client) transportError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return fmt.Errorf("ask allocnetd at %s: %w", c.cfg.Socket, err)
}
