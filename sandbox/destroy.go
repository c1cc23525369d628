package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Destroy unmounts the namespace at path and removes the file. The kernel destroys the
// namespace and its links when no process runs in it, no descriptor of it is open and
// no other mount of it exists. A missing path is not an error. Destroy also removes the
// empty file that a crash leaves behind while a sandbox is created or destroyed. For
// any other object at path it returns ErrNotNamespace and changes nothing.
func Destroy(path string) error {
	if err := destroy(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("destroy sandbox %q: %w", path, err)
	}
	return nil
}

// Unfinished reports whether the file at path was left behind by a crash during Create:
// an empty file without a mount, with the mode that this package uses. iproute2 uses
// another mode.
func Unfinished(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != reserved {
		return false
	}
	mounted, err := isMounted(path)
	return err == nil && !mounted
}

// destroy is Destroy, but returns fs.ErrNotExist if path does not exist.
func destroy(path string) error {
	mounted, err := isMounted(path)
	if err != nil {
		return err
	}
	if mounted {
		// The unmount is detached, so that a process that uses the file at this moment
		// does not prevent it. EINVAL means that another process has unmounted it
		// first.
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return os.NewSyscallError("umount", err)
		}
	}
	return os.Remove(path)
}

// isMounted reports whether a network namespace is mounted on path. If it returns false
// without an error, path is an empty file.
func isMounted(path string) (bool, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() {
		return false, ErrNotNamespace
	}
	fd, err := openRaw(path, unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	kind, err := namespaceKind(fd)
	switch {
	case err != nil:
		return false, err
	case kind == unix.CLONE_NEWNET:
		return true, nil
	case kind == 0 && info.Size() == 0:
		return false, nil
	}
	return false, ErrNotNamespace
}
