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
		if i.notified() == "WATCHDOG=1" {
			pings++
		}
	}
	answer := i.slowly()
	i.signal(syscall.SIGTERM)
	for i.notified() != "STOPPING=1\nSTATUS=finishing running requests\nEXTEND_TIMEOUT_USEC=3615000000" {
	}
	for range 3 { // the first may have been sent before
		require.Equal(t, "WATCHDOG=1", i.notified(), "also during shutdown")
	}
	announce(i.dir, "finish")
	require.Equal(t, "finished<nil>", answer())
	i.ended(0)
}

func TestMalformedWatchdog(t *testing.T) {
	prepare(t).start("WATCHDOG_USEC=x").logged("no keepalives are sent to the watchdog")
}

// TestKeepalive has a daemon that does not answer, then one that answers with an error.
func TestKeepalive(t *testing.T) {
	dir := tempDir(t)
	systemd := &instance{T: t, dir: dir, notify: notifySocket(t, filepath.Join(dir, "notify"))}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	var log strings.Builder
	l := listen(t, Socket{Path: dir + "/s", Mode: 0o600})
	logger := hclog.New(&hclog.LoggerOptions{Output: &log})
	d := &daemon{Options: Options{Listener: l, HealthPath: "/healthz", Logger: logger}, notifier: notifier{logger: logger}}

	d.keepalive(context.Background(), time.Nanosecond) // no process accepts
	d.notifier.send("MARK=1")
	require.Equal(t, "MARK=1", systemd.notified())
	require.Contains(t, log.String(), `the daemon does not answer itself: error="request \"/healthz\": `)

	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})}
	go func() { _ = server.Serve(l) }()
	d.keepalive(context.Background(), time.Minute)
	require.Equal(t, "WATCHDOG=1", systemd.notified(), "a busy daemon sends keepalives")
	require.NoError(t, server.Close())

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	d.keepalive(ended, time.Minute)
	require.Equal(t, "WATCHDOG=1", systemd.notified(), "a daemon that is about to end need not answer")
}
