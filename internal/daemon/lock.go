package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrInUse is in the error of Listen if somebody else listens there.
var ErrInUse = errors.New("the socket is in use")

// lock takes the lock of a socket, until the file is closed. The file stays: with
// its removal two daemons could each lock one of that name.
func lock(socket string) (*os.File, error) {
	path := socket + ".lock"
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("%w: another daemon%s serves it: stop that one, or set another socket", ErrInUse, holder(file))
	case err != nil:
		err = fmt.Errorf("lock %q: %w", path, err)
	default:
		err = sign(file)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// holder names who holds a lock, as far as he has signed already.
func holder(file *os.File) string {
	data, _ := io.ReadAll(io.LimitReader(file, 32))
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

func sign(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	if _, err := fmt.Fprintln(file, os.Getpid()); err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	return nil
}
