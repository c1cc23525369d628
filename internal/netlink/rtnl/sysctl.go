package rtnl

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Sysctl reads a file below /proc/sys: see SetSysctl. It returns the value without the spaces around
// it, or an error that is os.ErrNotExist.
func Sysctl(path string) (string, error) {
	if !filepath.IsLocal(path) {
		return "", fmt.Errorf("read sysctl %q: not below /proc/sys", path)
	}
	value, err := readShort(filepath.Join("/proc/sys", path))
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", path, err)
	}
	return string(bytes.TrimSpace(value)), nil
}

// SetSysctl writes a value to a file below /proc/sys, unless the file contains it
// already. The path is relative and has slashes. The calling thread determines the
// network namespace whose value is set: for a sandbox, call SetSysctl within Do.
func SetSysctl(path, value string) error {
	if !filepath.IsLocal(path) { // a name that is part of the path could lead elsewhere
		return fmt.Errorf("set sysctl %q: not below /proc/sys", path)
	}
	file := filepath.Join("/proc/sys", path)
	// One descriptor for both: to look up the file of a new link takes as long as
	// several other system calls.
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return setReadOnly(file, path, value, err)
	}
	defer unix.Close(fd)
	current, err := readFrom(fd, file)
	if err != nil {
		return fmt.Errorf("read sysctl %s: %w", path, err)
	}
	if bytes.Equal(bytes.TrimSpace(current), []byte(value)) {
		return nil
	}
	if _, err := unix.Pwrite(fd, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", path, value, &os.PathError{Op: "write", Path: file, Err: err})
	}
	return nil
}

// setReadOnly is SetSysctl of a file that cannot be opened for writing because of cause: it
// may have the value already, as in a container with a read-only /proc/sys.
func setReadOnly(file, path, value string, cause error) error {
	current, err := readShort(file)
	if err != nil {
		return fmt.Errorf("read sysctl %s: %w", path, err)
	}
	if bytes.Equal(bytes.TrimSpace(current), []byte(value)) {
		return nil
	}
	return fmt.Errorf("set sysctl %s to %s: %w", path, value, &os.PathError{Op: "open", Path: file, Err: cause})
}

// readShort reads the beginning of a file with as few system calls as possible. Most
// sysctls have the right value already and are only read.
func readShort(file string) ([]byte, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	return readFrom(fd, file)
}

// readFrom reads the beginning of a file.
func readFrom(fd int, file string) ([]byte, error) {
	data := make([]byte, 64)
	n, err := unix.Read(fd, data)
	if err != nil {
		return nil, &os.PathError{Op: "read", Path: file, Err: err}
	}
	return data[:n], nil
}
