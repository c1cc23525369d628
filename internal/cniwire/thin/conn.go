package thin

import (
	"io"
	"syscall"
	"time"
)

// conn is a connection to a unix socket. Package net would do, but takes as long to
// start as the rest of the plugin.
type conn struct {
	fd    int
	until time.Time
}

// dial connects. No single system call on the connection waits for longer than
// patience, and none begins after until.
func dial(socket string, patience time.Duration, until time.Time) (*conn, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fault(err)
	}
	c, err := adopt(fd, patience, until)
	if err != nil {
		return nil, err
	}
	if _, err := c.again(func() (int, error) { return 0, syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}) }); err != nil {
		c.close()
		return nil, fault(err)
	}
	return c, nil
}

// adopt takes over a socket, as dial does its own.
func adopt(fd int, patience time.Duration, until time.Time) (*conn, error) {
	c := &conn{fd: fd, until: until}
	wait := syscall.NsecToTimeval(patience.Nanoseconds())
	for _, option := range []int{syscall.SO_SNDTIMEO, syscall.SO_RCVTIMEO} {
		if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, option, &wait); err != nil {
			c.close()
			return nil, fault(err)
		}
	}
	return c, nil
}

// again calls a system call until no signal interrupts it.
func (c *conn) again(call func() (int, error)) (int, error) {
	for {
		if !time.Now().Before(c.until) {
			return 0, syscall.EAGAIN
		}
		if n, err := call(); err != syscall.EINTR {
			return n, err
		}
	}
}

// fault tells a daemon that hangs, which the kernel says by EAGAIN, from one that
// is away.
func fault(err error) error {
	if err == syscall.EAGAIN {
		return garbled("no sign of life")
	}
	return away(err.Error())
}

func (c *conn) write(data []byte) error {
	for len(data) > 0 {
		n, err := c.again(func() (int, error) { return syscall.Write(c.fd, data) })
		if err != nil {
			return fault(err)
		}
		data = data[n:]
	}
	return nil
}

// Read implements io.Reader. The error is ErrHung, ErrAway or io.EOF.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.again(func() (int, error) { return syscall.Read(c.fd, p) })
	switch {
	case err != nil:
		return 0, fault(err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (c *conn) close() { _ = syscall.Close(c.fd) }
