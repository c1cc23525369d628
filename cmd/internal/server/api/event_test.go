package api_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/internal/wire"
)

// source yields its events after a given one and then ends.
type source []wire.Event

func (s source) follow(ctx context.Context, last uint64) <-chan wire.Event {
	events := make(chan wire.Event)
	go func() {
		defer close(events)
		for _, e := range s {
			if e.ID != 0 && e.ID <= last {
				continue
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
		<-ctx.Done()
	}()
	return events
}

var (
	someTime = time.Date(2024, 2, 29, 12, 0, 0, 5, time.UTC)
	happened = source{
		{Time: someTime, Type: "lost", Data: map[string]any{"count": 3}},
		{ID: 7, Time: someTime, Type: "operation", Data: map[string]any{
			"operation": "setup", "id": "a", "networks": []string{"net"}, "engine": "native", "seconds": 0.5, "outcome": "ok",
			"steps": []any{map[string]any{"step": "add", "at": 0.1, "seconds": 0.4, "outcome": "ok"}},
		}},
		{ID: 8, Time: someTime, Type: "later", Data: "new\nline"},
	}
)

func TestEvents(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{Events: happened.follow, Limits: api.Limits{Keepalive: 20 * time.Millisecond}})
	c := dial(t, socket, request("GET", "/v1/events", ""))
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	const want = ": allocnetd\n\n" +
		"event: lost\n" + `data: {"time":"2024-02-29T12:00:00.000000005Z","type":"lost","data":{"count":3}}` + "\n\n" +
		"id: 7\nevent: operation\n" + `data: {"id":7,"time":"2024-02-29T12:00:00.000000005Z","type":"operation","data":{"engine":"native","id":"a","networks":["net"],` +
		`"operation":"setup","outcome":"ok","seconds":0.5,"steps":[{"at":0.1,"outcome":"ok","seconds":0.4,"step":"add"}]}}` + "\n\n" +
		"id: 8\nevent: later\n" + `data: {"id":8,"time":"2024-02-29T12:00:00.000000005Z","type":"later","data":"new\nline"}` + "\n\n"
	const keepalive = ":\n\n" // at any time, between the events
	got := ""
	for text := make([]byte, 1); !strings.Contains(got, "event: later") || !strings.HasSuffix(got, "\n\n"+keepalive); got += string(text) {
		_, err := io.ReadFull(response.Body, text)
		require.NoError(t, err, got)
	}
	require.Equal(t, want, strings.ReplaceAll(got, "\n"+keepalive, "\n"))
}

func TestEventsContinueAfterTheLast(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{Events: happened[1:].follow})
	for path, header := range map[string]string{"/v1/events?after=7": "", "/v1/events": "7", "/v1/events?after=7&x": "1"} {
		text := request("GET", path, "")
		if header != "" {
			text = text[:len(text)-2] + "Last-Event-ID: " + header + "\r\n\r\n"
		}
		response, err := http.ReadResponse(bufio.NewReader(dial(t, socket, text)), nil)
		require.NoError(t, err)
		lines := bufio.NewScanner(response.Body)
		for range 3 {
			require.True(t, lines.Scan())
		}
		require.Equal(t, "id: 8", lines.Text(), path)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	socket, _ := apitest.Serve(t, api.Options{Limits: api.Limits{Streams: 1}})
	stream := dial(t, socket, request("GET", "/v1/events", ""))
	_, err := bufio.NewReader(stream).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "busy", ask(t, socket, "GET", "/v1/events", "").failure(t).Kind)
	require.NoError(t, stream.Close())
	require.Eventually(t, func() bool {
		for _, err := range client.New(client.Config{Socket: socket}).Events(canceledSoon(t), 0) {
			return err == nil
		}
		return true // the stream is open and has no events yet
	}, soon, time.Millisecond)
}

func canceledSoon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// flood yields events without end.
func flood(ctx context.Context, _ uint64) <-chan wire.Event {
	events := make(chan wire.Event)
	go func() {
		defer close(events)
		for id := uint64(1); ; id++ {
			select {
			case events <- wire.Event{ID: id, Type: "operation", Data: make([]int, 10000)}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events
}

// TestStreamThatIsNotReadEnds has a limit of one stream and waits for its end.
func TestStreamThatIsNotReadEnds(t *testing.T) {
	ended := make(chan struct{})
	events := func(ctx context.Context, last uint64) <-chan wire.Event {
		context.AfterFunc(ctx, func() { close(ended) })
		return flood(ctx, last)
	}
	socket, _ := apitest.Serve(t, api.Options{Events: events, Limits: api.Limits{WriteTimeout: 50 * time.Millisecond}})
	dial(t, socket, request("GET", "/v1/events", ""))
	receive(t, ended)
}

// TestShutdownDespiteAStreamThatIsNotRead: a client that does not read its stream does not delay the
// shutdown for as long as a write may take.
func TestShutdownDespiteAStreamThatIsNotRead(t *testing.T) {
	var written atomic.Int64
	events := func(ctx context.Context, last uint64) <-chan wire.Event {
		counted := make(chan wire.Event)
		go func() {
			defer close(counted)
			for e := range flood(ctx, last) {
				select {
				case counted <- e:
					written.Add(1)
				case <-ctx.Done():
					return
				}
			}
		}()
		return counted
	}
	socket, server := apitest.Serve(t, api.Options{Events: events, Limits: api.Limits{WriteTimeout: time.Hour}})
	dial(t, socket, request("GET", "/v1/events", ""))
	before := int64(0)
	require.Eventually(t, func() bool { // the buffers of the socket are full
		n := written.Load()
		full := n > 0 && n == before
		before = n
		return full
	}, soon, 50*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	require.NoError(t, server.Shutdown(ctx))
}

func TestClientFollowsEvents(t *testing.T) {
	socket, server := apitest.Serve(t, api.Options{Events: happened.follow})
	c := client.New(client.Config{Socket: socket})
	var got []client.Event
	var broken error
	for e, err := range c.Events(t.Context(), 0) {
		if err != nil {
			broken = err
			break
		}
		e.JSON = nil
		got = append(got, e)
		if len(got) == len(happened) {
			go func() { _ = server.Shutdown(context.Background()) }()
		}
	}
	require.Equal(t, io.EOF, broken, "the daemon stopped")
	done := &client.Operation{
		Seconds: 0.5, Outcome: "ok", Steps: []client.StepTime{{Step: "add", At: 0.1, Seconds: 0.4, Outcome: "ok"}},
	}
	done.Operation, done.ID, done.Networks, done.Engine = "setup", "a", []string{"net"}, "native"
	require.Equal(t, []client.Event{
		{Time: someTime, Type: "lost", Data: &client.Lost{Count: 3}},
		{ID: 7, Time: someTime, Type: "operation", Data: done},
		{ID: 8, Time: someTime, Type: "later"},
	}, got)
}

func TestClientStopsFollowing(t *testing.T) {
	ended := make(chan struct{}, 2)
	socket, _ := apitest.Serve(t, api.Options{Events: func(ctx context.Context, last uint64) <-chan wire.Event {
		context.AfterFunc(ctx, func() { ended <- struct{}{} })
		return happened.follow(ctx, last)
	}})
	c := client.New(client.Config{Socket: socket})
	for _, err := range c.Events(t.Context(), 0) {
		require.NoError(t, err)
		break
	}
	receive(t, ended)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range c.Events(ctx, 0) {
		require.NoError(t, err)
		cancel()
	}
	receive(t, ended)
}
