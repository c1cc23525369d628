package sandbox

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Identity identifies a network namespace independently of its path. The zero value
// identifies no namespace.
type Identity struct {
	// Device and Inode are the numbers of the namespace's file. The kernel reuses the
	// inode of a destroyed namespace.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// Cookie is a number that the kernel never reuses; 0 before Linux 5.14.
	Cookie uint64 `json:"cookie,omitempty"`
}

// Is reports whether both identify the same namespace. If either has no Cookie, Device
// and Inode decide.
func (i Identity) Is(other Identity) bool {
	return i.Device == other.Device && i.Inode == other.Inode &&
		(i.Cookie == other.Cookie || i.Cookie == 0 || other.Cookie == 0)
}

// Identity returns the identity of the sandbox's namespace.
func (s *Sandbox) Identity() (id Identity, err error) {
	unnumbered := false
	err = s.With(func(fd int) (err error) {
		if id, err = identifyRaw(fd); err == nil {
			id.Cookie, err = numberOf(fd)
			unnumbered = err != nil
		}
		return err
	})
	if unnumbered {
		id.Cookie, err = s.cookie()
	}
	if err != nil {
		return Identity{}, fmt.Errorf("identify sandbox %q: %w", s.path, err)
	}
	return id, nil
}

// numberOf reads the cookie from the namespace's file, which needs Linux 6.18.
func numberOf(fd int) (number uint64, err error) {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.NS_GET_ID, uintptr(unsafe.Pointer(&number)))
	if errno != 0 {
		return 0, os.NewSyscallError("ioctl NS_GET_ID", errno)
	}
	return number, nil
}

// cookie reads the cookie from a socket in the namespace, which needs Linux 5.14. It
// returns 0 for older kernels.
func (s *Sandbox) cookie() (cookie uint64, err error) {
	err = s.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err == unix.ENOPROTOOPT {
			return nil
		}
		return os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
	})
	return cookie, err
}

func identify(file *os.File) (Identity, error) { return identifyRaw(int(file.Fd())) }

func identifyRaw(fd int) (Identity, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return Identity{}, os.NewSyscallError("fstat", err)
	}
	return Identity{Device: stat.Dev, Inode: stat.Ino}, nil
}
