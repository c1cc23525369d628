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

// finding is an error of CHECK that reports a difference from the state after
// ADD. It has an error code, as the error of a plugin binary does.
type finding struct{ error }

func (f finding) Unwrap() error { return f.error }

// As makes errors.As find a *types.Error, which users of libcni expect from
// CHECK.
func (f finding) As(target any) bool {
	e, ok := target.(**types.Error)
	if ok {
		*e = types.NewError(types.ErrInternal, f.Error(), "")
	}
	return ok
}

// Unavailable returns an error with the code for a plugin that cannot serve an ADD.
func Unavailable(err error) error { return unavailable{err} }

// unavailable is an error of STATUS or ADD: the plugin cannot serve an ADD.
type unavailable struct{ error }

func (u unavailable) Unwrap() error { return u.error }

// As makes errors.As find a *types.Error with the code for STATUS.
func (u unavailable) As(target any) bool {
	e, ok := target.(**types.Error)
	if ok {
		*e = types.NewError(types.ErrPluginNotAvailable, u.Error(), "")
	}
	return ok
}

// Invalid returns an error about a configuration with the code for an invalid one, so that ADD is
// not repeated. It returns nil, an UnknownKeyError, and an error with another code unchanged; but
// the code for an invalid environment becomes that for an invalid configuration.
func Invalid(err error) error {
	var coded *types.Error
	if err == nil || IsUnknownKey(err) || errors.As(err, &coded) && coded.Code != types.ErrInvalidEnvironmentVariables {
		return err
	}
	return invalid{err}
}

// invalid is an error about a configuration.
type invalid struct{ error }

func (i invalid) Unwrap() error { return i.error }

// As makes errors.As find a *types.Error with the code for an invalid configuration.
func (i invalid) As(target any) bool {
	e, ok := target.(**types.Error)
	if ok {
		*e = types.NewError(types.ErrInvalidNetworkConfig, i.Error(), "")
	}
	return ok
}

// statusError returns the error of a command. An error of STATUS gets a code of
// STATUS, unless it has one or the context has ended.
func statusError(ctx context.Context, command string, err error) error {
	var coded *types.Error
	switch {
	case command != "STATUS" || err == nil || ctx.Err() != nil:
		return err
	case errors.As(err, &coded) && (coded.Code == types.ErrPluginNotAvailable || coded.Code == types.ErrLimitedConnectivity):
		return err
	}
	return unavailable{err}
}

// checkError makes an error of CHECK a finding, unless the check could not be made.
func checkError(ctx context.Context, err error) error {
	var coded *types.Error
	if err == nil || ctx.Err() != nil || errors.As(err, &coded) || isObstacle(err) {
		return err
	}
	return finding{err}
}

// isObstacle reports whether an error says nothing about the network: a system
// error other than a missing object, or a program that could not be run to
// completion.
func isObstacle(err error) bool {
	if errors.Is(err, syscall.EINTR) { // changes by other processes interrupt the dump each time
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
