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
	"strings"
	"time"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/wire"
)

// DefaultSocket is the path of the unix socket of allocnetd.
const DefaultSocket = "/run/allocnet/allocnetd.sock"

// DefaultTimeout bounds List, Get and Networks if their context has no deadline.
const DefaultTimeout = 30 * time.Second

// Config configures a Client. The zero value selects the defaults.
type Config struct {
	// Socket is the path of the unix socket; default DefaultSocket.
	Socket string
	// Timeout bounds List, Get and Networks if the context has no deadline; default
	// DefaultTimeout.
	Timeout time.Duration
}

var _ allocnet.Service = (*Client)(nil)

// Client calls the daemon. It implements allocnet.Service and is safe for concurrent use. Each
// call uses a connection of its own.
type Client struct {
	cfg Config

	alivePeriod, aliveTime time.Duration // tests replace them
}

// New makes a Client. It does not connect to the daemon.
func New(cfg Config) *Client {
	cfg.Socket = cmp.Or(cfg.Socket, DefaultSocket)
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	return &Client{cfg: cfg, alivePeriod: alivePeriod, aliveTime: aliveTime}
}

// open sends a request with the body in, nil for none, and returns the response. The caller
// closes the body of the response.
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
		r.header = append(r.header, wire.TimeoutHeader+": "+serverTimeout(time.Until(deadline)))
	}
	answer, err := roundTrip(ctx, c.cfg.Socket, r)
	if err != nil {
		return nil, c.transportError(err)
	}
	return answer, nil
}

// serverTimeout returns the value of wire.TimeoutHeader: the remaining time less a reserve for
// the transfer of the response.
func serverTimeout(left time.Duration) string {
	left -= min(left/20, time.Second)
	return strconv.FormatFloat(max(left, time.Millisecond).Seconds(), 'f', 6, 64)
}

// exchange is a request and its expected response. If out is nil, the response has no body.
// Otherwise its body is decoded into out, and verify must accept it.
type exchange struct {
	method, path string
	in, out      any
	verify       func() error
}

// maxAnswer bounds the body of a response, in bytes. It is larger than all records of a host.
const maxAnswer = 1 << 30

// call sends a request and reads the response. It succeeds only if verify accepts the response.
// It also decodes a response with an error into out, because it may contain a report.
func (c *Client) call(ctx context.Context, e exchange) error {
	if strings.HasPrefix(e.path+"/", pathOf("")+"/") { // would be another path
		return fmt.Errorf("%w: the ID is empty", allocnet.ErrInvalidAllocation)
	}
	ctx, cancel := c.watched(ctx)
	defer cancel()
	answer, err := c.open(ctx, e.method, e.path, e.in)
	if err != nil {
		return hung(ctx, err)
	}
	defer answer.body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.body, maxAnswer+1))
	if err != nil {
		return hung(ctx, c.transportError(err))
	}
	failure, err := e.read(answer, data)
	if err != nil {
		return fmt.Errorf("%s %s of allocnetd at %s: unexpected answer %q: %w", e.method, e.path, c.cfg.Socket, answer.status, err)
	}
	return failure.Err()
}

// read returns the error in a response as failure. err means that the response is invalid.
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
		return nil, errors.New("a body, where none is expected")
	}
	if err := json.Unmarshal(data, e.out); err != nil {
		return nil, err
	}
	return nil, e.verify()
}

// readable returns an error if the body of a response is not JSON, or too long.
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

// readFailure decodes the body of a response with an error.
func readFailure(data []byte) (*wire.Error, error) {
	var failure wire.Failure
	if err := json.Unmarshal(data, &failure); err != nil {
		return nil, err
	}
	return failure.Error, verifyError(failure.Error)
}

// bounded returns a context with a deadline: that of ctx, or Config.Timeout from now.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.Timeout)
}

// Close does nothing, because a Client keeps no connection open. It is part of
// allocnet.Service.
func (c *Client) Close() error { return nil }
