package server

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

func TestWatchdog(t *testing.T) {
	i := prepare(t, "started", "finish").start("WATCHDOG_USEC=20000")
	pings := 0
	for pings < 3 {
		if i.told() == "WATCHDOG=1" {
			pings++
		}
	}
	answer := i.slowly()
	i.signal(syscall.SIGTERM)
	for i.told() != "STOPPING=1\nSTATUS=finishing what runs\nEXTEND_TIMEOUT_USEC=3615000000" {
	}
	for range 3 { // one may have been on its way
		require.Equal(t, "WATCHDOG=1", i.told(), "while it finishes what runs, too")
	}
	tell(i.dir, "finish")
	require.Equal(t, "finished<nil>", answer())
	i.ended(0)
}

func TestMalformedWatchdog(t *testing.T) {
	prepare(t).start("WATCHDOG_USEC=x").logged("the watchdog is not told anything")
}

// TestBeat has a daemon that does not answer, then one that does with an error.
func TestBeat(t *testing.T) {
	dir := tempDir(t)
	told := &instance{T: t, dir: dir, notify: notifySocket(t, filepath.Join(dir, "notify"))}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	var log strings.Builder
	l := listen(t, Socket{Path: dir + "/s", Mode: 0o600})
	logger := hclog.New(&hclog.LoggerOptions{Output: &log})
	d := &daemon{Options: Options{Listener: l, HealthPath: "/healthz", Logger: logger}, notifier: notifier{logger: logger}}

	d.beat(context.Background(), time.Nanosecond) // nobody accepts
	d.notifier.send("MARK=1")
	require.Equal(t, "MARK=1", told.told())
	require.Contains(t, log.String(), `the daemon does not answer itself: error="ask for \"/healthz\": `)

	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})}
	go func() { _ = server.Serve(l) }()
	d.beat(context.Background(), time.Minute)
	require.Equal(t, "WATCHDOG=1", told.told(), "a busy daemon is alive")
	require.NoError(t, server.Close())

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	d.beat(ended, time.Minute)
	require.Equal(t, "WATCHDOG=1", told.told(), "one that is about to end need not answer")
}
