package server

import (
	"context"
	"errors"
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

func TestLife(t *testing.T) {
	i := prepare(t, "reload").ready()
	i.signal(syscall.SIGHUP)
	require.Regexp(t, regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*\nSTATUS=reloading$`), i.told())
	tell(i.dir, "reload")
	require.Equal(t, "READY=1\nSTATUS=ready", i.told())
	i.logged("reloaded")

	i.signal(syscall.SIGTERM)
	require.Equal(t, "STOPPING=1\nSTATUS=finishing what runs\nEXTEND_TIMEOUT_USEC=3615000000", i.told())
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
	require.Contains(t, i.told(), "RELOADING=1")
	tell(i.dir, "reload")
	require.Equal(t, "READY=1\nSTATUS=ready; the last reload was refused, see the log", i.told())
	require.Contains(t, i.logged("not reloaded"), "bad file")
	_, err := i.get("/healthz")
	require.NoError(t, err)
}

// TestServesBeforeReady has the reconciliation take until it is told.
func TestServesBeforeReady(t *testing.T) {
	i := prepare(t, "reconcile").start()
	require.Equal(t, "STATUS=comparing records with the kernel\nEXTEND_TIMEOUT_USEC=3600000000", i.told())
	_, err := i.get("/healthz")
	require.NoError(t, err)
	i.signal(syscall.SIGHUP)
	i.logged("reloaded") // which systemd does not hear of
	tell(i.dir, "reconcile")
	require.Equal(t, "READY=1\nSTATUS=ready", i.told())
}

// TestEndsBeforeReady has the reconciliation not care.
func TestEndsBeforeReady(t *testing.T) {
	i := prepare(t, "reconcile", "reload").start()
	i.told()
	i.signal(syscall.SIGTERM)
	require.Contains(t, i.told(), "STOPPING=1")
	tell(i.dir, "reconcile")
	require.NotContains(t, i.ended(0), "ready")
	i.mark()
}

// TestEndsWhileReloading says nothing of a reload that is done too late.
func TestEndsWhileReloading(t *testing.T) {
	i := prepare(t, "reload").ready()
	i.signal(syscall.SIGHUP)
	require.Contains(t, i.told(), "RELOADING=1")
	i.signal(syscall.SIGTERM)
	require.Contains(t, i.told(), "STOPPING=1")
	tell(i.dir, "reload")
	i.ended(0)
	i.mark()
}

func TestReadyWithoutReconciliation(t *testing.T) {
	i := prepare(t, "reconcile", "impatient").start()
	i.logged("still comparing records with the kernel")
	i.logged("ready")
	tell(i.dir, "reconcile")
}

func TestFinishesWhatRuns(t *testing.T) {
	i := prepare(t, "started", "finish").ready()
	answer := i.slowly()
	i.signal(syscall.SIGTERM)
	require.Contains(t, i.told(), "STOPPING=1")
	require.Eventually(t, func() bool {
		_, err := i.get("/healthz")
		return errors.Is(err, unix.ENOENT)
	}, time.Minute, time.Millisecond, "nothing new is accepted")
	i.signal(syscall.SIGHUP) // too late
	tell(i.dir, "finish")
	require.Equal(t, "finished<nil>", answer())
	i.ended(0)
}

func TestCancelsWhatRunsTooLong(t *testing.T) {
	i := prepare(t, "started", "finish", "undo", "impatient").ready()
	answer := i.slowly()
	i.signal(syscall.SIGTERM)
	i.logged("cancelling what still runs")
	tell(i.dir, "undo")
	require.Equal(t, "undone<nil>", answer(), "it is waited for, and its client hears of it")
	i.ended(0)
}

func TestSecondSignal(t *testing.T) {
	i := prepare(t, "started", "finish").ready()
	answer := i.slowly()
	i.signal(syscall.SIGTERM)
	require.Contains(t, i.told(), "STOPPING=1")
	i.signal(syscall.SIGINT)
	require.Contains(t, i.ended(1), ErrForced.Error())
	require.Contains(t, answer(), "EOF")
	i.ready() // what it left does not matter
}

func TestTaskFails(t *testing.T) {
	i := prepare(t, "fail", "started", "finish").ready()
	answer := i.slowly()
	tell(i.dir, "fail")
	require.Contains(t, i.told(), "STOPPING=1")
	tell(i.dir, "finish")
	require.Equal(t, "finished<nil>", answer())
	require.Contains(t, i.ended(1), "ended: broken: is broken")
}

func TestKilled(t *testing.T) {
	i := prepare(t).ready()
	i.signal(syscall.SIGKILL)
	i.ended(-1)
	require.FileExists(t, i.dir+"/s", "it could not be removed")
	i.ready()
	_, err := i.get("/healthz")
	require.NoError(t, err)
}

// TestLogReaderGone has nobody read what the daemon writes.
func TestLogReaderGone(t *testing.T) {
	i := prepare(t)
	i.cmd = exec.Command(os.Args[0])
	reader := i.launch()
	require.Contains(t, i.told(), "STATUS=comparing")
	require.Contains(t, i.told(), "READY=1")
	require.NoError(t, reader.Close())
	for range 2 {
		i.signal(syscall.SIGHUP)
		require.Contains(t, i.told(), "RELOADING=1")
		require.Contains(t, i.told(), "READY=1")
	}
	i.signal(syscall.SIGTERM)
	require.Contains(t, i.told(), "STOPPING=1")
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
