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

// ownMode keeps the file from everybody but root, like whatever else may name
// sockets and directories of a privileged daemon.
const ownMode = 0o600

// maxOwn is far above what we write.
const maxOwn = 1 << 20

// ownFile is the file that we write.
type ownFile struct {
	path string
	kept bool // it held what it has to when last looked at
}

// keep writes want unless the file holds it already, and reports whether it did.
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

// read returns what the file holds, and whether it is a plain file of our user and
// mode: whoever owns it could change what runtimes do as root. It does not wait for a pipe, nor follow a symlink.
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

// Wrote reports whether a file is as a manager writes it.
func Wrote(path string) bool {
	f := ownFile{path: path}
	data, intact := f.read()
	return intact && markOf(data) != nil
}

// retire removes a file that a manager of that owner wrote under another name.
func retire(path, owner string) (removed bool, err error) {
	f := ownFile{path: path}
	data, intact := f.read()
	if m := markOf(data); !intact || m == nil || m.Owner != owner {
		return false, nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, nil
}

// write replaces the file by a complete one. No runtime reads the temporary file:
// a number follows .conflist in its name.
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

// remedy says what to do about an error of write. The name of the temporary file
// goes: it is another one at each try, and the error is not.
func remedy(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	switch errno {
	case syscall.ENOENT:
		return fmt.Errorf("%w: create the directory", errno)
	case syscall.EISDIR, syscall.EEXIST:
		return fmt.Errorf("%w: remove the directory that is in its place", errno)
	case syscall.ENOSPC, syscall.EDQUOT:
		return fmt.Errorf("%w: free some space", errno)
	}
	return fmt.Errorf("%w: make the directory writable", errno)
}

// isTemp tells our temporary files, whose names end in a number, from others. A
// change of one must not cause the next look: a write that fails would go on so for
// ever.
func (f *ownFile) isTemp(path string) bool {
	dir, name := filepath.Split(f.path)
	number, ok := strings.CutPrefix(path, dir+"."+name)
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// removeTemps removes what a process left that was killed while it wrote.
func (f *ownFile) removeTemps() {
	dir := filepath.Dir(f.path)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); e.Type().IsRegular() && f.isTemp(path) {
			_ = os.Remove(path)
		}
	}
}
