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

// TestReadOnlyFileSystem: so does the error of every call that changes the store.
func TestReadOnlyFileSystem(t *testing.T) {
	dir := smallfs.Mount(t, 10)
	s := New(filepath.Join(dir, "policies"))
	session, err := s.Share(t.Context())
	require.NoError(t, err)
	session.Unlock()
	require.NoError(t, mark(s.users("p"), "a"))
	smallfs.MakeReadOnly(t, dir)
	share := func(s *Store) error { _, err := s.Share(t.Context()); return err }
	for file, err := range map[string]error{
		s.dir + "/lock":                      share(s),
		filepath.Join(dir, "new"):            share(New(filepath.Join(dir, "new"))),
		filepath.Join(s.users("p"), "b"):     mark(s.users("p"), "b"),
		s.users("q"):                         mark(s.users("q"), "a"),
		filepath.Join(s.users("p"), "a"):     unmark(s.users("p"), "a"),
		filepath.Join(s.dir, "policies", ""): rmdir(filepath.Join(s.dir, "policies")),
	} {
		require.ErrorIs(t, err, unix.EROFS, file)
		require.ErrorIs(t, err, allocnet.ErrStateDir, file)
		require.ErrorContains(t, err, file)
	}
}
