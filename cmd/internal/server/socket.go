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

// Socket is the socket to make where systemd passes none.
type Socket struct {
	Path         string // absolute; its directory is made
	Owner, Group string // names or numbers; "" for those of the process
	Mode         fs.FileMode
}

// makeDir makes the directory of the socket, or lets others pass through one that is
// there and was made for nobody else, as the configurator makes its state directory:
// what lies in it has modes of its own.
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

// make replaces a stale socket by one that listens. Whoever sees it sees it with
// its mode and owner: until then it is in a directory that only root can enter. It
// must be called with the lock of the path.
func (s Socket) make() (*net.UnixListener, error) {
	uid, gid, err := s.owners()
	if err != nil {
		return nil, err
	}
	if err := vacant(s.Path); err != nil {
		return nil, err
	}
	hidden := s.Path + ".new"
	if err := errors.Join(os.RemoveAll(hidden), os.Mkdir(hidden, 0o700)); err != nil {
		return nil, fmt.Errorf("make directory to prepare the socket in: %w", err)
	}
	defer os.RemoveAll(hidden)
	l, err := bind(hidden)
	if err != nil {
		return nil, err
	}
	made := filepath.Join(hidden, hiddenName)
	if err = os.Chown(made, uid, gid); err != nil {
		err = fmt.Errorf("change owner of the socket: %w", err)
	} else if err = os.Chmod(made, s.Mode); err != nil { // not before: chown may take bits away
		err = fmt.Errorf("change mode of the socket: %w", err)
	} else if err = os.Rename(made, s.Path); err != nil {
		err = fmt.Errorf("put the socket in its place: %w", err)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

const hiddenName = "socket"

// bind goes by the directory's descriptor: its path may be too long for a socket.
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
	l.SetUnlinkOnClose(false) // by a name that is gone
	return l, nil
}

// vacant returns why a socket cannot be put at a path: nil if nothing is there, or
// a socket on which nobody listens any more.
func vacant(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("there is a file that is no socket: remove it, or set another socket")
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
	return fmt.Errorf("%w: another program listens, perhaps systemd for the daemon: stop that one (systemctl stop allocnetd.socket), or set another socket", ErrInUse)
}

// orphaned reports whether the process that listens is dead: then a child has its
// socket that was just being started, and knows nothing of it.
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

// owners are -1 where nothing is to be changed.
func (s Socket) owners() (uid, gid int, err error) {
	uid, gid = -1, -1
	if s.Owner != "" {
		uid, err = number(s.Owner, func(name string) (string, error) {
			u, err := user.Lookup(name)
			if err != nil {
				return "", fmt.Errorf("owner of the socket: %w: make that user, or set another owner", err)
			}
			return u.Uid, nil
		})
	}
	if s.Group != "" && err == nil {
		gid, err = number(s.Group, func(name string) (string, error) {
			g, err := user.LookupGroup(name)
			if err != nil {
				return "", fmt.Errorf("group of the socket: %w: make that group, or set another one", err)
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
