// Package connlimit bounds the open connections of an HTTP server. Clients that hold connections without a request
// in progress do not keep others out: for a new connection, the one that has been idle longest is closed.
package connlimit

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// Listener is a net.Listener with a maximum number of open connections. If all of them have requests in progress, further
// ones wait in the kernel.
type Listener struct {
	net.Listener
	most int

	mu     sync.Mutex
	open   map[*conn]bool
	change *sync.Cond // a connection was closed or has become idle, or the listener was closed
	closed bool
}

// New returns a Listener for a server that is not started yet. It sets the server's ConnContext, and wraps its Handler.
func New(l net.Listener, s *http.Server, most int) *Listener {
	limited := &Listener{Listener: l, most: most, open: map[*conn]bool{}}
	limited.change = sync.NewCond(&limited.mu)
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if secure, ok := c.(*tls.Conn); ok {
			c = secure.NetConn()
		}
		return context.WithValue(ctx, key{}, c)
	}
	handler := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(key{}).(*conn); ok {
			c.setBusy(true)
			defer c.setBusy(false)
		}
		handler.ServeHTTP(w, r)
	})
	return limited
}

type key struct{}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.open) >= l.most && !l.closed {
		if idle := l.longestIdle(); idle != nil {
			delete(l.open, idle)
			_ = idle.Conn.Close() // its reader notices
		} else {
			l.change.Wait()
		}
	}
	c := &conn{Conn: accepted, of: l, since: time.Now()}
	l.open[c] = true
	return c, nil
}

// longestIdle returns the connection without a request in progress whose last one ended first. The caller holds the
// lock.
func (l *Listener) longestIdle() (found *conn) {
	for c := range l.open {
		if !c.busy && (found == nil || c.since.Before(found.since)) {
			found = c
		}
	}
	return found
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.change.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// conn is a connection. The lock of its Listener protects the fields.
type conn struct {
	net.Conn
	of    *Listener
	busy  bool
	since time.Time // it was accepted, or its last request ended
}

func (c *conn) setBusy(busy bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.busy, c.since = busy, time.Now()
	c.of.change.Broadcast()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.change.Broadcast()
	c.of.mu.Unlock()
	return c.Conn.Close()
}
