package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/configurator"
)

// named are sandboxes without network namespaces. Create of "gone" returns after its
// client has disconnected.
type named struct {
	begun, gone, destroyed chan string
}

func newNamed() named { return named{make(chan string, 8), make(chan string, 8), make(chan string, 8)} }

func (n named) Create(ctx context.Context, name string) (string, error) {
	n.begun <- name
	if name == "gone" {
		<-ctx.Done()
	}
	return n.Path(name), nil
}
func (n named) Path(name string) string   { return "/run/netns/" + name }
func (n named) Destroy(name string) error { n.destroyed <- name; return nil }

func TestSandboxWithoutClientIsDestroyed(t *testing.T) {
	n := newNamed()
	socket, _ := apitest.Serve(t, api.Options{Sandboxes: n})
	require.Equal(t, 200, ask(t, socket, "POST", "/v1/sandboxes", `{"name":"kept"}`).status)
	receive(t, n.begun)
	c := dial(t, socket, request("POST", "/v1/sandboxes", `{"name":"gone"}`))
	receive(t, n.begun)
	require.NoError(t, c.Close())
	require.Equal(t, "gone", receive(t, n.destroyed))
}

// TestOperationsOnOneSandboxAreSerial checks that no request finds a sandbox that another
// one is about to destroy.
func TestOperationsOnOneSandboxAreSerial(t *testing.T) {
	n, queue := newNamed(), &counter{}
	socket, _ := apitest.Serve(t, api.Options{Sandboxes: n, Queue: queue, Limits: api.Limits{SlotTimeout: time.Hour}})
	c := dial(t, socket, request("POST", "/v1/sandboxes", `{"name":"gone"}`))
	receive(t, n.begun)
	done := make(chan answer, 1)
	go func() {
		got, _ := try(t.Context(), socket, "DELETE", "/v1/sandboxes/gone", "")
		done <- got
	}()
	require.Eventually(t, queue.is(1, 1), soon, time.Millisecond)
	require.Empty(t, n.destroyed)
	require.NoError(t, c.Close())
	require.Equal(t, 204, receive(t, done).status)
}

func TestSandboxOfAnAllocationStays(t *testing.T) {
	n := newNamed()
	socket, _ := apitest.Serve(t, api.Options{Sandboxes: n})
	require.Equal(t, 200, ask(t, socket, "PUT", "/v1/allocs/a", `{"netns":"/run//netns/./s"}`).status)
	got := ask(t, socket, "DELETE", "/v1/sandboxes/s", "")
	require.Equal(t, http.StatusConflict, got.status)
	require.Equal(t, "in-use", got.failure(t).Kind)
	require.Contains(t, got.failure(t).Message, `allocation "a"`)
	got = ask(t, socket, "DELETE", "/v1/sandboxes/other?dir=/elsewhere", "")
	require.Equal(t, "missing", got.failure(t).Kind)
	require.Empty(t, n.destroyed)
	require.Equal(t, 204, ask(t, socket, "DELETE", "/v1/sandboxes/other?dir=/run/netns/", "").status)
	require.Equal(t, "other", receive(t, n.destroyed))
	require.Equal(t, 204, ask(t, socket, "DELETE", "/v1/allocs/a", "").status)
	require.Equal(t, 204, ask(t, socket, "DELETE", "/v1/sandboxes/s", "").status)
}

// TestAnswersTogetherAreBounded has answers of 1 MiB and room for one at a time.
func TestAnswersTogetherAreBounded(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{
		Service: func() allocnet.Service { return &large{} },
		Limits:  api.Limits{WriteTimeout: time.Hour, AllAnswers: 100 << 10},
	})
	first := unread(t, socket)
	got := ask(t, socket, "GET", "/v1/allocs", "")
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Contains(t, got.failure(t).Message, "other answers leave no room")
	require.Equal(t, 200, ask(t, socket, "GET", "/v1/networks", "").status, "small answers are sent")
	require.NoError(t, first.Close())
	require.Eventually(t, func() bool {
		got, err := try(t.Context(), socket, "GET", "/v1/allocs", "")
		return err == nil && got.status == 200 && len(got.body) > 1e6
	}, soon, time.Millisecond, "a single answer fits, whatever its size")
}

// wordy is a service whose errors repeat the request.
type wordy struct{ large }

func (*wordy) Get(context.Context, string) (*configurator.Record, error) {
	return nil, errors.New(strings.Repeat(strings.Repeat("\x00", 1999)+"\n", 50))
}

func TestLongErrorIsCutWhereThereIsNoRoom(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{
		Service: func() allocnet.Service { return &wordy{} },
		Limits:  api.Limits{WriteTimeout: time.Hour, AllAnswers: 100 << 10},
	})
	require.Len(t, ask(t, socket, "GET", "/v1/allocs/a", "").failure(t).Message, 50*2000)
	unread(t, socket)
	require.Len(t, ask(t, socket, "GET", "/v1/allocs/a", "").failure(t).Message, 1000)
}
