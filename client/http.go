package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/textproto"
	"strconv"
	"strings"
)

// This file implements the part of HTTP/1.1 that a request on a unix socket needs: one
// request per connection, and a response whose body has a length, is chunked, or ends
// with the connection. Package net/http would add several megabytes, mostly for TLS, to
// programs that use it for nothing else.

// request is one request. Its path is already escaped.
type request struct {
	method, path string
	header       []string // lines without their end
	body         []byte   // nil for none
}

// encode returns the text of the request.
func (r *request) encode() []byte {
	var b bytes.Buffer
	b.WriteString(r.method + " " + r.path + " HTTP/1.1\r\nHost: allocnetd\r\nConnection: close\r\n")
	if r.body != nil || r.method != "GET" {
		b.WriteString("Content-Length: " + strconv.Itoa(len(r.body)) + "\r\n")
	}
	for _, line := range r.header {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n")
	b.Write(r.body)
	return b.Bytes()
}

// response is a response. The caller closes its body.
type response struct {
	status string // code and reason
	code   int
	header textproto.MIMEHeader
	body   io.ReadCloser
}

// The status codes that the client distinguishes.
const (
	statusOK        = 200
	statusNoContent = 204
)

// maxHead bounds the status line and header of a response, in bytes.
const maxHead = 64 << 10

// roundTrip sends a request to a unix socket and returns the response. When the context
// ends, the connection is closed, and reading the body returns the context's error.
func roundTrip(ctx context.Context, socket string, r *request) (*response, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, orEnded(ctx, err)
	}
	c := &connection{Conn: conn, ctx: ctx, stop: context.AfterFunc(ctx, func() { _ = conn.Close() })}
	// The daemon may respond before it has read the whole request. An error of writing
	// is ignored, because reading then fails as well.
	go func() { _, _ = conn.Write(r.encode()) }()
	limit := &io.LimitedReader{R: c, N: maxHead}
	from := bufio.NewReader(limit)
	answer, err := readHead(from)
	if err != nil {
		c.Close()
		return nil, orEnded(ctx, err)
	}
	limit.N = math.MaxInt64
	body, err := bodyOf(answer, from)
	if err != nil {
		c.Close()
		return nil, err
	}
	answer.body = struct {
		io.Reader
		io.Closer
	}{body, c}
	return answer, nil
}

// connection returns the context's error from Read once the context has ended.
type connection struct {
	net.Conn
	ctx  context.Context
	stop func() bool
}

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		err = orEnded(c.ctx, err)
	}
	return n, err
}

func (c *connection) Close() error {
	c.stop()
	if err := c.Conn.Close(); !errors.Is(err, net.ErrClosed) { // by the end of the context
		return err
	}
	return nil
}

// orEnded returns the context's error if the context has ended, otherwise err.
func orEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// readHead reads the status line and header of a response. It skips informational
// responses (status 1xx).
func readHead(from *bufio.Reader) (*response, error) {
	for {
		text := textproto.NewReader(from)
		line, err := text.ReadLine()
		if err != nil {
			return nil, unexpected(err)
		}
		version, status, _ := strings.Cut(line, " ")
		code, err := strconv.Atoi(status[:min(len(status), 3)])
		if !strings.HasPrefix(version, "HTTP/1.") || err != nil || code < 100 {
			return nil, fmt.Errorf("malformed status line %.64q", line)
		}
		header, err := text.ReadMIMEHeader()
		if err != nil {
			return nil, unexpected(err)
		}
		if code >= 200 {
			return &response{status: status, code: code, header: header}, nil
		}
	}
}

// bodyOf returns the body of a response. If the body is truncated, reading it ends with
// io.ErrUnexpectedEOF.
func bodyOf(r *response, from *bufio.Reader) (io.Reader, error) {
	encoding, length := r.header.Get("Transfer-Encoding"), r.header.Values("Content-Length")
	switch {
	case r.code == statusNoContent || r.code == 304:
		return strings.NewReader(""), nil
	case strings.EqualFold(encoding, "chunked"):
		return &chunks{from: from}, nil
	case encoding != "":
		return nil, fmt.Errorf("transfer encoding %.64q is not known", encoding)
	case len(length) == 0:
		return from, nil
	}
	n, err := strconv.ParseUint(length[0], 10, 63)
	if err != nil || len(length) > 1 {
		return nil, fmt.Errorf("malformed content length %.64q", length)
	}
	return &exactly{from: from, left: n}, nil
}

// exactly reads a body of a known length.
type exactly struct {
	from io.Reader
	left uint64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.from.Read(p[:min(uint64(len(p)), e.left)])
	e.left -= uint64(n)
	if e.left > 0 {
		err = unexpected(err)
	}
	return n, err
}

// chunks reads a chunked body.
type chunks struct {
	from *bufio.Reader
	left uint64 // bytes of the current chunk
	ends bool   // the line end of a chunk comes next
	err  error
}

func (c *chunks) Read(p []byte) (n int, err error) {
	if c.left == 0 && c.err == nil {
		c.err = c.next()
	}
	if c.err != nil || len(p) == 0 {
		return 0, c.err
	}
	n, err = c.from.Read(p[:min(uint64(len(p)), c.left)])
	c.left -= uint64(n)
	c.err = unexpected(err)
	return n, c.err
}

// next reads up to the content of the next chunk. It returns io.EOF at the end of the
// body.
func (c *chunks) next() error {
	if c.ends {
		if line, err := c.line(); err != nil || line != "" {
			return errors.Join(err, errors.New("malformed end of a chunk"))
		}
	}
	line, err := c.line()
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(line, ";")
	c.left, err = strconv.ParseUint(strings.TrimSpace(size), 16, 63)
	if err != nil {
		return fmt.Errorf("malformed size of a chunk %.64q", line)
	}
	c.ends = true
	for c.left == 0 { // the last chunk, followed by trailer fields
		if line, err = c.line(); err != nil {
			return err
		}
		if line == "" {
			return io.EOF
		}
	}
	return nil
}

// line reads a line, which must fit into the buffer.
func (c *chunks) line() (string, error) {
	line, err := c.from.ReadSlice('\n')
	return string(bytes.TrimRight(line, "\r\n")), unexpected(err)
}

// unexpected replaces io.EOF by io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
