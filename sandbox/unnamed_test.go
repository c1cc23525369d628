package sandbox

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNew: a sandbox without a name gets one by Mount, and disappears with its descriptor
// otherwise.
func TestNew(t *testing.T) {
	needKernel(t)
	s, err := New()
	require.NoError(t, err)
	require.Empty(t, s.Path())
	id, err := s.Identity()
	require.NoError(t, err)
	require.NoError(t, Validate(s.ProcPath()))

	dir := DefaultDir
	taken := create(t, "taken")
	_, err = s.Mount(t.Context(), dir, "taken")
	require.ErrorIs(t, err, ErrExist)
	_, err = s.Mount(t.Context(), dir, "-x")
	require.ErrorIs(t, err, ErrInvalidName)
	named, err := s.Mount(t.Context(), dir, "x")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "x"), named.Path())
	again, err := Open(named.Path())
	require.NoError(t, err)
	same, err := again.Identity()
	require.NoError(t, err)
	require.Equal(t, id, same)
	require.NoError(t, again.Close())
	require.NoError(t, named.Destroy())
	require.NoError(t, taken.Destroy())

	lost, err := New()
	require.NoError(t, err)
	path := lost.ProcPath()
	require.NoError(t, lost.Close())
	require.Error(t, Validate(path))
}
