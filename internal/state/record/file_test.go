package record

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReplaceAndRead(t *testing.T) {
	dir := t.TempDir()
	file, draft := filepath.Join(dir, "file"), filepath.Join(dir, "draft")
	for _, size := range []int{20000, 8192, 4097, 4096, 4095, 1, 0} {
		content := bytes.Repeat([]byte{'x'}, size)
		require.NoError(t, replaceFile(file, draft, content))
		got, err := readFile(file)
		require.NoError(t, err)
		require.Equal(t, content, got)
		require.NoFileExists(t, draft)
	}
	require.NoError(t, remove(file))
	require.NoError(t, remove(file))
	_, err := readFile(file)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, file)

	require.NoError(t, os.Mkdir(file, 0o700))
	require.Error(t, replaceFile(file, draft, nil))
	require.NoFileExists(t, draft, "what could not be put in place is gone")
	require.Error(t, remove(file))
	require.Error(t, replaceFile(filepath.Join(dir, "missing", "file"), filepath.Join(dir, "missing", "draft"), nil))
}
