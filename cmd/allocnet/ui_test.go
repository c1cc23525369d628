package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// page runs allocnet ui until the test ends, and returns a function that reads a path.
func page(t *testing.T, args ...string) func(path string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, printed := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"ui"}, args...), nil, printed, io.Discard)
		_ = printed.Close()
	}()
	t.Cleanup(func() {
		cancel()
		require.Equal(t, exitOK, <-ended)
	})
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	base, token, found := strings.Cut(lines.Text(), "#token=")
	require.True(t, found, lines.Text())
	return func(path string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, answer.StatusCode, string(body))
		return string(body)
	}
}

// TestUIOfTheDaemon: what the daemon reports is on the page.
func TestUIOfTheDaemon(t *testing.T) {
	privhost.Require(t)
	metrics := "# TYPE allocnet_operation_duration_seconds histogram\n" +
		`allocnet_operation_duration_seconds_bucket{engine="native",operation="setup",le="1"} 3` + "\n" +
		`allocnet_operation_duration_seconds_bucket{engine="native",operation="setup",le="+Inf"} 3` + "\n" +
		`allocnet_operation_duration_seconds_sum{engine="native",operation="setup"} 1.5` + "\n" +
		`allocnet_operation_duration_seconds_count{engine="native",operation="setup"} 3` + "\n"
	socket, _ := apitest.Serve(t, api.Options{Events: publishedOnce, Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = io.WriteString(w, metrics)
	})})
	ask := page(t, "--socket", socket)
	require.Contains(t, ask("api/state"), `"live":true`)
	require.Contains(t, ask("api/status"), `"pid":1`)
	require.Contains(t, ask("api/doctor"), `"checks":[`)
	require.JSONEq(t, `{"operations":[{"operation":"setup","part":"native","count":3,"sum":1.5,"buckets":[{"limit":1,"count":3},{"limit":null,"count":0}]}],"steps":[]}`, ask("api/latencies"))
	require.Contains(t, ask("api/events?after=3"), `"id":4,`)
}

// TestUIWithoutDaemon reads the records of this process's state directory.
func TestUIWithoutDaemon(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web").ok(t)
	ask := page(t, w.flags()...)
	var state struct {
		Live        bool
		Allocations []struct{ ID, Address string }
		Networks    []struct{ Name string }
	}
	require.NoError(t, json.Unmarshal([]byte(ask("api/state")), &state))
	require.False(t, state.Live)
	require.Equal(t, "web 10.9.0.2", state.Allocations[0].ID+" "+state.Allocations[0].Address)
	require.Equal(t, "front", state.Networks[0].Name)
	require.Contains(t, ask("api/status"), `"healthy":1`)
	require.Contains(t, ask("api/history?id=web"), `"operation":"setup"`)
}

func TestUIRefuses(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":80", "localhost:80", "x"} {
		got := runWith("", "ui", "--listen", address)
		require.Equal(t, exitUsage, got.code, address)
		require.Contains(t, got.errOut, "is not a loopback address with a port")
	}
}
