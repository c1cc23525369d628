package flock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestWait: a lock excludes others until its file is closed, and a context ends the wait.
func TestWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	shared, also, exclusive := open(), open(), open()
	require.NoError(t, Wait(t.Context(), int(shared.Fd()), unix.LOCK_SH))
	require.NoError(t, Wait(t.Context(), int(also.Fd()), unix.LOCK_SH))

	why := errors.New("why")
	ended, end := context.WithCancelCause(t.Context())
	end(why)
	require.ErrorIs(t, Wait(ended, int(exclusive.Fd()), unix.LOCK_EX), why)

	locked := make(chan error)
	go func() { locked <- Wait(t.Context(), int(exclusive.Fd()), unix.LOCK_EX) }()
	require.NoError(t, shared.Close())
	select {
	case <-locked:
		t.Fatal("it is locked while another has the lock")
	default:
	}
	require.NoError(t, also.Close())
	require.NoError(t, <-locked)
	require.ErrorIs(t, Wait(t.Context(), -1, unix.LOCK_EX), unix.EBADF)
}
