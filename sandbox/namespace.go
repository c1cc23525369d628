package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// home is the namespace in which the process started. Threads may enter other ones
// later.
var home, errHome = homeIdentity()

func homeIdentity() (Identity, error) {
	var stat unix.Stat_t
	const path = "/proc/self/ns/net"
	if err := unix.Stat(path, &stat); err != nil {
		return Identity{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Identity{Device: stat.Dev, Inode: stat.Ino}, nil
}

// open opens the network namespace at path if check accepts it.
func open(path string, check func(fd int) error) (*os.File, error) {
	fd, err := openChecked(path, check)
	if err != nil {
		return nil, err
	}
	// If a descriptor is non-blocking, os.NewFile tries to add it to the poller.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl F_SETFL", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// validate returns the error that open would return.
func validate(path string) error {
	fd, err := openChecked(path, checkSandbox)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// openChecked is open without an os.File, whose creation takes most of the time.
func openChecked(path string, check func(fd int) error) (int, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for its writer.
	fd, err := openRaw(path, unix.O_NONBLOCK)
	if err != nil {
		return -1, err
	}
	if err := check(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openRaw opens path for reading. Unlike os.Open, it does not try to add the file to
// the poller, which would take five system calls and fail for a namespace.
func openRaw(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			return fd, nil
		}
		if err != unix.EINTR {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// checkSandbox returns nil if fd is a network namespace other than home.
func checkSandbox(fd int) error {
	if errHome != nil {
		return fmt.Errorf("identify namespace of host: %w", errHome)
	}
	id, err := identifyRaw(fd)
	if err != nil {
		return err
	}
	if id.Device != home.Device { // all namespaces are on one device, which has no other files
		return ErrNotNamespace
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	switch {
	case err != nil:
		return os.NewSyscallError("ioctl NS_GET_NSTYPE", err)
	case kind != unix.CLONE_NEWNET:
		return ErrNotNamespace
	case id == home:
		return ErrHostNamespace
	}
	return nil
}

// checkAny returns nil if fd is any network namespace, including home.
func checkAny(fd int) error {
	if err := checkSandbox(fd); !errors.Is(err, ErrHostNamespace) {
		return err
	}
	return nil
}

// namespaceKind returns the flag of clone(2) for the kind of namespace that fd is, or 0
// if fd is not a namespace.
func namespaceKind(fd int) (int, error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(fd, &stat); err != nil {
		return 0, os.NewSyscallError("fstatfs", err)
	}
	if stat.Type != unix.NSFS_MAGIC {
		return 0, nil
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	return kind, os.NewSyscallError("ioctl NS_GET_NSTYPE", err)
}

// loopbackUp brings up lo in the namespace of the thread. It uses two ioctls on an
// ordinary socket instead of a netlink socket.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket for link \"lo\": %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return fmt.Errorf("find link \"lo\": %w", err)
	}
	if lo.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring up link \"lo\": %w", err)
	}
	return nil
}
