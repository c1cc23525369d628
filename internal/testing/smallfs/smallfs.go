// Package smallfs has file systems that are soon full, for tests.
package smallfs

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

// Mount returns a directory on a file system with a number of pages. Only the calling goroutine
// sees it, which keeps its thread until the test ends. Mount skips the test if the process may not
// mount.
func Mount(t testing.TB, pages int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test's goroutine
	err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
	skip.Unless(t, err == nil, "mount namespace: %v", err)
	require.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	require.NoError(t, unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", pages*os.Getpagesize())))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// MakeReadOnly makes the file system of Mount read-only.
func MakeReadOnly(t testing.TB, dir string) {
	t.Helper()
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}
