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
