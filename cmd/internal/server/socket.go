package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Socket describes the socket to create if systemd passes none.
type Socket struct {
	Path         string // absolute; a missing directory is created
	Owner, Group string // names or numbers; "" for those of the process
	Mode         fs.FileMode
}

// makeDir creates the directory of the socket. If the socket has a group and the
// directory is only accessible to the process's user, as the configurator creates its
// state directory, makeDir makes it searchable: the files in it have their own modes.
func (s Socket) makeDir() error {
	dir := filepath.Dir(s.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if s.Group == "" || stat.Mode&0o777 != 0o700 || int(stat.Uid) != os.Geteuid() {
		return nil
	}
	return os.Chmod(dir, 0o711)
}

// create replaces a stale socket by a listening one. The socket appears at its path with
// its final mode and owner: create prepares it in a directory that only root can enter.
// The caller holds the lock of the path.
func (s Socket) create() (*net.UnixListener, error) {
	uid, gid, err := s.owners()
	if err != nil {
		return nil, err
	}
	if err := vacant(s.Path); err != nil {
		return nil, err
	}
	hidden := s.Path + ".new"
	if err := errors.Join(os.RemoveAll(hidden), os.Mkdir(hidden, 0o700)); err != nil {
		return nil, fmt.Errorf("create a directory to prepare the socket in: %w", err)
	}
	defer os.RemoveAll(hidden)
	l, err := bind(hidden)
	if err != nil {
		return nil, err
	}
	made := filepath.Join(hidden, hiddenName)
	if err = os.Chown(made, uid, gid); err != nil {
		err = fmt.Errorf("change owner of the socket: %w", err)
	} else if err = os.Chmod(made, s.Mode); err != nil { // after chown, which may clear bits
		err = fmt.Errorf("change mode of the socket: %w", err)
	} else if err = os.Rename(made, s.Path); err != nil {
		err = fmt.Errorf("move the socket to its path: %w", err)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

const hiddenName = "socket"

// bind creates the socket through a descriptor of the directory, because its path may be
// too long for a socket address.
func bind(dir string) (*net.UnixListener, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", dir, err)
	}
	defer unix.Close(fd)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", fd, hiddenName)})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // its name is that of the closed descriptor
	return l, nil
}

// vacant returns an error if a socket cannot be created at a path. It returns nil if the
// path does not exist or is a socket on which no process listens any more.
func vacant(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("the file exists and is not a socket: remove it or set another socket")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		defer conn.Close()
		if orphaned(conn) {
			return nil
		}
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return fmt.Errorf("%w: another program listens, perhaps systemd for the daemon; stop it (systemctl stop allocnetd.socket) or set another socket", ErrInUse)
}

// orphaned reports whether the process that created the socket is dead. Then a child
// that was being started at its death still holds the socket, but does not use it.
func orphaned(conn net.Conn) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	dead := false
	err = raw.Control(func(fd uintptr) {
		listens, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		dead = err == nil && listens.Pid > 0 && errors.Is(unix.Kill(int(listens.Pid), 0), unix.ESRCH)
	})
	return err == nil && dead
}

// owners returns the IDs of the socket's owner and group; -1 stands for no change.
func (s Socket) owners() (uid, gid int, err error) {
	uid, gid = -1, -1
	if s.Owner != "" {
		uid, err = number(s.Owner, func(name string) (string, error) {
			u, err := user.Lookup(name)
			if err != nil {
				return "", fmt.Errorf("owner of the socket: %w: create the user or set another owner", err)
			}
			return u.Uid, nil
		})
	}
	if s.Group != "" && err == nil {
		gid, err = number(s.Group, func(name string) (string, error) {
			g, err := user.LookupGroup(name)
			if err != nil {
				return "", fmt.Errorf("group of the socket: %w: create the group or set another one", err)
			}
			return g.Gid, nil
		})
	}
	return uid, gid, err
}

func number(name string, lookUp func(string) (string, error)) (int, error) {
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	id, err := lookUp(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(id)
}
