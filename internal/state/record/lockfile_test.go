package record

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestIdleDescriptors: the descriptors of earlier holders are used again, and few are
// kept.
func TestIdleDescriptors(t *testing.T) {
	s := open(t)
	for range 3 {
		var unlocks []func()
		for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
			unlock, err := s.Lock(t.Context(), id)
			require.NoError(t, err)
			unlocks = append(unlocks, unlock)
		}
		require.Equal(t, len(unlocks), openFiles(t, s.locks))
		for _, unlock := range unlocks {
			unlock()
			unlock() // does not give the descriptor a second time
		}
		require.Equal(t, mostIdleLocks, openFiles(t, s.locks))
		require.Len(t, s.idle.files, mostIdleLocks)
	}
}

// TestIdleDescriptorsExpire: without operations, no descriptor stays open.
func TestIdleDescriptorsExpire(t *testing.T) {
	s := open(t)
	unlock, err := s.Lock(t.Context(), "a")
	require.NoError(t, err)
	unlock()
	require.Equal(t, 1, openFiles(t, s.locks))
	require.Eventually(t, func() bool { return openFiles(t, s.locks) == 0 }, 10*time.Second, 10*time.Millisecond)
}

// TestIdleDescriptorsHoldNoLock: another holder, which has a descriptor of its own, can
// take each of the locks.
func TestIdleDescriptorsHoldNoLock(t *testing.T) {
	s := open(t)
	other := Open(s.state)
	shared, err := s.Share(t.Context(), []string{"net", "other"})
	require.NoError(t, err)
	require.True(t, locked(t, func(ctx context.Context) (func(), error) { return other.LockNetwork(ctx, "net") }))
	shared()
	for _, network := range []string{"net", "other"} {
		unlock, err := other.LockNetwork(t.Context(), network)
		require.NoError(t, err)
		defer unlock()
	}
}

// TestReplacedLockFile: after the state directory was removed, locks are those of the
// new file.
func TestReplacedLockFile(t *testing.T) {
	s := open(t)
	unlock, err := s.Lock(t.Context(), "one")
	require.NoError(t, err)
	unlock()
	require.NoError(t, os.RemoveAll(s.state))
	other := Open(s.state)
	unlock, err = other.Lock(t.Context(), "one")
	require.NoError(t, err)
	defer unlock()
	require.True(t, locked(t, func(ctx context.Context) (func(), error) { return s.Lock(ctx, "one") }))
	require.Zero(t, openFiles(t, s.locks+" (deleted)"))
}

// TestUntrustedLockFile: an idle descriptor is not used if others can write to the file
// by now.
func TestUntrustedLockFile(t *testing.T) {
	s := open(t)
	unlock, err := s.Lock(t.Context(), "one")
	require.NoError(t, err)
	unlock()
	require.NoError(t, os.Chmod(s.locks, 0o666))
	_, err = s.Lock(t.Context(), "one")
	require.ErrorContains(t, err, "can be written by others")
}

// TestIdleDescriptorsAreClosed with the store, and those that a holder gives back later.
func TestIdleDescriptorsAreClosed(t *testing.T) {
	dir := t.TempDir()
	path := Open(dir).locks
	late := func() (late func()) {
		s := Open(dir)
		unlock, err := s.Lock(t.Context(), "one")
		require.NoError(t, err)
		late, err = s.Lock(t.Context(), "two")
		require.NoError(t, err)
		unlock()
		return late
	}()
	require.Equal(t, 2, openFiles(t, path))
	require.Eventually(t, func() bool { runtime.GC(); return openFiles(t, path) == 1 }, 10*time.Second, time.Millisecond)
	late()
	require.Zero(t, openFiles(t, path))
}
