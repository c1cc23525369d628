package rtnl

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SetSysctl writes a value below /proc/sys unless it stands there already. The
// path is relative and has slashes. Whose namespace is meant depends on the
// thread: inside a sandbox, call it within Do.
func SetSysctl(path, value string) error {
	if !filepath.IsLocal(path) { // a name in it leads elsewhere
		return fmt.Errorf("set sysctl %q: not below /proc/sys", path)
	}
	file := filepath.Join("/proc/sys", path)
	current, err := readShort(file)
	if err != nil {
		return fmt.Errorf("read sysctl %s: %w", path, err)
	}
	if bytes.Equal(bytes.TrimSpace(current), []byte(value)) {
		return nil
	}
	if err := os.WriteFile(file, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", path, value, err)
	}
	return nil
}

// readShort reads the beginning of a file with no system call more than that
// takes: most sysctls are as they should be, and are only read.
func readShort(file string) ([]byte, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	data := make([]byte, 64)
	n, err := unix.Read(fd, data)
	if err != nil {
		return nil, &os.PathError{Op: "read", Path: file, Err: err}
	}
	return data[:n], nil
}

// EnableForwarding lets the host forward packets of the families that are asked
// for.
func EnableForwarding(v4, v6 bool) error {
	if v4 {
		if err := SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
			return err
		}
	}
	if v6 {
		return SetSysctl("net/ipv6/conf/all/forwarding", "1")
	}
	return nil
}
