package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/allocnet/allocnet/sandbox"
)

// answer is the response of an allocation's server.
type answer struct {
	Allocation string `json:"allocation"`
	Client     string `json:"client"` // the client's address as the server sees it
}

// serve starts a server in a sandbox. A socket belongs to the namespace in
// which it was opened, whichever thread uses it later.
func (d *demo) serve(ctx context.Context, a *allocation) error {
	return d.steps.do(ctx, "serve HTTP in "+a.id, func(ctx context.Context) (string, error) {
		var l net.Listener
		err := a.ns.Do(func() (err error) {
			l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(serverPort))
			return err
		})
		if err != nil {
			return "", err
		}
		server := &http.Server{Handler: http.HandlerFunc(a.handle), ReadHeaderTimeout: time.Minute}
		done := make(chan error, 1)
		go func() { done <- server.Serve(l) }()
		d.steps.later("stop the server in "+a.id, func(context.Context) (string, error) {
			closeErr := server.Close()
			if err := <-done; !errors.Is(err, http.ErrServerClosed) {
				return "", errors.Join(err, closeErr)
			}
			return "", closeErr
		})
		return fmt.Sprintf("on port %d", serverPort), nil
	})
}

func (a *allocation) handle(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer{Allocation: a.id, Client: host})
}

// request is a request from one namespace to an allocation.
type request struct {
	from    string
	ns      *sandbox.Sandbox // where the request is sent from; nil for the host
	address string
	want    *allocation
}

func (d *demo) requestAll(ctx context.Context) error {
	var errs []error
	for _, r := range d.requests() {
		errs = append(errs, d.steps.do(ctx, r.from+" -> "+r.address, func(ctx context.Context) (string, error) {
			start := time.Now()
			got, err := r.send(ctx)
			if err != nil {
				return "", err
			}
			d.answers = append(d.answers, time.Since(start))
			return "from " + got.Client, nil
		}))
	}
	return errors.Join(errs...)
}

// requests returns a request for every path to an allocation: to its host port
// from the host and from outside, and to its own port from the other
// allocation.
func (d *demo) requests() []request {
	var list []request
	for i, a := range d.allocs {
		port := strconv.Itoa(a.hostPort)
		if !strings.Contains(a.status.Address, ":") {
			list = append(list, request{"host", nil, "127.0.0.1:" + port, a})
		}
		for _, p := range d.reachable(a) {
			address := net.JoinHostPort(p.Addr().String(), port)
			list = append(list, request{"host", nil, address, a}, request{"outside", d.outside.ns, address, a})
		}
		other := d.allocs[1-i]
		for _, address := range a.addresses() {
			list = append(list, request{other.id, other.ns, net.JoinHostPort(address, strconv.Itoa(serverPort)), a})
		}
	}
	return list
}

// reachable returns the host's addresses of the families that the allocation
// has.
func (d *demo) reachable(a *allocation) []netip.Prefix {
	var list []netip.Prefix
	for _, own := range a.addresses() {
		for _, p := range hostAddresses {
			if strings.Contains(own, ":") == p.Addr().Is6() {
				list = append(list, p)
			}
		}
	}
	return list
}

// requestTime bounds the wait for an answer.
const requestTime = 5 * time.Second

// send sends one request from inside the namespace, and checks the answer.
func (r request) send(ctx context.Context) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: r.dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.address+"/", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var got answer
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", r.address, err)
	}
	if got.Allocation != r.want.id {
		return nil, fmt.Errorf("ask %s: answered by %q, not by %q", r.address, got.Allocation, r.want.id)
	}
	return &got, nil
}

func (r request) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	dial := func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	}
	if r.ns == nil {
		return conn, dial()
	}
	return conn, r.ns.Do(dial)
}
