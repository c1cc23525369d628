package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/allocnet/allocnet/cmd/internal/cni"
)

var (
	// errNotReachable: no daemon listens, or the daemon ended before it answered. The
	// records show what it may have begun.
	errNotReachable = errors.New("allocnetd is not reachable")
	// errNoAnswer: the daemon sends no valid answer. The plugin closes the connection,
	// so the daemon undoes an ADD that it may have begun.
	errNoAnswer = errors.New("allocnetd does not answer")
)

const (
	// longest is the maximum time that the plugin waits for an answer.
	longest = 15 * time.Minute
	// maxResponse is the maximum size of the body of a response, in bytes. Header,
	// keepalives and the encoding in chunks may take as much again.
	maxResponse = 4 << 20
	maxReceived = 2 * maxResponse
	// dialAgain is the time between attempts to connect while the backlog of the socket
	// is full.
	dialAgain = 10 * time.Millisecond
)

// ask sends a request to the daemon and receives the answer. If the shim has already
// sent the request, the only argument is the descriptor of its connection. The error is
// errNotReachable, errNoAnswer or a *cni.Error. A refusal by the daemon is an answer.
func (o *options) ask(r cni.Request) (*answer, error) {
	if len(os.Args) == 2 {
		if fd, err := strconv.Atoi(os.Args[1]); err == nil && fd > 2 {
			return o.resume(fd)
		}
	}
	body, err := encode(r)
	if err != nil {
		return nil, err
	}
	return o.call(body, time.Now().Add(longest))
}

// encode returns the body of a request. It contains the configuration unchanged, which
// is valid JSON.
func encode(r cni.Request) ([]byte, error) {
	env, err := json.Marshal(r.Env)
	if err != nil {
		return nil, err
	}
	body := slices.Concat([]byte(`{"env":`), env, []byte(`,"config":`), r.Config, []byte("}"))
	if len(body) > cni.MaxRequest {
		return nil, &cni.Error{
			Code: cni.CodeInvalidEnvironment, Msg: fmt.Sprintf("environment and configuration take more than %d bytes", cni.MaxRequest),
		}
	}
	return body, nil
}

// call sends the body of a request and receives the answer; until is the deadline.
func (o *options) call(body []byte, until time.Time) (*answer, error) {
	raw, err := o.dial()
	if err != nil {
		return nil, exchangeError("connect to "+o.socket, err)
	}
	c := &conn{Conn: raw, idle: o.idle, until: until, left: maxReceived}
	defer c.Close()
	r, err := http.NewRequest(http.MethodPost, "http://allocnetd"+cni.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Close = true
	// A daemon that refuses the request may answer before it has read it.
	if err := r.Write(c); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, exchangeError("send to "+o.socket, err)
	}
	return o.receive(c)
}

// dial connects to the daemon. While the backlog of the socket is full, it waits for
// the idle timeout at most.
func (o *options) dial() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.idle)
	defer cancel()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "unix", o.socket)
		if !errors.Is(err, syscall.EAGAIN) {
			return c, err
		}
		select {
		case <-time.After(dialAgain):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// resume receives the answer on a connection on which the request was sent. It closes
// the descriptor.
func (o *options) resume(fd int) (*answer, error) {
	f := os.NewFile(uintptr(fd), "connection")
	raw, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, exchangeError("take over the connection to "+o.socket, &net.OpError{Op: "take over", Net: "unix", Err: err})
	}
	c := &conn{Conn: raw, idle: o.idle, until: time.Now().Add(longest), left: maxReceived}
	defer c.Close()
	return o.receive(c)
}

// errTooLong: the daemon sends more than maxReceived.
var errTooLong = errors.New("the answer is too long")

// conn is a connection on which each read and write waits for the idle timeout at most,
// and never past a deadline.
type conn struct {
	net.Conn
	idle  time.Duration
	until time.Time
	left  int  // bytes that may still be received
	ended bool // the daemon has closed the connection
}

func (c *conn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, errTooLong
	}
	if err := c.SetReadDeadline(c.deadline()); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	c.ended = c.ended || errors.Is(err, io.EOF)
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(c.deadline()); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *conn) deadline() time.Time {
	if t := time.Now().Add(c.idle); t.Before(c.until) {
		return t
	}
	return c.until
}

// receive receives the answer. The caller closes the connection.
func (o *options) receive(c *conn) (*answer, error) {
	status, body, err := c.response()
	if err == nil && status != http.StatusOK {
		return answerOf(refusal(status, body), ""), nil
	}
	var a *answer
	if err == nil {
		a, err = readAnswer(body)
	}
	if err != nil {
		return nil, exchangeError("answer on "+o.socket, err)
	}
	return a, nil
}

// response reads a response. The error is io.ErrUnexpectedEOF if the connection ended
// before the response did, whatever part of it is missing.
func (c *conn) response() (status int, body []byte, err error) {
	status, body, err = readResponse(c)
	if err != nil && c.ended {
		err = io.ErrUnexpectedEOF
	}
	return status, body, err
}

// readResponse reads a response of HTTP/1.1 to its end. It refuses a response without a
// length, because a truncated one could not be recognised.
func readResponse(r io.Reader) (status int, body []byte, err error) {
	response, err := http.ReadResponse(bufio.NewReader(r), &http.Request{Method: http.MethodPost})
	switch {
	case err != nil:
		return 0, nil, err
	case response.StatusCode < 200 || !response.ProtoAtLeast(1, 1):
		return 0, nil, errors.New("no final response of HTTP/1.1")
	case response.ContentLength < 0 && len(response.TransferEncoding) == 0:
		return 0, nil, errors.New("the length of the body is not given")
	case response.ContentLength > maxResponse:
		return 0, nil, errTooLong
	}
	if body, err = io.ReadAll(io.LimitReader(response.Body, maxResponse+1)); err != nil {
		return 0, nil, err
	}
	if len(body) > maxResponse {
		return 0, nil, errTooLong
	}
	return response.StatusCode, body, nil
}

// exchangeError returns the error of an exchange with the daemon: errNotReachable if the
// connection could not be made or has ended, otherwise errNoAnswer.
func exchangeError(doing string, err error) error {
	kind := errNoAnswer
	switch op := (*net.OpError)(nil); {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		err = errors.New("it took too long")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		kind, err = errNotReachable, errors.New("the connection ended before the answer did")
	case errors.As(err, &op):
		kind, err = errNotReachable, op.Err
	}
	return fmt.Errorf("%s: %w: %w", doing, kind, err)
}

// refusal returns the error of a request that the daemon refused.
func refusal(status int, body []byte) error {
	e := &cni.Error{Code: cni.CodeInternal, Msg: fmt.Sprintf("allocnetd refused the request: HTTP status %d", status)}
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		e.Code = cni.CodeTryAgainLater
	}
	var said struct{ Error struct{ Message string } }
	_ = json.Unmarshal(body, &said) // another server may send another body
	e.Details = said.Error.Message
	return e
}
