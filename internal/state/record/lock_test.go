package record

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// descriptors counts how often this process has the lock file open, except for idle
// descriptors.
func descriptors(t *testing.T, s *Store) int {
	t.Helper()
	s.idle.mu.Lock()
	defer s.idle.mu.Unlock()
	return openFiles(t, s.locks) - len(s.idle.files)
}

// openFiles counts how often this process has a file open.
func openFiles(t *testing.T, path string) int {
	t.Helper()
	open, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	n := 0
	for _, fd := range open {
		if target, err := os.Readlink(fd); err == nil && target == path {
			n++
		}
	}
	return n
}

// TestCancelledWaitReleasesLocks: a caller whose wait is cancelled keeps
// neither the locks that it has already taken nor the file.
func TestCancelledWaitReleasesLocks(t *testing.T) {
	s := open(t)
	first := func(ctx context.Context) (func(), error) {
		done, err := s.First(ctx, "net")
		return func() { done(false) }, err
	}
	for name, take := range map[string]func(context.Context) (func(), error){
		"Lock":             func(ctx context.Context) (func(), error) { return s.Lock(ctx, "one") },
		"LockNetwork":      func(ctx context.Context) (func(), error) { return s.LockNetwork(ctx, "net") },
		"LockReservations": s.LockReservations,
		"First":            first,
	} {
		t.Run(name, func(t *testing.T) {
			unlock, err := take(t.Context())
			require.NoError(t, err)
			require.True(t, locked(t, take), "it excludes itself")
			require.Equal(t, 1, descriptors(t, s))
			unlock()
			require.Zero(t, descriptors(t, s))
			require.False(t, locked(t, take))
		})
	}
}

// TestFirstThatFails: a failed ADD creates no first-use marker.
func TestFirstThatFails(t *testing.T) {
	s := open(t)
	done, err := s.First(t.Context(), "net")
	require.NoError(t, err)
	done(false)
	require.False(t, s.used([]string{"net"}))
	done, err = s.First(t.Context(), "net", "net+ports")
	require.NoError(t, err)
	done(true)
	require.True(t, s.used([]string{"net"}))
	require.True(t, s.used([]string{"net", "net+ports"}))
	require.False(t, s.used([]string{"net", "other"}))
	s.InBoot(func() (string, error) { return "another boot", nil })
	require.False(t, s.used([]string{"net"}), "a state directory that survives a reboot")
	s.markUsed([]string{"net"})
	require.True(t, s.used([]string{"net"}))
}

// TestWaitersForFirstContinueTogether: once the first ADD has succeeded, the
// waiting ones run concurrently.
func TestWaitersForFirstContinueTogether(t *testing.T) {
	s := open(t)
	done, err := s.First(t.Context(), "net")
	require.NoError(t, err)
	const waiters = 3
	passed := make(chan error, waiters)
	release := make(chan struct{})
	ended := make(chan struct{}, waiters)
	for range waiters {
		go func() {
			done, err := s.First(t.Context(), "net")
			passed <- err
			<-release
			if err == nil {
				done(true)
			}
			ended <- struct{}{}
		}()
	}
	require.Eventually(t, func() bool { return descriptors(t, s) == 1+waiters }, 5*time.Second, time.Millisecond)
	done(true)
	for range waiters {
		select {
		case err := <-passed:
			require.NoError(t, err)
		case <-time.After(maxFirstWait / 2):
			t.Fatal("one waits for another")
		}
	}
	require.Zero(t, descriptors(t, s))
	close(release)
	for range waiters {
		<-ended
	}
}

// TestFirstWaitIsBounded: an ADD that hangs does not block others forever.
func TestFirstWaitIsBounded(t *testing.T) {
	s := open(t)
	hung, err := s.First(t.Context(), "net")
	require.NoError(t, err)
	defer hung(false)
	ctx, cancel := context.WithTimeout(t.Context(), 10*maxFirstWait)
	defer cancel()
	done, err := s.First(ctx, "net")
	require.NoError(t, err)
	done(true)
}

// TestOrderOfWaiting: an operation that waits for its allocation does not keep
// others from starting.
func TestOrderOfWaiting(t *testing.T) {
	s := open(t)
	unlock, err := s.Lock(t.Context(), "one")
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { _, err := s.Lock(ctx, "one"); waiting <- err }()
	require.Eventually(t, func() bool { return descriptors(t, s) == 2 }, 5*time.Second, time.Millisecond)
	require.False(t, locked(t, func(ctx context.Context) (func(), error) { return s.Lock(ctx, "two") }))
	cancel()
	require.ErrorIs(t, <-waiting, context.Canceled)
}

// TestRecordsArePrivate: records contain the arguments of plugins, which may be
// secret.
func TestRecordsArePrivate(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Put(sample("one")))
	unlock, err := s.Lock(t.Context(), "one")
	require.NoError(t, err)
	unlock()
	for file, want := range map[string]fs.FileMode{s.dir: 0o700, s.file("one"): 0o600, s.locks: 0o600} {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), file)
	}
}

// TestPutIsAtomic: a concurrent reader finds the old record or the new one.
func TestPutIsAtomic(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Put(sample("one")))
	ctx, cancel := context.WithCancel(t.Context())
	wrote := make(chan error, 1)
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			err = s.Put(sample("one"))
		}
		wrote <- err
	}()
	for range 2000 {
		_, err := s.Get("one")
		require.NoError(t, err)
	}
	cancel()
	require.NoError(t, <-wrote)
	entries, err := os.ReadDir(s.dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing in the making stays")
}

// TestListWhileRecordsGo: a record removed during List is not an error.
func TestListWhileRecordsGo(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Put(sample("stays")))
	ctx, cancel := context.WithCancel(t.Context())
	wrote := make(chan error, 1)
	go func() {
		var errs []error
		for ctx.Err() == nil {
			errs = append(errs, s.Put(sample("goes")), s.Delete("goes"))
		}
		wrote <- errors.Join(errs...)
	}()
	for range 2000 {
		records, err := s.List()
		require.NoError(t, err)
		require.NotEmpty(t, records)
	}
	cancel()
	require.NoError(t, <-wrote)
}

func TestPutSetsTheVersion(t *testing.T) {
	s := open(t)
	r := sample("one")
	r.Version = 0
	require.NoError(t, s.Put(r))
	got, err := s.Get("one")
	require.NoError(t, err)
	require.Equal(t, Version, got.Version)
}
