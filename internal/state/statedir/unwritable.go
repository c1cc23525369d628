package statedir

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
)

// Unwritable returns an error of a file that was to be written. If nothing can be written to
// its file system, the error names the file, and errors.Is finds allocnet.ErrStateDir.
func Unwritable(path string, err error) error {
	for _, cause := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS} {
		if errors.Is(err, cause) {
			var named *fs.PathError
			if !errors.As(err, &named) {
				err = &fs.PathError{Op: "write", Path: path, Err: err}
			}
			return &allocnet.StateDirError{Dir: filepath.Dir(path), Err: err}
		}
	}
	return err
}
