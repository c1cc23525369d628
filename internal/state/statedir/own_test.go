package statedir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCheckDirs(t *testing.T) {
	top := t.TempDir()
	dir, link, file := filepath.Join(top, "dir"), filepath.Join(top, "link"), filepath.Join(top, "file")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Symlink(dir, link))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, CheckDirs(dir, filepath.Join(top, "none")))
	require.ErrorIs(t, CheckDirs(dir, link), ErrNotOurs)
	require.ErrorIs(t, CheckDirs(file), ErrNotOurs)
	for _, mode := range []os.FileMode{0o770, 0o702, 0o777 | os.ModeSticky} {
		require.NoError(t, os.Chmod(dir, mode))
		err := CheckDirs(dir)
		require.ErrorIs(t, err, ErrNotOurs)
		require.ErrorContains(t, err, dir)
		require.ErrorContains(t, err, "chmod it go-w")
	}
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, CheckDirs(dir))
	if os.Geteuid() == 0 && os.Chown(dir, 4242, 0) == nil { // an ordinary user can give nothing away
		err := CheckDirs(dir)
		require.ErrorIs(t, err, ErrNotOurs)
		require.ErrorContains(t, err, "user 4242, mode 0755")
	}
}

func TestCheckDir(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for path, ours := range map[string]bool{dir: true, file: false} {
		open, err := os.Open(path)
		require.NoError(t, err)
		defer open.Close()
		require.Equal(t, !ours, CheckDir(int(open.Fd()), path) != nil, path)
		require.NoError(t, os.Chmod(path, 0o777))
		require.ErrorIs(t, CheckDir(int(open.Fd()), path), ErrNotOurs)
	}
}

// TestGuard looks again when something changed.
func TestGuard(t *testing.T) {
	top := t.TempDir()
	sub := filepath.Join(top, "sub")
	var g Guard
	require.NoError(t, g.Check(filepath.Join(top, "none"), "sub"))
	for range 2 {
		require.NoError(t, g.Check(top, "sub"))
	}
	require.NoError(t, os.Symlink("/etc", sub))
	for range 2 {
		require.ErrorIs(t, g.Check(top, "sub"), ErrNotOurs)
	}
	require.NoError(t, os.Remove(sub))
	require.NoError(t, g.Check(top, "sub"))
	require.NoError(t, os.Chmod(top, 0o777))
	for range 2 {
		require.ErrorIs(t, g.Check(top, "sub"), ErrNotOurs)
	}
}

func TestCheckFile(t *testing.T) {
	dir := t.TempDir()
	file, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "pipe")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	check := func(path string) error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		return CheckFile(fd, path)
	}
	require.NoError(t, check(file))
	require.ErrorIs(t, check(pipe), ErrNotOurs)
	require.ErrorIs(t, check(dir), ErrNotOurs)
	require.NoError(t, os.Link(file, file+"2"))
	require.ErrorContains(t, check(file), "other names")
	require.NoError(t, os.Remove(file+"2"))
	require.NoError(t, os.Chmod(file, 0o620))
	require.ErrorIs(t, check(file), ErrNotOurs)
}
