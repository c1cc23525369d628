package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/state/lease"
)

// transient reports whether a failed ADD may succeed if it is repeated. Codes 1 to 7 of
// the CNI specification are permanent errors of the request or the configuration; 11
// means "try again later".
func transient(err error) bool {
	var (
		e        *types.Error
		syntax   *json.SyntaxError
		mistyped *json.UnmarshalTypeError
		path     *fs.PathError
	)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, ErrInvalidResult), errors.Is(err, ErrNoAddress), errors.Is(err, ErrInUse),
		errors.Is(err, ErrBridgeFull), errors.Is(err, ErrSubnetTaken), errors.Is(err, ErrLimit), errors.Is(err, ErrPortTaken),
		errors.Is(err, lease.ErrNotInRange):
		return false
	case errors.As(err, &syntax), errors.As(err, &mistyped): // the result is not JSON
		return false
	case errors.As(err, &e):
		return e.Code < types.ErrIncompatibleCNIVersion || e.Code > types.ErrInvalidNetworkConfig
	case errors.As(err, &path) && errors.Is(path, fs.ErrNotExist) && !strings.HasPrefix(path.Path, "/proc/"): // a file that the configuration names
		return false
	}
	var v *version.ErrorIncompatible
	return !errors.As(err, &v)
}

// attempts collects the distinct errors of the attempts of one Setup, in order.
type attempts struct {
	count int
	errs  []error
}

func (a *attempts) add(err error) {
	a.count++
	for _, earlier := range a.errs {
		if earlier.Error() == err.Error() {
			return
		}
	}
	a.errs = append(a.errs, err)
}

func (a *attempts) join(more ...error) error {
	return errors.Join(append(a.errs, more...)...)
}

// sleeper waits for d. If the context ends first, it returns the error of the context.
type sleeper func(ctx context.Context, d time.Duration) error

// sleep is the sleeper of New.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
