package readiness_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/readiness"
)

func TestCheckFile(t *testing.T) {
	require.NoError(t, readiness.CheckFile(""))

	path := filepath.Join(t.TempDir(), "ready")
	err := readiness.CheckFile(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "readiness file: ")

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, readiness.CheckFile(path))
}
