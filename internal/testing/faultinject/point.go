package faultinject

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind is what a point changes.
type Kind string

// The kinds of points.
const (
	File       Kind = "file"
	Sysctl     Kind = "sysctl"
	Mount      Kind = "mount"
	Subprocess Kind = "process" // a process is started, receives input or is killed
	Message    Kind = "message" // data is sent over a socket that is not netlink
	Route      Kind = "rtnetlink"
	NFTables   Kind = "nftables"
	Conntrack  Kind = "conntrack"
	Netlink    Kind = "netlink" // any other netlink family
)

// Point is a call of the process under test that is about to change something.
type Point struct {
	Kind   Kind
	Call   string // the system call, or the netlink messages
	Object string // the path, if any
}

// String returns the kind, the call and its object.
func (p Point) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s", p.Kind, p.Call, p.Object))
}

// call is a system call that may change something.
type call struct {
	name string
	// look returns the point of a call, or nil if the call changes nothing.
	look func(c *caller, name string) (*Point, error)
}

// calls are the changing system calls that Go programs make.
var calls = map[int]call{
	unix.SYS_OPENAT:            {"openat", (*caller).open},
	unix.SYS_UNLINKAT:          {"unlinkat", existing(0)},
	unix.SYS_RENAMEAT:          {"renameat", existing(0)},
	unix.SYS_RENAMEAT2:         {"renameat2", existing(0)},
	unix.SYS_FCHMODAT:          {"fchmodat", existing(0)},
	unix.SYS_FCHOWNAT:          {"fchownat", existing(0)},
	unix.SYS_UTIMENSAT:         {"utimensat", existing(0)},
	unix.SYS_MKDIRAT:           {"mkdirat", missing(0)},
	unix.SYS_MKNODAT:           {"mknodat", missing(0)},
	unix.SYS_SYMLINKAT:         {"symlinkat", missing(1)},
	unix.SYS_LINKAT:            {"linkat", missing(2)},
	unix.SYS_WRITE:             {"write", (*caller).write},
	unix.SYS_PWRITE64:          {"pwrite64", (*caller).write},
	unix.SYS_WRITEV:            {"writev", (*caller).write},
	unix.SYS_FTRUNCATE:         {"ftruncate", (*caller).write},
	unix.SYS_FALLOCATE:         {"fallocate", (*caller).write},
	unix.SYS_FCHMOD:            {"fchmod", (*caller).write},
	unix.SYS_FCHOWN:            {"fchown", (*caller).write},
	unix.SYS_FSETXATTR:         {"fsetxattr", (*caller).write},
	unix.SYS_SENDTO:            {"sendto", (*caller).send},
	unix.SYS_SENDMSG:           {"sendmsg", (*caller).sendVector},
	unix.SYS_IOCTL:             {"ioctl", (*caller).control},
	unix.SYS_BIND:              {"bind", (*caller).bind},
	unix.SYS_MOUNT:             {"mount", mounts(1)},
	unix.SYS_UMOUNT2:           {"umount2", mounts(0)},
	unix.SYS_MOVE_MOUNT:        {"move_mount", mounts(3)},
	unix.SYS_EXECVE:            {"execve", (*caller).execute},
	unix.SYS_KILL:              {"kill", (*caller).signal},
	unix.SYS_PIDFD_SEND_SIGNAL: {"pidfd_send_signal", (*caller).signal},
}

// point returns the point of a call, or nil if the call changes nothing.
func (c *caller) point(number int) (*Point, error) {
	called := calls[number]
	point, err := called.look(c, called.name)
	if err != nil {
		return nil, fmt.Errorf("understand %s of process under test: %w", called.name, err)
	}
	return point, nil
}

// existing is for calls that change the file at the path in argument at. If
// there is no such file, the call changes nothing.
func existing(at int) func(*caller, string) (*Point, error) {
	return func(c *caller, name string) (*Point, error) {
		path, err := c.path(at)
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return &Point{Kind: File, Call: name, Object: path}, nil
	}
}

// missing is for calls that create a file at the path in argument at.
func missing(at int) func(*caller, string) (*Point, error) {
	return func(c *caller, name string) (*Point, error) {
		path, err := c.path(at)
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(path); err == nil {
			return nil, nil
		}
		return &Point{Kind: File, Call: name, Object: path}, nil
	}
}

func mounts(at int) func(*caller, string) (*Point, error) {
	return func(c *caller, name string) (*Point, error) {
		path, err := c.text(at)
		return &Point{Kind: Mount, Call: name, Object: path}, err
	}
}

// open returns a point for a call that creates or truncates a file. Opening an
// existing file for writing does not change it yet.
func (c *caller) open(name string) (*Point, error) {
	path, err := c.path(0)
	if err != nil || strings.HasPrefix(path, "/proc/") || isDevice(path) {
		return nil, err
	}
	flags := c.args[2]
	info, err := os.Stat(path)
	switch {
	case err != nil && flags&unix.O_CREAT != 0:
		return &Point{Kind: File, Call: name + " O_CREAT", Object: path}, nil
	case err == nil && flags&unix.O_TRUNC != 0 && info.Mode().IsRegular() && info.Size() > 0:
		return &Point{Kind: File, Call: name + " O_TRUNC", Object: path}, nil
	}
	return nil, nil
}

// isDevice reports whether a path leads to a device. The files below /dev/shm are like others.
func isDevice(path string) bool {
	return strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/")
}

// write returns a point if the descriptor leads to something that other
// processes can see.
func (c *caller) write(name string) (*Point, error) {
	target, err := c.file(0)
	if err != nil {
		return nil, err
	}
	switch {
	case strings.HasPrefix(target, "/proc/sys/"):
		return &Point{Kind: Sysctl, Call: name, Object: target}, nil
	case strings.HasPrefix(target, "/proc/"), isDevice(target), strings.HasPrefix(target, "/memfd:"):
		return nil, nil
	case filepath.IsAbs(target):
		return &Point{Kind: File, Call: name, Object: target}, nil
	case strings.HasPrefix(target, "pipe:"):
		return &Point{Kind: Subprocess, Call: name, Object: "pipe"}, nil
	case strings.HasPrefix(target, "socket:"):
		return c.send(name) // its arguments are those of sendto
	}
	return nil, nil
}

// bind returns a point if the call creates a socket file.
func (c *caller) bind(name string) (*Point, error) {
	address, err := c.read(1, int(min(c.args[2], 128)))
	if err != nil || len(address) < 3 || address[0] != unix.AF_UNIX || address[2] == 0 {
		return nil, err
	}
	path, _, _ := strings.Cut(string(address[2:]), "\x00")
	return &Point{Kind: File, Call: name, Object: path}, nil
}

// control returns a point for a change of a network interface. The filter
// passes on only requests to sockets.
func (c *caller) control(name string) (*Point, error) {
	switch c.args[1] {
	case unix.SIOCGIFFLAGS, unix.SIOCGIFINDEX, unix.SIOCGIFNAME:
		return nil, nil
	case unix.SIOCSIFFLAGS:
		return &Point{Kind: Route, Call: name + " SIOCSIFFLAGS"}, nil
	}
	return &Point{Kind: Route, Call: fmt.Sprintf("%s %#x", name, c.args[1])}, nil
}

// looks are arguments with which the host's programs only read.
var looks = []string{"-S", "-C", "-L", "--version", "-V", "list", "--json", "-j"}

// execute returns a point for starting a program, unless the program only
// reads.
func (c *caller) execute(name string) (*Point, error) {
	path, err := c.text(0)
	if err != nil {
		return nil, err
	}
	arguments, err := c.texts(1)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(path, "-save") || slices.ContainsFunc(arguments, func(a string) bool { return slices.Contains(looks, a) }) {
		return nil, nil
	}
	arguments[0] = filepath.Base(path)
	return &Point{Kind: Subprocess, Call: name, Object: strings.Join(arguments, " ")}, nil
}

// signal returns a point for a signal, unless the call only tests whether the
// process exists.
func (c *caller) signal(name string) (*Point, error) {
	if c.args[1] == 0 {
		return nil, nil
	}
	return &Point{Kind: Subprocess, Call: name}, nil
}
