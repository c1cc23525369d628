package lease

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// foreignLock holds the lock as another process would.
func foreignLock(t *testing.T, s *Store) (unlock func()) {
	t.Helper()
	fd, err := openFile(s.dir+"/lock", unix.O_RDONLY)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB))
	return func() { unix.Close(fd) }
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	s := newStore(t)
	reserve(t, s, eth0("one"), anyOf(ten)...)
	for name, run := range map[string]func(context.Context) error{
		"Reserve": func(ctx context.Context) error { _, err := s.Reserve(ctx, eth0("two"), anyOf(ten)); return err },
		"Release": func(ctx context.Context) error { return s.Release(ctx, eth0("one")) },
		"Lookup":  func(ctx context.Context) error { _, err := s.Lookup(ctx, eth0("one")); return err },
		"Retain":  func(ctx context.Context) error { _, err := s.Retain(ctx, nil, nil); return err },
	} {
		t.Run(name, func(t *testing.T) {
			unlock := foreignLock(t, s)
			defer unlock()
			ctx, cancel := context.WithCancelCause(t.Context())
			var waiting sync.WaitGroup
			for range 3 {
				waiting.Go(func() { require.ErrorIs(t, run(ctx), context.Canceled) })
			}
			cancel(nil)
			waiting.Wait()
			ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
			defer stop()
			require.ErrorIs(t, run(ctx), context.DeadlineExceeded)
			require.Len(t, dump(t, s), 1)
		})
	}
	require.NoError(t, s.Release(t.Context(), eth0("one")), "who gave up left nothing locked")
}

// TestWaitingWithinTheProcess: this wait also ends with the context.
func TestWaitingWithinTheProcess(t *testing.T) {
	s := newStore(t)
	reserve(t, s, eth0("one"), anyOf(ten)...)
	lock, err := s.lock(t.Context())
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	require.ErrorIs(t, s.Release(ctx, eth0("one")), context.DeadlineExceeded)
	require.Equal(t, 1, lockIsOpen(t, s), "one asks for all")
	done := make(chan error)
	go func() { done <- s.Release(t.Context(), eth0("one")) }()
	lock.unlock()
	require.NoError(t, <-done)
	require.Empty(t, dump(t, s))
}

func TestWaitingForAnotherProcess(t *testing.T) {
	s := newStore(t)
	reserve(t, s, eth0("one"), anyOf(ten)...)
	unlock := foreignLock(t, s)
	done := make(chan error)
	go func() { done <- s.Release(t.Context(), eth0("one")) }()
	select {
	case <-done:
		t.Fatal("it did not wait")
	case <-time.After(10 * time.Millisecond):
	}
	unlock()
	require.NoError(t, <-done)
}

// TestSweptDirectory: a lock on a deleted file does not exclude others.
func TestSweptDirectory(t *testing.T) {
	s := newStore(t)
	reserve(t, s, eth0("one"), anyOf(ten)...)
	unlock := foreignLock(t, s)
	done := make(chan error)
	go func() {
		_, err := s.Reserve(t.Context(), eth0("two"), anyOf(ten))
		done <- err
	}()
	require.Eventually(t, func() bool { return lockIsOpen(t, s) > 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, os.RemoveAll(s.dir))
	unlock()
	require.NoError(t, <-done)
	require.Len(t, dump(t, s), 1)
	require.FileExists(t, s.dir+"/lock")
}

// lockIsOpen counts how often this process has the lock file open.
func lockIsOpen(t *testing.T, s *Store) (n int) {
	t.Helper()
	open, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, fd := range open {
		if target, err := os.Readlink(fd); err == nil && target == s.dir+"/lock" {
			n++
		}
	}
	return n
}

// hammerVariable makes the test binary reserve and release leases in the
// directory that it names.
const hammerVariable = "ALLOCNET_LEASE_HAMMER"

const hammerRange = "10.0.0.1-10.0.0.40@10.0.0.1"

// hammer reserves and releases. While it holds a lease, it creates a mark
// beside the lease, so that two holders of the same address are detected.
func hammer(ctx context.Context, dir, id string) error {
	for i := range 60 {
		s, err := Open(filepath.Join(dir, "leases"), network)
		if err != nil {
			return err
		}
		owner := eth0(fmt.Sprint(id, "-", i))
		got, err := s.Reserve(ctx, owner, anyOf(ranges(hammerRange), fd00))
		if errors.Is(err, ErrExhausted) {
			continue
		}
		if err != nil {
			return err
		}
		for _, addr := range got {
			if err := os.Mkdir(filepath.Join(dir, addr.String()), 0o700); err != nil {
				return fmt.Errorf("%s was given out twice: %w", addr, err)
			}
		}
		for _, addr := range got {
			if err := os.Remove(filepath.Join(dir, addr.String())); err != nil {
				return err
			}
		}
		known := got
		if i%2 == 0 {
			known = nil
		}
		if err := s.Release(ctx, owner, known...); err != nil {
			return err
		}
	}
	return nil
}

// TestHammer runs goroutines, processes, GC and the reference plugin
// concurrently.
func TestHammer(t *testing.T) {
	refplugins.Path(t, "host-local")
	dir := t.TempDir()
	s, err := Open(filepath.Join(dir, "leases"), network)
	require.NoError(t, err)
	reserve(t, s, eth0("stays"), anyOf(ranges(hammerRange), fd00)...)

	results := make(chan error)
	self, err := os.Executable()
	require.NoError(t, err)
	for range 2 {
		c := exec.Command(self)
		c.Env = append(os.Environ(), hammerVariable+"="+dir)
		c.Stderr = os.Stderr
		go func() { results <- c.Run() }()
	}
	for i := range 4 {
		go func() { results <- hammer(t.Context(), dir, fmt.Sprint("goroutine", i)) }()
	}
	ipam := `"ranges": [[{"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.40"}], [{"subnet": "fd00::/112"}]]`
	go func() {
		var errs []error
		for i := range 10 {
			owner := eth0(fmt.Sprint("reference", i))
			_, addErr := runReference(t, s, "ADD", owner, ipam)
			_, delErr := runReference(t, s, "DEL", owner, ipam)
			errs = append(errs, addErr, delErr)
		}
		results <- errors.Join(errs...)
	}()
	for range 7 {
		require.NoError(t, <-results)
	}
	require.Equal(t, map[string]string{"10.0.0.2": "stays\r\neth0", "fd00::2": "stays\r\neth0"}, dump(t, s))
	requireTruth(t, s)
}
