package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// transient says whether an ADD that failed with err may succeed when it is
// tried again. Codes 1 to 7 of the CNI specification say that the request or
// the configuration is wrong, which does not pass; 11 asks to try again.
func transient(err error) bool {
	var (
		e        *types.Error
		syntax   *json.SyntaxError
		mistyped *json.UnmarshalTypeError
	)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, ErrInvalidResult), errors.Is(err, ErrNoAddress), errors.Is(err, ErrInUse),
		errors.Is(err, ErrBridgeFull), errors.Is(err, ErrLimit), errors.Is(err, ErrPortTaken):
		return false
	case errors.As(err, &syntax), errors.As(err, &mistyped): // the result is no JSON
		return false
	case errors.As(err, &e):
		return e.Code < types.ErrIncompatibleCNIVersion || e.Code > types.ErrInvalidNetworkConfig
	}
	var v *version.ErrorIncompatible
	return !errors.As(err, &v)
}

// attempts collects the errors of all attempts of one Setup, the first one first
// and none twice.
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

// sleeper waits for a time or until the context ends, and then returns its error.
type sleeper func(ctx context.Context, d time.Duration) error

// sleep waits for d or until the context ends.
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
