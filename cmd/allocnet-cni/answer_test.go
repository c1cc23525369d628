package main

import (
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// read reads a response from r as from a connection.
func read(r io.Reader) (status int, body []byte, err error) {
	c := &conn{Conn: stream{Reader: r}, left: maxReceived}
	if status, body, err = c.response(); err != nil {
		err = exchangeError("test", err)
	}
	return status, body, err
}

// stream is a connection that can only be read.
type stream struct {
	net.Conn
	io.Reader
}

func (s stream) Read(p []byte) (int, error)      { return s.Reader.Read(p) }
func (s stream) SetReadDeadline(time.Time) error { return nil }

func TestReadResponse(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	chunked := ok + "Date: today\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, test := range []struct {
		name, answer string
		status       int
		body         string
		err          error
	}{
		{"in one piece", ok + "Content-Length: 4\r\n\r\n{}\n\n", 200, "{}\n\n", nil},
		{"nothing", "HTTP/1.1 204 No Content\r\ncontent-length:0\r\n\r\n", 204, "", nil},
		{"no reason", "HTTP/1.1 429 \r\nContent-Length: 1\r\n\r\nx", 429, "x", nil},
		{"keepalives", chunked + "1\r\n\n\r\n1\r\n\n\r\n2\r\n{}\r\n0\r\n\r\n", 200, "\n\n{}", nil},
		{"a long chunk", chunked + "1000\r\n" + strings.Repeat("x", 4096) + "\r\n0\r\n\r\n", 200, strings.Repeat("x", 4096), nil},
		{"silence", "", 0, "", errNotReachable},
		{"half a line", "HTTP/1.1 20", 0, "", errNotReachable},
		{"half a head", ok + "Date: today\r\n", 0, "", errNotReachable},
		{"half a body", ok + "Content-Length: 4\r\n\r\n{}", 0, "", errNotReachable},
		{"keepalives without an answer", chunked + "1\r\n\n\r\n", 0, "", errNotReachable},
		{"half a chunk", chunked + "4\r\n{", 0, "", errNotReachable},
		{"no end behind the chunks", chunked + "0\r\n", 0, "", errNotReachable},
		{"another protocol", "SSH-2.0-x\r\n", 0, "", errNoAnswer},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 0, "", errNoAnswer},
		{"status of four digits", "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", 0, "", errNoAnswer},
		{"a status in between", "HTTP/1.1 102 Processing\r\n\r\n", 0, "", errNoAnswer},
		{"no length", ok + "\r\n{}", 0, "", errNoAnswer},
		{"two lengths", ok + "Content-Length: 0\r\nContent-Length: 1\r\n\r\nx", 0, "", errNoAnswer},
		{"negative length", ok + "Content-Length: -1\r\n\r\n", 0, "", errNoAnswer},
		{"compressed", ok + "Transfer-Encoding: gzip\r\n\r\n", 0, "", errNoAnswer},
		{"too long", ok + "Content-Length: " + strconv.Itoa(maxResponse+1) + "\r\n\r\n", 0, "", errNoAnswer},
		{"too long a chunk", chunked + "ffffffffffff\r\n" + strings.Repeat("x", maxReceived), 0, "", errNoAnswer},
		{"too long for a number", chunked + "fffffffffffffffff\r\n", 0, "", errNoAnswer},
		{"a field without a value", ok + "Nonsense\r\n\r\n", 0, "", errNoAnswer},
		{"a long line", ok + "X: " + strings.Repeat("x", maxReceived) + "\r\n", 0, "", errNoAnswer},
		{"many fields", ok + strings.Repeat("X: x\r\n", maxReceived/6) + "\r\n", 0, "", errNoAnswer},
		{"a chunk that is longer than it says", chunked + "1\r\nxy\r\n0\r\n\r\n", 0, "", errNoAnswer},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, body, err := read(strings.NewReader(test.answer))
			require.ErrorIs(t, err, test.err)
			require.Equal(t, test.status, status)
			require.Equal(t, test.body, string(body))
		})
	}
}

// TestManyChunks checks that the bound on the answer covers all chunks together.
func TestManyChunks(t *testing.T) {
	one := "100000\r\n" + strings.Repeat("x", 1<<20) + "\r\n"
	_, _, err := read(strings.NewReader("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat(one, 5)))
	require.ErrorIs(t, err, errNoAnswer)
	require.ErrorContains(t, err, "too long")
}

// FuzzReadResponse: what is accepted is a final response with a body that is not too long, and what is
// not accepted returns nothing.
func FuzzReadResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
	f.Add([]byte("HTTP/1.1 503 no\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n2\r\n{}\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		status, body, err := read(bytes.NewReader(data))
		if err != nil {
			require.Zero(t, status)
			require.Empty(t, body)
			return
		}
		require.GreaterOrEqual(t, status, 200)
		require.LessOrEqual(t, len(body), maxResponse)
	})
}
