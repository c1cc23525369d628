package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"strconv"
	"time"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/wire"
)

// DefaultSocket is where allocnetd listens.
const DefaultSocket = "/run/allocnet/allocnetd.sock"

// DefaultTimeout bounds the calls that only read where their context has no deadline.
const DefaultTimeout = 30 * time.Second

// Config says where the daemon is. The zero value is of use.
type Config struct {
	// Socket is the path of the unix socket; default DefaultSocket.
	Socket string
	// Timeout bounds List, Get and Networks where the context has no deadline; default
	// DefaultTimeout.
	Timeout time.Duration
}

var _ allocnet.Service = (*Client)(nil)

// Client is a way to the daemon. It is an allocnet.Service. It keeps no connection open between calls, and is
// safe for concurrent use.
type Client struct{ cfg Config }

// New makes a Client. The daemon need not be there yet.
func New(cfg Config) *Client {
	cfg.Socket = cmp.Or(cfg.Socket, DefaultSocket)
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	return &Client{cfg: cfg}
}

// open sends a request; in is its body, nil for none. The caller closes the body of
// the answer.
func (c *Client) open(ctx context.Context, method, path string, in any) (*response, error) {
	r := &request{method: method, path: path}
	if in != nil {
		var err error
		if r.body, err = json.Marshal(in); err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		r.header = append(r.header, "Content-Type: application/json")
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.header = append(r.header, wire.TimeoutHeader+": "+patience(time.Until(deadline)))
	}
	answer, err := roundTrip(ctx, c.cfg.Socket, r)
	if err != nil {
		return nil, c.transportError(err)
	}
	return answer, nil
}

// patience is what the daemon is told of the time that is left: a little less, for
// its answer to arrive.
func patience(left time.Duration) string {
	left -= min(left/20, time.Second)
	return strconv.FormatFloat(max(left, time.Millisecond).Seconds(), 'f', 6, 64)
}

// exchange is a request and the answer that is expected: nothing where out is nil, and
// else what is decoded into out and passes verify.
type exchange struct {
	method, path string
	in, out      any
	verify       func() error
}

// maxAnswer bounds an answer, in bytes: it is more than a host's records take.
const maxAnswer = 1 << 30

// call sends a request and reads the answer. Success is only what was verified. An
// answer that is an error is decoded into out too, for what it holds beside it.
func (c *Client) call(ctx context.Context, e exchange) error {
	answer, err := c.open(ctx, e.method, e.path, e.in)
	if err != nil {
		return err
	}
	defer answer.body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.body, maxAnswer+1))
	if err != nil {
		return c.transportError(err)
	}
	failure, err := e.read(answer, data)
	if err != nil {
		return fmt.Errorf("%s %s of allocnetd at %s: unexpected answer %q: %w", e.method, e.path, c.cfg.Socket, answer.status, err)
	}
	return failure.Err()
}

// read returns the error that an answer tells of. err is why it is not an answer.
func (e *exchange) read(answer *response, data []byte) (failure *wire.Error, err error) {
	if answer.code == statusNoContent && e.out == nil {
		return nil, nil
	}
	if err := readable(answer, data); err != nil {
		return nil, err
	}
	if answer.code != statusOK {
		failure, err := readFailure(data)
		if err == nil && e.out != nil {
			_ = json.Unmarshal(data, e.out)
		}
		return failure, err
	}
	if e.out == nil {
		return nil, errors.New("a body, where there is none")
	}
	if err := json.Unmarshal(data, e.out); err != nil {
		return nil, err
	}
	return nil, e.verify()
}

// readable tells a body of JSON.
func readable(answer *response, data []byte) error {
	kind, _, err := mime.ParseMediaType(answer.header.Get("Content-Type"))
	switch {
	case len(data) > maxAnswer:
		return fmt.Errorf("it is longer than %d bytes", maxAnswer)
	case err != nil || kind != "application/json":
		return fmt.Errorf("content type %q", answer.header.Get("Content-Type"))
	}
	return nil
}

// readFailure reads the error of an answer that has one.
func readFailure(data []byte) (*wire.Error, error) {
	var failure wire.Failure
	if err := json.Unmarshal(data, &failure); err != nil {
		return nil, err
	}
	return failure.Error, verifyError(failure.Error)
}

// bounded is a context with a deadline.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.Timeout)
}

// Close does nothing, as no connection is kept open between calls. It is there so that
// a Client is an allocnet.Service.
func (c *Client) Close() error { return nil }
