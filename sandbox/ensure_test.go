package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestEnsure(t *testing.T) {
	privhost.Require(t)
	s, created, err := Ensure("ensured")
	require.NoError(t, err)
	require.True(t, created)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })

	again, created, err := Ensure("ensured")
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, s.Path(), again.Path())
	require.NoError(t, again.Close())

	require.NoError(t, s.Destroy())
	half := filepath.Join(DefaultDir, "ensured")
	require.NoError(t, os.WriteFile(half, nil, 0o444))
	s, created, err = Ensure("ensured")
	require.NoError(t, err)
	require.True(t, created, "what a crash left is replaced")

	_, _, err = Ensure("a/b")
	require.ErrorIs(t, err, ErrInvalidName)
	precious := filepath.Join(DefaultDir, "precious")
	require.NoError(t, os.WriteFile(precious, []byte("x"), 0o444))
	t.Cleanup(func() { require.NoError(t, os.Remove(precious)) })
	_, _, err = Ensure("precious")
	require.Error(t, err)
	require.FileExists(t, precious)
}
