package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// reading returns a reading at a second, with the bytes that allocations have received.
func reading(second int, received map[string]uint64, problems ...string) *client.HostTraffic {
	t := &client.HostTraffic{Time: time.Unix(int64(second), 0), Problems: problems}
	for _, id := range []string{"a", "b", "c"} {
		bytes, ok := received[id]
		if !ok {
			continue
		}
		n := len(id) + second
		t.Allocations = append(t.Allocations, client.AllocationTraffic{ID: id, Connections: &n, Interfaces: []client.InterfaceTraffic{
			{Network: "front", Interface: "eth0", Received: client.Counters{Bytes: bytes, Dropped: 1, Denied: 3}, Sent: client.Counters{Bytes: 100, Dropped: 2, Denied: 4}},
			{Network: "back", Interface: "eth1", Received: client.Counters{Bytes: 1024}},
		}})
	}
	return t
}

func TestTopText(t *testing.T) {
	print := func(f *topFlags, terminal bool, before, now *client.HostTraffic) (string, string) {
		var out, errOut strings.Builder
		a := newApp(nil, &out, &errOut)
		a.out.Terminal = terminal
		require.NoError(t, a.printTraffic(f, before, now))
		return out.String(), errOut.String()
	}
	first := reading(0, map[string]uint64{"a": 0, "b": 5000, "c": 10 << 30})
	second := reading(2, map[string]uint64{"a": 4 << 20, "b": 5000, "c": 3})
	second.Allocations[1].Connections = nil

	text, _ := print(&topFlags{once: true}, true, nil, first)
	require.Equal(t, `ID  NETWORKS    RECEIVED  SENT   DROPPED  DENIED  CONNECTIONS
c   front,back  10.0 GiB  100 B  3        7       1
b   front,back  5.9 KiB   100 B  3        7       1
a   front,back  1.0 KiB   100 B  3        7       1
`, text)
	text, _ = print(&topFlags{}, false, first, second)
	require.Equal(t, `
ID  NETWORKS    RECEIVED/S  SENT/S  RECEIVED  SENT   DROPPED  DENIED  CONNECTIONS
a   front,back  2.0 MiB     0 B     4.0 MiB   100 B  3        7       3
b   front,back  0 B         0 B     5.9 KiB   100 B  3        7       -
c   front,back  -           -       1.0 KiB   100 B  3        7       3
`, text, "c was set up again")
	second.Problems = []string{"x cannot be read"}
	text, warning := print(&topFlags{}, true, first, second)
	require.True(t, strings.HasPrefix(text, "\x1b[H\x1b[J"), text)
	require.Contains(t, warning, "x cannot be read")
	for range 30 {
		second.Allocations = append(second.Allocations, second.Allocations[1])
	}
	text, _ = print(&topFlags{}, true, first, second)
	require.Equal(t, 21, strings.Count(text, "front,back"), "what fits into the terminal")
	require.Contains(t, text, "\nand 12 more with less traffic")
}

func TestSizes(t *testing.T) {
	for n, want := range map[float64]string{
		-1: "", 0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 40: "1.0 TiB", 1 << 63: "8.0 EiB", 1 << 80: "1048576.0 EiB",
	} {
		require.Equal(t, want, binarySize(n))
	}
}

// TestTop reads the traffic in this process, and from the daemon.
func TestTop(t *testing.T) {
	privhost.Require(t)
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web").ok(t)
	got := decode[client.HostTraffic](t, w.run("top", "--once", "--json").ok(t))
	require.Len(t, got.Allocations, 1)
	require.Equal(t, "web", got.Allocations[0].ID)
	require.Regexp(t, `(?m)^web +- +0 B +0 B +0 +0 +0$`, w.run("top", "--once").ok(t))
	require.Equal(t, exitUsage, w.run("top", "--interval", "1ms").code)

	ask := w.serve(sandbox.DefaultDir)
	require.Regexp(t, `(?m)^a +- +0 B +0 B +0 +0 +3$`, ask("top", "--once").ok(t))
	require.Equal(t, "no-daemon", runWith("", "top", "--once", "--socket", w.path("nobody"), "--json").failure(t, exitFailure).Kind)
	w.run("teardown", "web").ok(t)
}

// lines counts lines, and calls done after the second one.
type lines struct {
	bytes.Buffer
	done func()
}

func (l *lines) Write(data []byte) (int, error) {
	n, err := l.Buffer.Write(data)
	if bytes.Count(l.Bytes(), []byte("\n")) >= 2 {
		l.done()
	}
	return n, err
}

// TestTopFollows prints a reading per line until it is interrupted, which is a success.
func TestTopFollows(t *testing.T) {
	privhost.Require(t)
	w := newWorkspace(t)
	w.serve(sandbox.DefaultDir)
	ctx, cancel := context.WithCancel(t.Context())
	out := &lines{done: cancel}
	var errOut bytes.Buffer
	require.Equal(t, exitOK, run(ctx, []string{"top", "--json", "--interval", "100ms", "--socket", w.socket}, nil, out, &errOut), errOut.String())
	for line := range bytes.Lines(out.Bytes()) {
		var got client.HostTraffic
		require.NoError(t, json.Unmarshal(line, &got))
		require.Equal(t, "a", got.Allocations[0].ID)
	}
}
