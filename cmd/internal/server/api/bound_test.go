package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/configurator"
)

// holder is a service that blocks operations on some allocations until the test releases
// them.
type holder struct {
	apitest.Memory
	begun   chan string   // IDs of blocked operations
	release chan struct{} // closed to let them continue
	ended   chan error    // why they ended earlier
}

// hold returns a service that blocks operations on IDs with a prefix.
func hold(prefix string) *holder {
	h := &holder{begun: make(chan string, 64), release: make(chan struct{}), ended: make(chan error, 64)}
	h.Before = func(ctx context.Context, _, id string) error {
		if !strings.HasPrefix(id, prefix) {
			return nil
		}
		h.begun <- id
		select {
		case <-h.release:
			return nil
		case <-ctx.Done():
			h.ended <- ctx.Err()
			return ctx.Err()
		}
	}
	return h
}

func (h *holder) options(l api.Limits) api.Options {
	return api.Options{Service: func() allocnet.Service { return h }, Limits: l}
}

// begin starts a Setup; the returned function waits for its end.
func begin(t *testing.T, socket, id string) (wait func() answer) {
	t.Helper()
	done := make(chan answer, 1)
	go func() {
		got, _ := try(t.Context(), socket, "PUT", "/v1/allocs/"+id, alloc)
		done <- got
	}()
	return func() answer { return receive(t, done) }
}

// counter is a Queue that counts.
type counter struct {
	mu                        sync.Mutex
	waiting, running, refused int
	waited                    int
}

func (c *counter) add(field *int, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*field += n
}
func (c *counter) Waiting(n int)        { c.add(&c.waiting, n) }
func (c *counter) Running(n int)        { c.add(&c.running, n) }
func (c *counter) Waited(time.Duration) { c.add(&c.waited, 1) }
func (c *counter) Refused()             { c.add(&c.refused, 1) }
func (c *counter) is(waiting, running int) func() bool {
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.waiting == waiting && c.running == running
	}
}

func TestQueueIsBounded(t *testing.T) {
	h, queue := hold("held"), &counter{}
	o := h.options(api.Limits{Operations: 2, Queue: 1, SlotTimeout: time.Hour})
	o.Queue = queue
	socket, _ := apitest.Serve(t, o)
	waits := []func() answer{begin(t, socket, "held-1"), begin(t, socket, "held-2")}
	receive(t, h.begun)
	receive(t, h.begun)
	waits = append(waits, begin(t, socket, "held-3"))
	require.Eventually(t, queue.is(1, 2), soon, time.Millisecond)

	got := ask(t, socket, "PUT", "/v1/allocs/more", alloc)
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Equal(t, "1", got.header.Get("Retry-After"))
	require.Equal(t, "busy", got.failure(t).Kind)
	response := callCNI(t, socket, cni.Request{
		Env: cni.Env{Command: cni.Add, ContainerID: "c"}, Config: []byte(`{"cniVersion":"0.4.0"}`),
	})
	require.Equal(t, cni.CodeTryAgainLater, response.Error.Code)
	require.Equal(t, "0.4.0", response.Error.CNIVersion)
	require.Equal(t, 200, ask(t, socket, "GET", "/v1/allocs", "").status, "reads do not wait for operations")

	close(h.release)
	for _, wait := range waits {
		require.Equal(t, 200, wait().status)
	}
	require.Eventually(t, queue.is(0, 0), soon, time.Millisecond)
	require.Equal(t, 2, queue.refused)
	require.Equal(t, 3, queue.waited)
}

// TestHungOperationDelaysNoOthers has operations that wait for a hung allocation, and one
// slot for all other operations.
func TestHungOperationDelaysNoOthers(t *testing.T) {
	h, queue := hold("hung"), &counter{}
	o := h.options(api.Limits{Operations: 2, PerAllocation: 3, SlotTimeout: time.Hour})
	o.Queue = queue
	socket, _ := apitest.Serve(t, o)
	waits := []func() answer{begin(t, socket, "hung")}
	receive(t, h.begun)
	for range 2 {
		waits = append(waits, begin(t, socket, "hung"))
	}
	require.Eventually(t, queue.is(2, 1), soon, time.Millisecond)
	got := ask(t, socket, "DELETE", "/v1/allocs/hung", "")
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Contains(t, got.failure(t).Message, "on this allocation")
	require.Equal(t, 200, ask(t, socket, "PUT", "/v1/allocs/other", alloc).status)
	close(h.release)
	for _, wait := range waits {
		require.Equal(t, 200, wait().status)
	}
}

// TestHungOperationsReleaseTheirSlots has as many hung operations as slots.
func TestHungOperationsReleaseTheirSlots(t *testing.T) {
	h := hold("hung")
	socket, _ := apitest.Serve(t, h.options(api.Limits{Operations: 1, SlotTimeout: time.Millisecond}))
	wait := begin(t, socket, "hung")
	receive(t, h.begun)
	require.Equal(t, 200, ask(t, socket, "PUT", "/v1/allocs/other", alloc).status)
	close(h.release)
	require.Equal(t, 200, wait().status)
}

func TestClientThatGoesAwayCancels(t *testing.T) {
	for _, path := range []string{"/v1/allocs/held", "/cni"} {
		t.Run(path, func(t *testing.T) {
			h := hold("held")
			o := h.options(api.Limits{})
			o.CNI = func(ctx context.Context, r cni.Request) cni.Response {
				return cni.Response{Error: &cni.Error{Msg: fmt.Sprint(h.Before(ctx, r.Env.Command, r.Env.ContainerID))}}
			}
			socket, _ := apitest.Serve(t, o)
			method, body := "PUT", alloc
			if path == "/cni" {
				method, body = "POST", `{"env":{"CNI_COMMAND":"ADD","CNI_CONTAINERID":"held"},"config":{}}`
			}
			c := dial(t, socket, request(method, path, body))
			receive(t, h.begun)
			require.NoError(t, c.Close())
			require.ErrorIs(t, receive(t, h.ended), context.Canceled)
		})
	}
}

func TestClientThatGoesAwayLeavesTheQueue(t *testing.T) {
	h, queue := hold("held"), &counter{}
	o := h.options(api.Limits{Operations: 1, SlotTimeout: time.Hour})
	o.Queue = queue
	socket, _ := apitest.Serve(t, o)
	wait := begin(t, socket, "held")
	receive(t, h.begun)
	c := dial(t, socket, request("PUT", "/v1/allocs/b", alloc))
	require.Eventually(t, queue.is(1, 1), soon, time.Millisecond)
	require.NoError(t, c.Close())
	require.Eventually(t, queue.is(0, 1), soon, time.Millisecond)
	close(h.release)
	wait()
}

func TestDeadlineOfTheClient(t *testing.T) {
	h := hold("held")
	socket, _ := apitest.Serve(t, h.options(api.Limits{}))
	got := ask(t, socket, "PUT", "/v1/allocs/held", alloc, "Request-Timeout", "0.01")
	require.Equal(t, http.StatusGatewayTimeout, got.status)
	require.Equal(t, "timeout", got.failure(t).Kind)
}

func TestOperationTimeout(t *testing.T) {
	h := hold("held")
	socket, _ := apitest.Serve(t, h.options(api.Limits{OperationTimeout: 10 * time.Millisecond}))
	require.Equal(t, "timeout", ask(t, socket, "PUT", "/v1/allocs/held", alloc, "Request-Timeout", "1e9").failure(t).Kind)
}

func TestSlowClients(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{Limits: api.Limits{
		HeaderTimeout: 100 * time.Millisecond, BodyTimeout: 100 * time.Millisecond, IdleTimeout: 100 * time.Millisecond,
	}})
	full := request("PUT", "/v1/allocs/a", alloc)
	for name, c := range map[string]struct{ sent, want string }{
		"nothing":        {"", ""},
		"half a header":  {full[:20], ""},
		"half a body":    {cut(full), `"kind":"too-slow"`},
		"unwanted body":  {cut(request("GET", "/healthz", alloc)), "HTTP/1.1 400 "},
		"no such path":   {cut(request("GET", "/nowhere", alloc)), "HTTP/1.1 404 "},
		"idle afterward": {full, "HTTP/1.1 200 OK"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, readAll(t, dial(t, socket, c.sent)), c.want)
		})
	}
}

// TestLateOperationIsNotTakenForAGoneClient has an operation that lasts longer than the
// body timeout.
func TestLateOperationIsNotTakenForAGoneClient(t *testing.T) {
	h := hold("held")
	const timeout = 100 * time.Millisecond
	socket, _ := apitest.Serve(t, h.options(api.Limits{BodyTimeout: timeout, HeaderTimeout: timeout, WriteTimeout: timeout}))
	c := dial(t, socket, request("PUT", "/v1/allocs/held", alloc))
	receive(t, h.begun)
	select {
	case err := <-h.ended:
		require.NoError(t, err)
	case <-time.After(2 * timeout): // the operation must not end in this time
	}
	close(h.release)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, 200, response.StatusCode)
}

// large is a service with a list of records that exceeds the buffers of a socket.
type large struct{ apitest.Memory }

func (*large) List(context.Context) ([]configurator.Record, error) {
	records := make([]configurator.Record, 100)
	for i := range records {
		records[i] = configurator.Record{ID: fmt.Sprint(i), Netns: "/" + strings.Repeat("x", 10<<10)}
	}
	return records, nil
}

// unread requests a list that exceeds the buffers of a socket, and reads only the first
// line.
func unread(t *testing.T, socket string) *net.UnixConn {
	t.Helper()
	c := dial(t, socket, request("GET", "/v1/allocs", ""))
	_, err := bufio.NewReaderSize(c, 16).ReadString('\n') // the answer is being written
	require.NoError(t, err)
	return c
}

// TestClientThatDoesNotReadHoldsNothing has only one slot for reads.
func TestClientThatDoesNotReadHoldsNothing(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{
		Service: func() allocnet.Service { return &large{} },
		Limits:  api.Limits{Reads: 1, SlotTimeout: time.Hour, WriteTimeout: time.Hour},
	})
	unread(t, socket)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	got, err := try(ctx, socket, "GET", "/v1/networks", "")
	require.NoError(t, err)
	require.Equal(t, 200, got.status)
}

func TestClientThatDoesNotReadIsCutOff(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{
		Service: func() allocnet.Service { return &large{} },
		Limits:  api.Limits{WriteTimeout: time.Second}, // the answer begins within it, also on a busy machine
	})
	c := unread(t, socket)
	require.Eventually(t, func() bool {
		_, err := c.Write([]byte("x"))
		return err != nil
	}, soon, 5*time.Millisecond)
}

func TestClientThatDoesNotReadMetricsIsCutOff(t *testing.T) {
	ended := make(chan error, 1)
	socket, _ := apitest.Serve(t, api.Options{
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_, err := w.Write(make([]byte, 1<<20))
			ended <- err
		}),
		Limits: api.Limits{WriteTimeout: 100 * time.Millisecond},
	})
	dial(t, socket, request("GET", "/metrics", ""))
	require.ErrorIs(t, receive(t, ended), os.ErrDeadlineExceeded)
}

func TestConnectionsAreBounded(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{Limits: api.Limits{Connections: 2}})
	open := []net.Conn{dial(t, socket, ""), dial(t, socket, "")}
	require.Eventually(t, func() bool {
		got := ask(t, socket, "GET", "/healthz", "")
		return got.status == http.StatusTooManyRequests
	}, soon, time.Millisecond)
	require.NoError(t, open[0].Close())
	require.Eventually(t, func() bool { return ask(t, socket, "GET", "/healthz", "").status == 200 }, soon, time.Millisecond)
}

func TestBodiesTogetherAreBounded(t *testing.T) {
	h := hold("held")
	socket, _ := apitest.Serve(t, h.options(api.Limits{AllBodies: 100}))
	padded := alloc + strings.Repeat(" ", 40)
	waits := []func() answer{begin(t, socket, "held")}
	receive(t, h.begun)
	require.Equal(t, 200, ask(t, socket, "PUT", "/v1/allocs/a", padded).status)
	got := ask(t, socket, "PUT", "/v1/allocs/a", padded+strings.Repeat(" ", 40))
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Contains(t, got.failure(t).Message, "leave no room for the body")
	close(h.release)
	require.Equal(t, 200, waits[0]().status)
	require.Eventually(t, func() bool {
		return ask(t, socket, "PUT", "/v1/allocs/a", padded+strings.Repeat(" ", 36)).status == 200
	}, soon, time.Millisecond, "all room is released")
}

func TestPanicReleasesItsResources(t *testing.T) {
	m := &apitest.Memory{Before: func(_ context.Context, _, id string) error {
		if id == "bad" {
			panic("no good")
		}
		return nil
	}}
	socket, _ := apitest.Serve(t, api.Options{
		Service: func() allocnet.Service { return m },
		CNI:     func(context.Context, cni.Request) cni.Response { panic("no good") },
		Limits:  api.Limits{Operations: 1, SlotTimeout: time.Hour},
	})
	got := ask(t, socket, "PUT", "/v1/allocs/bad", alloc)
	require.Equal(t, 500, got.status)
	require.NotContains(t, got.body, "no good")
	got = ask(t, socket, "POST", "/cni", `{"env":{"CNI_COMMAND":"ADD"},"config":{}}`)
	require.Contains(t, got.body, `"code":999`)
	require.Equal(t, 200, ask(t, socket, "PUT", "/v1/allocs/good", alloc).status)
}

func TestShutdownWaitsForOperationsAndEndsStreams(t *testing.T) {
	h := hold("held")
	socket, server := apitest.Serve(t, h.options(api.Limits{}))
	stream := dial(t, socket, request("GET", "/v1/events", ""))
	_, err := bufio.NewReader(stream).ReadString('\n')
	require.NoError(t, err)
	wait := begin(t, socket, "held")
	receive(t, h.begun)
	down := make(chan error, 1)
	go func() { down <- server.Shutdown(t.Context()) }()
	_, err = io.Copy(io.Discard, stream)
	require.NoError(t, err)
	require.Empty(t, down)
	close(h.release)
	require.Equal(t, 200, wait().status)
	require.NoError(t, receive(t, down))
}

func cut(request string) string { return request[:len(request)-5] }

func readAll(t *testing.T, c net.Conn) string {
	t.Helper()
	data, err := io.ReadAll(c)
	if err != nil { // the server may close what it has not read
		require.ErrorContains(t, err, "connection reset")
	}
	return string(data)
}
