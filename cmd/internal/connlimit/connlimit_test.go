package connlimit

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// serve serves with at most three connections. A request for /wait is in progress until its client goes, or until a value
// is sent to the channel.
func serve(t *testing.T) (address string, end chan struct{}) {
	t.Helper()
	end = make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			_, _ = io.WriteString(w, "begun\n")
			_ = http.NewResponseController(w).Flush() // the client would not see it
			select {
			case <-end:
			case <-r.Context().Done():
			}
		}
	})}
	limited := New(l, s, 3)
	done := make(chan error)
	go func() { done <- s.Serve(limited) }()
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
	return l.Addr().String(), end
}

// connect opens a connection, and makes a request unless the path is "".
func connect(t *testing.T, address, path string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	r := bufio.NewReader(c)
	if path != "" {
		request(t, c, r, path)
	}
	return c, r
}

func request(t *testing.T, c net.Conn, r *bufio.Reader, path string) {
	t.Helper()
	_, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
	answer, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode)
}

// TestIdleConnectionsGiveWay: those that never asked anything, and those that did; the longest idle one first.
func TestIdleConnectionsGiveWay(t *testing.T) {
	address, _ := serve(t)
	silent, atSilent := connect(t, address, "")
	first, atFirst := connect(t, address, "/")
	second, atSecond := connect(t, address, "/")
	connect(t, address, "/") // instead of the silent one
	_, err := atSilent.ReadByte()
	require.Error(t, err)
	require.NoError(t, silent.Close())
	request(t, first, atFirst, "/") // the second is idle for longer now
	connect(t, address, "/")
	require.NoError(t, second.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = atSecond.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	request(t, first, atFirst, "/")
}

// TestRequestsInProgressAreNotEnded: further connections wait for one of them.
func TestRequestsInProgressAreNotEnded(t *testing.T) {
	address, end := serve(t)
	for range 3 {
		connect(t, address, "/wait")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	answered := make(chan error)
	go func() {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address, nil)
		if err == nil {
			var answer *http.Response
			if answer, err = http.DefaultTransport.RoundTrip(r); err == nil {
				err = answer.Body.Close()
			}
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("answered while three requests are in progress: %v", err)
	case end <- struct{}{}:
	}
	require.NoError(t, <-answered)
}

// TestCloseWhileFull: Serve ends although a connection waits for room.
func TestCloseWhileFull(t *testing.T) {
	address, _ := serve(t)
	for range 3 {
		connect(t, address, "/wait")
	}
	connect(t, address, "") // Cleanup of serve waits for Serve
}
