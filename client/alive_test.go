package client

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
)

// impatient is a client that asks soon whether the daemon answers.
func impatient(socket string) *Client {
	c := New(Config{Socket: socket})
	c.alivePeriod, c.aliveTime = 20*time.Millisecond, 50*time.Millisecond
	return c
}

// TestHungDaemon: a call without a deadline ends if the daemon does not answer any more.
func TestHungDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket) // accepts nothing, as a stopped process
	require.NoError(t, err)
	defer l.Close()
	c := impatient(socket)
	for name, call := range map[string]func() error{
		"Setup":    func() error { _, err := c.Setup(t.Context(), allocnet.Allocation{ID: "a"}); return err },
		"Teardown": func() error { return c.Teardown(t.Context(), allocnet.Allocation{ID: "a"}) },
		"GC":       func() error { _, err := c.GC(t.Context(), nil); return err },
		"Ready":    func() error { return c.Ready(t.Context()) },
	} {
		err := call()
		require.ErrorIs(t, err, ErrNoAnswer, name)
		require.NotErrorIs(t, err, ErrUnavailable, name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err = c.Ready(ctx)
	require.ErrorIs(t, err, ErrNoAnswer)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Ready(ctx), context.Canceled)
}

// TestSlowOperation: an operation may take any time while the daemon answers, and also once it
// no longer listens.
func TestSlowOperation(t *testing.T) {
	for name, shutsDown := range map[string]bool{"busy": false, "shutting down": true} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		require.NoError(t, err)
		c, asked := impatient(socket), make(chan struct{})
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method != "DELETE":
				select {
				case asked <- struct{}{}:
				case <-r.Context().Done():
				}
			case shutsDown:
				assert.NoError(t, l.Close(), name)
				assert.NoError(t, c.alive(r.Context()), name)
			default:
				for range 3 {
					<-asked
				}
			}
			w.WriteHeader(http.StatusNoContent)
		})}
		go func() { _ = s.Serve(l) }()
		require.NoError(t, c.Teardown(t.Context(), allocnet.Allocation{ID: "a"}), name)
		require.NoError(t, s.Close())
	}
}

// TestDaemonEndsDuringACall is ErrNoAnswer, because the result is not known.
func TestDaemonEndsDuringACall(t *testing.T) {
	for name, answer := range map[string]string{"before the answer": "", "in the answer": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"} {
		err := New(Config{Socket: serveRaw(t, answering(answer))}).Ready(t.Context())
		require.ErrorIs(t, err, ErrNoAnswer, name)
		require.NotErrorIs(t, err, ErrUnavailable, name)
	}
}
