package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Destroy unmounts the namespace at path and removes the file. The kernel destroys the namespace, and the links in it,
// once no process runs in it, no descriptor of it is open and no other mount of it exists. A missing path is not an
// error. Destroy also removes the empty file that a crash while creating or destroying a sandbox leaves. For anything
// else at path it returns ErrNotNamespace and changes nothing.
func Destroy(path string) error {
	if err := destroy(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("destroy sandbox %q: %w", path, err)
	}
	return nil
}

// Unfinished reports whether the file at path is the remainder of a Create that a crash ended: an empty file without a
// mount, with the mode that this package gives such files. iproute2 gives another mode.
func Unfinished(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != reserved {
		return false
	}
	mounted, err := isMounted(path)
	return err == nil && !mounted
}

func destroy(path string) error {
	mounted, err := isMounted(path)
	if err != nil {
		return err
	}
	if mounted {
		// Detached, because a process that looks at the file just now must not keep it from going. EINVAL
		// means that another destroyer came first.
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return os.NewSyscallError("umount", err)
		}
	}
	return os.Remove(path)
}

// isMounted reports whether a network namespace is mounted on path. Where it is not, there must be an empty file,
// or else it is not a sandbox's.
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
