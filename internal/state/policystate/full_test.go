package policystate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/testing/smallfs"
)

// TestFullFileSystem: the error tells that the state directory cannot be used, and names the file.
func TestFullFileSystem(t *testing.T) {
	dir := smallfs.Mount(t, 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "filler"), []byte("x"), 0o600))
	err := write(filepath.Join(dir, "members", "a.json"), "content")
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorIs(t, err, allocnet.ErrStateDir)
	require.ErrorContains(t, err, filepath.Join(dir, "members", "a.json"))
}
