package confmanager

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
)

// ownMode lets only root read the file, which may name sockets and directories of a
// privileged daemon.
const ownMode = 0o600

// maxOwn is the maximum size of the file, far above that of the manager's content.
const maxOwn = 1 << 20

// ownFile is the file that the manager writes.
type ownFile struct {
	path string
	kept bool // it had the wanted content at the last look
}

// keep writes want unless the file has that content, and reports whether it has written.
func (f *ownFile) keep(want []byte) (written bool, err error) {
	data, intact := f.read()
	f.kept = intact && string(data) == string(want)
	if f.kept {
		return false, nil
	}
	if err := f.write(want); err != nil {
		return false, fmt.Errorf("write own file %q: %w", f.path, remedy(err))
	}
	f.kept = true
	return true, nil
}

// read returns the content of the file. intact reports whether it is a regular file
// with the user of this process and ownMode: another owner could change what runtimes
// run as root. read does not block on a pipe and does not follow a symlink.
func (f *ownFile) read() (data []byte, intact bool) {
	file, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, false
	}
	data, err = io.ReadAll(io.LimitReader(file, maxOwn))
	if err != nil {
		return nil, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return data, ok && int(stat.Uid) == os.Geteuid() && info.Mode() == ownMode
}

// Wrote reports whether a manager has written a file.
func Wrote(path string) bool {
	f := ownFile{path: path}
	data, intact := f.read()
	return intact && noteOf(data) != nil
}

// retire removes a file that a manager with that owner has written under another name.
func retire(path, owner string) (removed bool, err error) {
	f := ownFile{path: path}
	data, intact := f.read()
	if m := noteOf(data); !intact || m == nil || m.Owner != owner {
		return false, nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, nil
}

// write replaces the file atomically. No runtime reads the temporary file, because a number
// follows .conflist in its name.
func (f *ownFile) write(data []byte) error {
	temp, err := renameio.NewPendingFile(f.path, renameio.WithTempDir(filepath.Dir(f.path)), renameio.WithStaticPermissions(ownMode))
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	if err == nil {
		err = temp.CloseAtomicallyReplace()
	}
	return errors.Join(err, temp.Cleanup())
}

// remedy adds the next step to an error of write. It omits the name of the temporary file,
// so that the error of repeated attempts is the same.
func remedy(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	switch errno {
	case syscall.ENOENT:
		return fmt.Errorf("%w: create the directory", errno)
	case syscall.EISDIR, syscall.EEXIST:
		return fmt.Errorf("%w: remove the directory at its path", errno)
	case syscall.ENOSPC, syscall.EDQUOT:
		return fmt.Errorf("%w: free some space", errno)
	}
	return fmt.Errorf("%w: make the directory writable", errno)
}

// isTemp reports whether a path is a temporary file of the manager, whose name ends in
// a number. A change of such a file must not cause a look, or a failing write would be
// repeated for ever.
func (f *ownFile) isTemp(path string) bool {
	dir, name := filepath.Split(f.path)
	number, ok := strings.CutPrefix(path, dir+"."+name)
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// removeTemps removes temporary files of a killed process.
func (f *ownFile) removeTemps() {
	dir := filepath.Dir(f.path)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); e.Type().IsRegular() && f.isTemp(path) {
			_ = os.Remove(path)
		}
	}
}
