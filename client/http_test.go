package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
)

// serveRaw accepts one connection and hands it over.
func serveRaw(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			serve(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return socket
}

// answering reads a request and answers.
func answering(text string) func(net.Conn) {
	return func(c net.Conn) {
		if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		_, _ = io.WriteString(c, text)
	}
}

func get(socket string) (string, error) {
	answer, err := roundTrip(context.Background(), socket, &request{method: "GET", path: "/"})
	if err != nil {
		return "", err
	}
	defer answer.body.Close()
	data, err := io.ReadAll(answer.body)
	return answer.status + ": " + string(data), err
}

func TestBodies(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"length":                {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", "200 OK: ab"},
		"longer than it says":   {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", "200 OK: a"},
		"until the end":         {"HTTP/1.0 404 Not Found\r\n\r\nab", "404 Not Found: ab"},
		"no reason":             {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "200: "},
		"none":                  {"HTTP/1.1 204 No Content\r\n\r\nab", "204 No Content: "},
		"chunks":                {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", "200 OK: a0123456789"},
		"chunks with a trailer": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n", "200 OK: a"},
		"progress before":       {"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "200 OK: a"},
	} {
		got, err := get(serveRaw(t, answering(c.answer)))
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
}

func TestBrokenAnswers(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct {
		answer string
		is     error // nil for any
	}{
		"nothing":                   {"", io.ErrUnexpectedEOF},
		"half a status line":        {"HTTP/1.1 2", nil},
		"another protocol":          {"SSH-2.0-x\r\n\r\n", nil},
		"no code":                   {"HTTP/1.1 OK\r\n\r\n", nil},
		"half a head":               {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n", io.ErrUnexpectedEOF},
		"a large head":              {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead) + "\r\n\r\n", io.ErrUnexpectedEOF},
		"progress without end":      {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxHead/10), nil},
		"half a body":               {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na", io.ErrUnexpectedEOF},
		"no length":                 {"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\na", nil},
		"two lengths":               {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", nil},
		"a negative length":         {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\na", nil},
		"another transfer encoding": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\na", nil},
		"half a chunk":              {chunked + "2\r\na", io.ErrUnexpectedEOF},
		"no last chunk":             {chunked + "1\r\na\r\n", io.ErrUnexpectedEOF},
		"no end of the last chunk":  {chunked + "1\r\na\r\n0\r\n", io.ErrUnexpectedEOF},
		"a chunk without end":       {chunked + "1\r\nab\r\n0\r\n\r\n", nil},
		"no size of a chunk":        {chunked + "x\r\na\r\n0\r\n\r\n", nil},
		"a long line":               {chunked + strings.Repeat("1", 1<<16) + "\r\n", nil},
	} {
		_, err := get(serveRaw(t, answering(c.answer)))
		require.Error(t, err, name)
		if c.is != nil {
			require.ErrorIs(t, err, c.is, name)
		}
	}
}

// TestAnswerBeforeTheEndOfTheRequest is what a refusal may be.
func TestAnswerBeforeTheEndOfTheRequest(t *testing.T) {
	socket := serveRaw(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n") })
	answer, err := roundTrip(t.Context(), socket, &request{method: "PUT", path: "/", body: make([]byte, 8<<20)})
	require.NoError(t, err)
	require.Equal(t, 403, answer.code)
	require.NoError(t, answer.body.Close())
}

// TestContextEndsConnection wherever the daemon hangs.
func TestContextEndsConnection(t *testing.T) {
	for name, sent := range map[string]string{"before the answer": "", "in the head": "HTTP/1.1 200 OK\r\n", "in the body": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		socket := serveRaw(t, func(c net.Conn) {
			answering(sent)(c)
			cancel(errors.New("enough"))
			_, _ = io.Copy(io.Discard, c) // until the client is gone
		})
		answer, err := roundTrip(ctx, socket, &request{method: "GET", path: "/"})
		if err == nil {
			_, err = io.ReadAll(answer.body)
			require.NoError(t, errors.Join(answer.body.Close(), nil), name)
		}
		require.ErrorIs(t, err, context.Canceled, name)
	}
}

// TestRequestIsUnderstood by package net/http.
func TestRequestIsUnderstood(t *testing.T) {
	for _, r := range []*request{
		{method: "GET", path: "/v1/events?after=1"}, {method: "POST", path: "/v1/repair"},
		{method: "PUT", path: "/v1/allocs/a%20b", header: []string{"Content-Type: application/json"}, body: []byte(`{"id":"a"}`)},
	} {
		got, err := http.ReadRequest(bufio.NewReader(strings.NewReader(string(r.encode()))))
		require.NoError(t, err)
		body, err := io.ReadAll(got.Body)
		require.NoError(t, err)
		require.Equal(t, []string{r.method, r.path, string(r.body)}, []string{got.Method, got.URL.RequestURI(), string(body)})
		require.Equal(t, int64(len(r.body)), got.ContentLength)
		require.True(t, got.Close)
		require.Equal(t, r.body != nil, got.Header.Get("Content-Type") != "")
	}
}

// TestEmptyID: no request has a path that is another one because the ID is empty.
func TestEmptyID(t *testing.T) {
	c := New(Config{Socket: filepath.Join(t.TempDir(), "none")})
	for _, call := range []func() error{
		func() error { _, err := c.Get(t.Context(), ""); return err },
		func() error { return c.Teardown(t.Context(), allocnet.Allocation{}) },
		func() error { _, err := c.Update(t.Context(), "", allocnet.Change{}); return err },
	} {
		require.ErrorIs(t, call(), allocnet.ErrInvalidAllocation)
	}
	_, err := c.List(t.Context())
	require.ErrorIs(t, err, ErrUnavailable)
}

// FuzzAnswer compares the bodies of answers with those that package net/http reads.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		"HTTP/1.0 200 OK\r\n\r\nab", "HTTP/1.1 204 No Content\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		from := bufio.NewReader(strings.NewReader(string(data)))
		answer, err := readHead(from)
		if err != nil {
			return
		}
		body, err := bodyOf(answer, from)
		if err != nil {
			return
		}
		got, err := io.ReadAll(body)
		if err != nil {
			return
		}
		// What is understood here is what net/http makes of it, if it takes it at all.
		reference, err := http.ReadResponse(bufio.NewReader(strings.NewReader(string(data))), nil)
		if err != nil || reference.StatusCode != answer.code {
			return
		}
		if want, err := io.ReadAll(reference.Body); err == nil {
			require.Equal(t, string(want), string(got))
		}
	})
}
