package record

import (
	"context"
	"errors"
	"io/fs"

	"github.com/allocnet/allocnet"
)

// fault is an error of the files of a state directory. That something is not there, or
// that a context has ended, is no fault.
func fault(dir string, err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, allocnet.ErrStateDir) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &allocnet.StateDirError{Dir: dir, Err: err}
}
