package plugin

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
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

// checked tells a CHECK that found something from one that could not be made:
// an error of the system other than that a thing is not there, or the end of the
// context, says nothing about the network.
func checked(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	var errno syscall.Errno
	var coded *types.Error
	if errors.As(err, &coded) || errors.As(err, &errno) && !errors.Is(err, fs.ErrNotExist) && errno != syscall.ENODEV {
		return err
	}
	return finding{err}
}
