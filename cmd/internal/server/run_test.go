package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestLifecycle(t *testing.T) {
	i := prepare(t, "reload").ready()
	i.signal(syscall.SIGHUP)
	require.Regexp(t, regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*\nSTATUS=reloading$`), i.notified())
	announce(i.dir, "reload")
	require.Equal(t, "READY=1\nSTATUS=ready", i.notified())
	i.logged("reloaded")

	i.signal(syscall.SIGTERM)
	require.Equal(t, "STOPPING=1\nSTATUS=finishing running requests\nEXTEND_TIMEOUT_USEC=3615000000", i.notified())
	i.ended(0)
	require.NoFileExists(t, i.dir+"/s")
	require.FileExists(t, i.dir+"/s.lock")
	i.ready()
	i.signal(syscall.SIGINT)
	i.ended(0)
}

func TestReloadRefused(t *testing.T) {
	i := prepare(t, "reload").ready()
	require.NoError(t, os.WriteFile(filepath.Join(i.dir, "bad"), nil, 0o600))
	i.signal(syscall.SIGHUP)
	require.Contains(t, i.notified(), "RELOADING=1")
	announce(i.dir, "reload")
	require.Equal(t, "READY=1\nSTATUS=ready; the last reload was refused, see the log", i.notified())
	require.Contains(t, i.logged("not reloaded"), "bad file")
	_, err := i.get("/healthz")
	require.NoError(t, err)
}

// TestServesBeforeReady serves while the reconciliation runs.
func TestServesBeforeReady(t *testing.T) {
	i := prepare(t, "reconcile").start()
	require.Equal(t, "STATUS=comparing records with the kernel\nEXTEND_TIMEOUT_USEC=3600000000", i.notified())
	_, err := i.get("/healthz")
	require.NoError(t, err)
	i.signal(syscall.SIGHUP)
	i.logged("reloaded") // without a message to systemd
	announce(i.dir, "reconcile")
	require.Equal(t, "READY=1\nSTATUS=ready", i.notified())
}

// TestEndsBeforeReady ends the daemon while the reconciliation runs.
func TestEndsBeforeReady(t *testing.T) {
	i := prepare(t, "reconcile", "reload").start()
	i.notified()
	i.signal(syscall.SIGTERM)
	require.Contains(t, i.notified(), "STOPPING=1")
	announce(i.dir, "reconcile")
	require.NotContains(t, i.ended(0), "ready")
	i.silent()
}

// TestEndsWhileReloading checks that a reload that ends after SIGTERM is not reported.
func TestEndsWhileReloading(t *testing.T) {
	i := prepare(t, "reload").ready()
	i.signal(syscall.SIGHUP)
	require.Contains(t, i.notified(), "RELOADING=1")
	i.signal(syscall.SIGTERM)
	require.Contains(t, i.notified(), "STOPPING=1")
	announce(i.dir, "reload")
	i.ended(0)
	i.silent()
}

func TestReadyWithoutReconciliation(t *testing.T) {
	i := prepare(t, "reconcile", "hurry").start()
	i.logged("ready, although the comparison of records")
	i.logged("ready")
	announce(i.dir, "reconcile")
}

func TestFinishesWhatRuns(t *testing.T) {
	i := prepare(t, "started", "finish").ready()
	answer := i.slowly()
	i.signal(syscall.SIGTERM)
	require.Contains(t, i.notified(), "STOPPING=1")
	require.Eventually(t, func() bool {
		_, err := i.get("/healthz")
		return errors.Is(err, unix.ENOENT)
	}, time.Minute, time.Millisecond, "nothing new is accepted")
	i.signal(syscall.SIGHUP) // ignored while the daemon ends
	announce(i.dir, "finish")
	require.Equal(t, "finished<nil>", answer())
	i.ended(0)
}

// TestLostSocket: a daemon whose socket or lock another program has removed or replaced ends, so
// that it can be started again, finishes what runs, and leaves the socket of another daemon alone.
func TestLostSocket(t *testing.T) {
	for name, c := range map[string]struct {
		change func(i *instance)
		want   string
	}{
		"socket removed":    {func(i *instance) { require.NoError(i, os.Remove(i.dir+"/s")) }, "has removed"},
		"lock removed":      {func(i *instance) { require.NoError(i, os.Remove(i.dir+"/s.lock")) }, "has removed"},
		"directory renamed": {func(i *instance) { require.NoError(i, os.Rename(i.dir, i.dir+".old")) }, "has removed"},
		"socket replaced": {func(i *instance) {
			l, err := net.Listen("unix", i.dir+"/other")
			require.NoError(i, err)
			require.NoError(i, os.Rename(i.dir+"/other", i.dir+"/s")) // never without a socket
			i.Cleanup(func() {
				require.FileExists(i, i.dir+"/s")
				require.NoError(i, l.Close())
			})
		}, "has replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			i := prepare(t, "impatient", "started", "finish").ready()
			t.Cleanup(func() { _ = os.RemoveAll(i.dir + ".old") })
			answer := func() string { return "" }
			if name == "socket removed" {
				answer = i.slowly()
			}
			c.change(i)
			i.logged("clients cannot reach the daemon: ending, so that it can be started again")
			if name == "socket removed" {
				announce(i.dir, "finish")
				require.Equal(t, "finished<nil>", answer())
			}
			require.Contains(t, i.ended(1), c.want)
		})
	}
}

// TestEndRemovesTheSocket although the daemon looks at it all the time.
func TestEndRemovesTheSocket(t *testing.T) {
	i := prepare(t, "impatient").ready()
	i.signal(syscall.SIGTERM)
	i.ended(0)
	require.NoFileExists(t, i.dir+"/s")
}

func TestCancelsWhatRunsTooLong(t *testing.T) {
	i := prepare(t, "started", "finish", "undo", "hurry").ready()
	answer := i.slowly()
	i.signal(syscall.SIGTERM)
	i.logged("cancelling running requests")
	announce(i.dir, "undo")
	require.Equal(t, "undone<nil>", answer(), "the client gets the answer")
	i.ended(0)
}

func TestSecondSignal(t *testing.T) {
	i := prepare(t, "started", "finish").ready()
	answer := i.slowly()
	i.signal(syscall.SIGTERM)
	require.Contains(t, i.notified(), "STOPPING=1")
	i.signal(syscall.SIGINT)
	require.Contains(t, i.ended(1), ErrForced.Error())
	require.Contains(t, answer(), "EOF")
	i.ready() // on the files that the first one left
}

func TestTaskFails(t *testing.T) {
	i := prepare(t, "fail", "started", "finish").ready()
	answer := i.slowly()
	announce(i.dir, "fail")
	require.Contains(t, i.notified(), "STOPPING=1")
	announce(i.dir, "finish")
	require.Equal(t, "finished<nil>", answer())
	require.Contains(t, i.ended(1), "ended: broken: is broken")
}

func TestKilled(t *testing.T) {
	i := prepare(t).ready()
	i.signal(syscall.SIGKILL)
	i.ended(-1)
	require.FileExists(t, i.dir+"/s", "a killed daemon leaves it")
	i.ready()
	_, err := i.get("/healthz")
	require.NoError(t, err)
}

// TestLogReaderGone closes the reading end of the log.
func TestLogReaderGone(t *testing.T) {
	i := prepare(t)
	i.cmd = exec.Command(os.Args[0])
	reader := i.launch()
	require.Contains(t, i.notified(), "STATUS=comparing")
	require.Contains(t, i.notified(), "READY=1")
	require.NoError(t, reader.Close())
	for range 2 {
		i.signal(syscall.SIGHUP)
		require.Contains(t, i.notified(), "RELOADING=1")
		require.Contains(t, i.notified(), "READY=1")
	}
	i.signal(syscall.SIGTERM)
	require.Contains(t, i.notified(), "STOPPING=1")
	require.NoError(t, i.cmd.Wait())
}

func TestRunInAnEndedContext(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(Socket{Path: dir + "/s"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, Run(ctx, Options{Listener: l, Server: &http.Server{}}))
	require.NoFileExists(t, dir+"/s")
	l, err = Listen(Socket{Path: dir + "/s"})
	require.NoError(t, err, "the lock is free")
	require.NoError(t, l.Release())
	require.NoError(t, l.Release(), "again")
}
