package testhost

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Swapped returns the path of a symbolic link that alternates, as fast as
// possible, between the given network namespace and the host's until the test
// ends.
func Swapped(t testing.TB, netns string) string {
	t.Helper()
	dir := t.TempDir()
	path, draft := filepath.Join(dir, "netns"), filepath.Join(dir, "draft")
	targets := []string{"/proc/self/ns/net", netns}
	require.NoError(t, os.Symlink(netns, path))
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := errors.Join(os.Symlink(targets[i%2], draft), os.Rename(draft, path)); err != nil {
				done <- err
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		require.NoError(t, <-done)
	})
	return path
}
