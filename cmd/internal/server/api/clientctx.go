package api

import (
	"context"
	"net/http"
	"syscall"

	"golang.org/x/sys/unix"
)

// clientContext is the context of an operation. Its Err also checks whether the client is
// still connected. The server reads ahead for that purpose, but may notice it only after
// a short operation has ended, especially if the process was suspended.
type clientContext struct {
	context.Context
	conn syscall.RawConn
}

// withClient returns ctx, extended by the check that the client of r is still
// connected.
func withClient(ctx context.Context, r *http.Request) context.Context {
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
	return clientContext{ctx, raw}
}

// Err implements context.Context.
func (a clientContext) Err() error {
	if err := a.Context.Err(); err != nil {
		return err
	}
	gone := false
	err := a.conn.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(polled, 0)
		gone = err == nil && n > 0
	})
	if gone || err != nil { // with an error, this process has closed the connection
		return context.Canceled
	}
	return nil
}
