package pluginexec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// output is the output of a plugin on a pipe. It is complete even if the reader
// is late or if a child of the plugin holds the pipe forever.
type output struct {
	limited
	reader, writer *os.File
	done           chan struct{}
}

func newOutput(most int) (*output, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open pipe for the plugin: %w", err)
	}
	return &output{limited: limited{max: most}, reader: reader, writer: writer, done: make(chan struct{})}, nil
}

// begin starts reading, after the start of the plugin succeeded or failed.
func (o *output) begin() {
	o.writer.Close()
	go func() {
		defer close(o.done)
		_, _ = io.Copy(&o.limited, o.reader) // ends at the deadline of end at the latest
	}()
}

// end is called after the plugin has ended. It waits briefly for the plugin's
// children, and closes the pipe.
func (o *output) end(wait time.Duration) error {
	err := o.reader.SetReadDeadline(time.Now().Add(wait))
	<-o.done
	return errors.Join(err, o.drain(), o.reader.Close())
}

// drain reads the data in the pipe, but not data written meanwhile.
func (o *output) drain() error {
	if err := o.reader.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	conn, err := o.reader.SyscallConn()
	if err != nil {
		return err
	}
	var readErr error
	err = conn.Read(func(fd uintptr) bool {
		readErr = o.readOnce(int(fd))
		return true
	})
	return errors.Join(err, readErr)
}

// readOnce reads as much as a pipe can hold.
func (o *output) readOnce(fd int) error {
	capacity, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		return fmt.Errorf("size of the plugin's pipe: %w", err)
	}
	buffer := make([]byte, capacity)
	n, err := unix.Read(fd, buffer)
	for err == unix.EINTR {
		n, err = unix.Read(fd, buffer)
	}
	if err == unix.EAGAIN { // it is empty, and a process holds its other end
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the plugin's pipe: %w", err)
	}
	_, err = o.limited.Write(buffer[:n])
	return err
}

// limited is a buffer that discards data beyond its limit, so that the writer
// does not block and the memory is bounded.
type limited struct {
	buf      bytes.Buffer // not embedded: its ReadFrom would get around the bound
	max      int
	overflow bool
}

func (l *limited) Bytes() []byte { return l.buf.Bytes() }

func (l *limited) Write(p []byte) (int, error) {
	room := l.max - l.buf.Len()
	if len(p) > room {
		l.overflow = true
		l.buf.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return l.buf.Write(p)
}
