package lease

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/testing/smallfs"
)

// TestFullFileSystem: the error of every file that cannot be written names the file.
func TestFullFileSystem(t *testing.T) {
	for pages, file := range map[int]string{
		1: "last_reserved_ip.0", // the lease takes the page
		2: "10.0.0.3",
	} {
		t.Run(file, func(t *testing.T) {
			s, err := Open(smallfs.Mount(t, pages), network)
			require.NoError(t, err)
			owner := Owner{ID: "a", IfName: "eth0"}
			_, err = s.Reserve(t.Context(), owner, []Request{{Set: ranges("10.0.0.2-10.0.0.9")}})
			if pages > 1 {
				require.NoError(t, err)
				owner.ID = "b"
				_, err = s.Reserve(t.Context(), owner, []Request{{Set: ranges("10.0.0.2-10.0.0.9")}})
			}
			require.ErrorIs(t, err, unix.ENOSPC)
			require.ErrorIs(t, err, allocnet.ErrStateDir)
			require.ErrorContains(t, err, filepath.Join(s.dir, file))
		})
	}
}

// TestReadOnlyFileSystem: the error of a lease that cannot be removed names the file.
func TestReadOnlyFileSystem(t *testing.T) {
	dir := smallfs.Mount(t, 10)
	s, err := Open(dir, network)
	require.NoError(t, err)
	owner := Owner{ID: "a", IfName: "eth0"}
	_, err = s.Reserve(t.Context(), owner, []Request{{Set: ranges("10.0.0.2-10.0.0.9")}})
	require.NoError(t, err)
	smallfs.MakeReadOnly(t, dir)
	err = s.Release(t.Context(), owner)
	require.ErrorIs(t, err, unix.EROFS)
	require.ErrorIs(t, err, allocnet.ErrStateDir)
	require.ErrorContains(t, err, filepath.Join(s.dir, "10.0.0.2"))
}
