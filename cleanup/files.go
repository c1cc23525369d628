package cleanup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/smallfile"
)

// ownFile is a file of an allocation in a directory with files of other allocations.
type ownFile struct {
	kind               Kind
	dir, name, network string
}

func (f ownFile) path() string { return filepath.Join(f.dir, f.name) }

func (f ownFile) leftover() Leftover {
	return Leftover{Kind: f.kind, Network: f.network, Where: f.dir, Object: f.name}
}

// leftoverFiles converts files to leftovers.
func leftoverFiles(files []ownFile) []Leftover {
	var list []Leftover
	for _, f := range files {
		list = append(list, f.leftover())
	}
	return list
}

// removeFiles removes files and returns those that it removed. It continues after
// errors and joins them.
func removeFiles(files []ownFile) ([]Leftover, error) {
	var (
		removed []ownFile
		errs    []error
	)
	for _, f := range files {
		err := os.Remove(f.path())
		switch {
		case err == nil:
			removed = append(removed, f)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf("remove %s: %w", f.kind, err))
		}
	}
	return leftoverFiles(removed), errors.Join(errs...)
}

// isNone reports whether reading a file failed because it no longer exists or because
// no plugin can have written it.
func isNone(err error) bool {
	return slices.ContainsFunc([]error{fs.ErrNotExist, smallfile.ErrNotRegular, smallfile.ErrTooLarge, unix.ELOOP},
		func(none error) bool { return errors.Is(err, none) })
}
