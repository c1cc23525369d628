package api

import (
	"context"
	"net/http"
	"syscall"

	"golang.org/x/sys/unix"
)

// attended is the context of an operation whose Err also looks whether the client is
// still there. The server reads ahead for that, but may get to it only after a short
// operation has ended, above all where it was stopped for a while.
type attended struct {
	context.Context
	conn syscall.RawConn
}

// attend makes ctx the context of an operation that a request asks for.
func attend(ctx context.Context, r *http.Request) context.Context {
	v, ok := r.Context().Value(verdictKey{}).(*verdict)
	if !ok {
		return ctx
	}
	conn, ok := v.conn.(syscall.Conn)
	if !ok {
		return ctx
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return ctx
	}
	return attended{ctx, raw}
}

// Err implements context.Context.
func (a attended) Err() error {
	if err := a.Context.Err(); err != nil {
		return err
	}
	gone := false
	err := a.conn.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(polled, 0)
		gone = err == nil && n > 0
	})
	if gone || err != nil { // closed by ourselves
		return context.Canceled
	}
	return nil
}
