package record

import (
	"context"
	"errors"
	"io/fs"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/exhausted"
)

// fault wraps an error of a file in a *allocnet.StateDirError. It returns errors of
// missing files and of ended contexts unchanged, and those of an exhausted host as allocnet.ErrLimit.
func fault(dir string, err error) error {
	if exhausted.Is(err) {
		return exhausted.Limit(err)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, allocnet.ErrStateDir) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &allocnet.StateDirError{Dir: dir, Err: err}
}
