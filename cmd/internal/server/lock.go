package server

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrInUse is in the error of Listen if another process listens on the socket.
var ErrInUse = errors.New("the socket is in use")

// lock takes the lock of a socket for the process, until the file is closed. The file is
// never removed: otherwise two daemons could each lock a file of that name.
//
// It is a lock of the process, not of the open file description. A child that is being
// started when the daemon is killed would share the latter and lock out the next daemon.
func lock(socket string) (*os.File, error) {
	path := lockPath(socket)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	err = unix.FcntlFlock(file.Fd(), unix.F_SETLK, wholeFile())
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		err = fmt.Errorf("%w: another daemon%s serves it; stop that daemon or set another socket", ErrInUse, holder(file))
	case err != nil:
		err = fmt.Errorf("lock %q: %w", path, err)
	default:
		return file, nil
	}
	return nil, errors.Join(err, file.Close())
}

func lockPath(socket string) string { return socket + ".lock" }

func wholeFile() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart} }

// holder names the process that holds the lock, or returns "" if it is not known.
func holder(file *os.File) string {
	l := wholeFile()
	if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, l); err != nil || l.Type == unix.F_UNLCK || l.Pid <= 0 {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", l.Pid)
}
