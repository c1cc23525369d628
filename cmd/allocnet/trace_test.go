package main

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/trace"
)

// TestTrace: the command ends with code 3 where the path ends. Package trace tests the paths.
func TestTrace(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web", "--port", "8080:80/tcp").ok(t)
	for _, what := range []string{"web", "8080", "8080/tcp"} {
		got := w.run("trace", what, "--json")
		require.Equal(t, exitNo, got.code)
		paths := decode[[]trace.Path](t, got.out)
		require.Len(t, paths, 2, "one for each address family")
		require.False(t, paths[0].Reached)
		require.Equal(t, "web", paths[0].ID)
		require.Equal(t, "unreachable", got.failure(t, exitNo).Kind)
	}
	require.Regexp(t, `(?m)^tcp \S+:8080 -> 10\.9\.0\.2:80 of web$`, w.run("trace", "web").out)
	require.Len(t, decode[[]trace.Path](t, w.run("trace", "web", "--json", "--from", "2001:db8::1").out), 1)
	for _, what := range []string{"nobody", "8081", "8080/udp"} {
		require.Equal(t, "not-found", w.run("trace", what, "--json").failure(t, exitNo).Kind)
	}
	w.sandbox("plain")
	w.run("setup", "plain").ok(t)
	unpublished := w.run("trace", "plain", "--json").failure(t, exitNo)
	require.Equal(t, "unpublished trace plain: the allocation has no host port", unpublished.Kind+" "+unpublished.Error)
	require.Contains(t, unpublished.Hint, "allocnet publish")
	w.run("teardown", "plain").ok(t)
	require.Contains(t, w.run("trace", "8080/foo", "--json").failure(t, exitUsage).Error, "use one of tcp, udp, sctp")
	require.Contains(t, w.run("trace", "web", "--from", "here", "--json").failure(t, exitUsage).Error, `--from "here"`)
	w.run("teardown", "web").ok(t)
}

// TestTraceOfReached: what the host reaches is not said to be reached by clients.
func TestTraceOfReached(t *testing.T) {
	w := newWorkspace(t)
	ns := w.sandbox("web")
	w.run("setup", "web", "--network", "allocnet", "--subnet", "10.202.0.0/16", "--port", "8080:80/tcp").ok(t)
	var server net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		server, err = net.Listen("tcp4", ":80")
		return err
	}))
	defer server.Close()
	require.Regexp(t, `\nok: the path reaches the process; packets of clients pass other rules: add --from ADDRESS\n$`,
		w.run("trace", "web").ok(t))
	require.NotContains(t, w.run("trace", "web", "--from", "10.202.0.1").out, "--from")
	w.run("teardown", "web").ok(t)
}
