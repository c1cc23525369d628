package smallfile

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const most = 100

func TestRead(t *testing.T) {
	dir := t.TempDir()
	file, link, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	require.NoError(t, os.Symlink(file, link))
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for _, read := range []func(string, int64) ([]byte, error){Read, ReadOwn, readInTime(t)} {
		require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("x", most)), 0o600))
		data, err := read(file, most)
		require.NoError(t, err)
		require.Len(t, data, most)
		require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("x", most+1)), 0o600))
		_, err = read(file, most)
		require.ErrorIs(t, err, ErrTooLarge)
		_, err = read(filepath.Join(dir, "absent"), most)
		require.ErrorIs(t, err, fs.ErrNotExist)
		for path, kind := range map[string]string{pipe: "named pipe", dir: "directory", "/dev/zero": "device"} {
			_, err = read(path, most)
			require.ErrorIs(t, err, ErrNotRegular, path)
			require.ErrorContains(t, err, kind)
		}
	}
	require.NoError(t, os.Truncate(file, 0))
	_, err := Read(link, most)
	require.NoError(t, err)
	_, err = ReadOwn(link, most)
	require.ErrorIs(t, err, unix.ELOOP)
}

func readInTime(t *testing.T) func(string, int64) ([]byte, error) {
	return func(path string, most int64) ([]byte, error) { return ReadContext(t.Context(), path, most) }
}

// TestDeadline: one that has passed is an error, whatever the file.
func TestDeadline(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	_, err := ReadContext(ctx, os.Args[0], most)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestWriteOwn: what is in the file's place is removed, not written to or waited
// for.
func TestWriteOwn(t *testing.T) {
	dir := t.TempDir()
	file, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	require.NoError(t, os.WriteFile(other, []byte("other"), 0o600))
	for name, put := range map[string]func() error{
		"nothing":       func() error { return nil },
		"file":          func() error { return os.WriteFile(file, []byte("longer than what is written"), 0o666) },
		"symbolic link": func() error { return os.Symlink(other, file) },
		"dangling link": func() error { return os.Symlink(filepath.Join(dir, "absent"), file) },
		"hard link":     func() error { return os.Link(other, file) },
		"pipe":          func() error { return unix.Mkfifo(file, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, put())
			require.NoError(t, WriteOwn(file, []byte("new")))
			data, err := ReadOwn(file, most)
			require.NoError(t, err)
			require.Equal(t, "new", string(data))
			info, err := os.Lstat(file)
			require.NoError(t, err)
			require.Equal(t, fs.FileMode(0o600), info.Mode())
			data, err = os.ReadFile(other)
			require.NoError(t, err)
			require.Equal(t, "other", string(data))
			require.NoFileExists(t, filepath.Join(dir, "absent"))
			require.NoError(t, os.Remove(file))
		})
	}
	require.ErrorIs(t, WriteOwn(filepath.Join(dir, "no", "directory"), nil), fs.ErrNotExist)
}
