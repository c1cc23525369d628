package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"regexp"
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
	)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, ErrInvalidResult), errors.Is(err, ErrNoAddress), errors.Is(err, ErrInUse),
		errors.Is(err, ErrBridgeFull), errors.Is(err, ErrSubnetTaken), errors.Is(err, ErrLimit), errors.Is(err, ErrPortTaken),
		errors.Is(err, lease.ErrNotInRange), errors.Is(err, ErrPluginNotInstalled), errors.Is(err, ErrUnprivileged):
		return false
	case errors.As(err, &syntax), errors.As(err, &mistyped): // the result is not JSON
		return false
	case errors.As(err, &e):
		return (e.Code < types.ErrIncompatibleCNIVersion || e.Code > types.ErrInvalidNetworkConfig) && !saysMissing(e)
	}
	var v *version.ErrorIncompatible
	return !errors.As(err, &v) && !isMissingFile(err)
}

// isMissingFile reports whether a file is missing that the configuration names, or the plugin itself. Files of
// the kernel come and go with its objects.
func isMissingFile(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && errors.Is(path, fs.ErrNotExist) && !ofKernel(path.Path)
}

// missingFile matches what a plugin says about a file that does not exist, or about a plugin to which it delegates.
var missingFile = regexp.MustCompile(`\b(?:open|stat|lstat|Statfs|readlink|fork/exec) "?(/[^\s":]+)"?: no such file or directory|failed to find plugin "`)

// saysMissing is isMissingFile for the error of a plugin binary, which arrives as text.
func saysMissing(e *types.Error) bool {
	said := missingFile.FindStringSubmatch(e.Msg + "; " + e.Details)
	return said != nil && !ofKernel(said[1])
}

func ofKernel(path string) bool {
	return strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/")
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
