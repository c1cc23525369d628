package sdk

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/firewalld"
)

// finding is an error of CHECK that says what is not as it was set up. A plugin
// binary says it with an error code; so does this.
type finding struct{ error }

func (f finding) Unwrap() error { return f.error }

// As makes errors.As find a *types.Error, as libcni's users expect of a CHECK.
func (f finding) As(target any) bool {
	e, ok := target.(**types.Error)
	if ok {
		*e = types.NewError(types.ErrInternal, f.Error(), "")
	}
	return ok
}

// unavailable is an error of STATUS, which says that no ADD can be served.
type unavailable struct{ error }

func (u unavailable) Unwrap() error { return u.error }

// As makes errors.As find a *types.Error with the code that STATUS has for it.
func (u unavailable) As(target any) bool {
	e, ok := target.(**types.Error)
	if ok {
		*e = types.NewError(types.ErrPluginNotAvailable, u.Error(), "")
	}
	return ok
}

// stated gives an error of STATUS a code of STATUS, unless it has one or the context
// has ended.
func stated(ctx context.Context, err error) error {
	var coded *types.Error
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.As(err, &coded) && (coded.Code == types.ErrPluginNotAvailable || coded.Code == types.ErrLimitedConnectivity):
		return err
	}
	return unavailable{err}
}

// checked tells a CHECK that found something from one that could not be made.
func checked(ctx context.Context, err error) error {
	var coded *types.Error
	if err == nil || ctx.Err() != nil || errors.As(err, &coded) || isObstacle(err) {
		return err
	}
	return finding{err}
}

// isObstacle reports whether an error says nothing about the network: one of the
// system, other than that a thing is not there, or of a program that could not
// be run to its end.
func isObstacle(err error) bool {
	if errors.Is(err, syscall.EINTR) { // a dump that others interrupt all the time
		return true
	}
	if errors.Is(err, firewalld.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return !errors.Is(err, fs.ErrNotExist) && errno != syscall.ENODEV
	}
	var exit *exec.ExitError
	var start *exec.Error
	return errors.As(err, &exit) || errors.As(err, &start)
}
