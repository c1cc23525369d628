package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/allocnet/allocnet/internal/api/wire"
	"github.com/allocnet/allocnet/internal/cniwire"
)

// DefaultSocket is where allocnetd listens.
const DefaultSocket = cniwire.DefaultSocket

// DefaultTimeout bounds calls that have no context.
const DefaultTimeout = 30 * time.Second

// Config says where the daemon is. The zero value is of use.
type Config struct {
	// Socket is the path of the unix socket; default DefaultSocket.
	Socket string
	// Timeout bounds the calls that have no context (List, Get, Networks); default
	// DefaultTimeout.
	Timeout time.Duration
}

// Client is a way to the daemon. It keeps no connection open between calls, and is
// safe for concurrent use.
type Client struct {
	cfg  Config
	http *http.Client
}

// New makes a Client. The daemon need not be there yet.
func New(cfg Config) *Client {
	cfg.Socket = cmp.Or(cfg.Socket, DefaultSocket)
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", cfg.Socket)
	}
	return &Client{cfg: cfg, http: &http.Client{Transport: &http.Transport{
		DialContext: dial, DisableKeepAlives: true, DisableCompression: true,
	}}}
}

// open sends a request; in is its body, nil for none. The caller closes the body of
// the answer.
func (c *Client) open(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://allocnetd"+path, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.Header.Set(wire.TimeoutHeader, patience(time.Until(deadline)))
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, c.transportError(err)
	}
	return response, nil
}

// patience is what the daemon is told of the time that is left: a little less, for
// its answer to arrive.
func patience(left time.Duration) string {
	left -= min(left/20, time.Second)
	return strconv.FormatFloat(max(left, time.Millisecond).Seconds(), 'f', 6, 64)
}

// call sends a request and decodes the answer into out, which is nil where there is
// none. An answer that is an error is decoded too, for what it holds beside it.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	response, err := c.open(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return c.transportError(err)
	}
	var failure wire.Failure
	switch {
	case response.StatusCode == http.StatusNoContent:
		return nil
	case response.StatusCode != http.StatusOK:
		if json.Unmarshal(data, &failure) != nil || failure.Error == nil {
			return fmt.Errorf("%s %s of allocnetd at %s: unexpected answer %q", method, path, c.cfg.Socket, response.Status)
		}
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil && failure.Error == nil {
			return fmt.Errorf("decode answer of allocnetd at %s: %w", c.cfg.Socket, err)
		}
	}
	return remote(failure.Error)
}

// unhurried is a context for calls that have none.
func (c *Client) unhurried() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), c.cfg.Timeout)
}
