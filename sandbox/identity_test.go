package sandbox

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIdentity(t *testing.T) {
	needKernel(t)
	of := func(name string) (s *Sandbox, id Identity) {
		s = create(t, name)
		id, err := s.Identity()
		require.NoError(t, err)
		require.NotZero(t, id)
		cookie, err := s.cookie()
		require.NoError(t, err)
		require.Equal(t, id.Cookie, cookie, "both ways to ask give one number")
		return s, id
	}
	one, first := of("one")
	_, second := of("two")
	require.False(t, first.Is(second))
	through, err := Open(one.ProcPath())
	require.NoError(t, err)
	defer through.Close()
	same, err := through.Identity()
	require.NoError(t, err)
	require.Equal(t, first, same)
}

// TestIdentityOfAnInodeThatIsUsedAgain: namespaces with the same inode number
// are distinguished.
func TestIdentityOfAnInodeThatIsUsedAgain(t *testing.T) {
	old := Identity{Device: 4, Inode: 7, Cookie: 1}
	require.False(t, old.Is(Identity{Device: 4, Inode: 7, Cookie: 2}))
	require.False(t, old.Is(Identity{Device: 4, Inode: 8, Cookie: 1}))
	require.False(t, old.Is(Identity{Device: 5, Inode: 7, Cookie: 1}))
	require.True(t, old.Is(Identity{Device: 4, Inode: 7}), "by a kernel that has no cookies")
}

func TestClosedSandboxHasNoPath(t *testing.T) {
	needKernel(t)
	s := create(t, "one")
	require.NotEmpty(t, s.ProcPath())
	require.NoError(t, s.Destroy())
	require.Empty(t, s.ProcPath())
	_, err := s.Identity()
	require.ErrorIs(t, err, os.ErrClosed)
}
