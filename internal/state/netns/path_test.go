package netns

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIn: a directory is what it is, not its name.
func TestIn(t *testing.T) {
	dir := t.TempDir()
	made, other := filepath.Join(dir, "netns"), filepath.Join(dir, "other")
	require.NoError(t, os.Mkdir(made, 0o700))
	require.NoError(t, os.Mkdir(other, 0o700))
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "link")))
	for path, ok := range map[string]bool{
		made + "/a":                  true,
		made + "//a":                 true,
		dir + "/link/netns/a":        true,
		made + "/../netns/a":         true,
		other + "/a":                 false,
		other + "/../a":              false,
		made + "/b/a":                false,
		made + "/a/":                 false,
		made:                         false,
		made + "/..":                 false,
		made + "/.":                  false,
		dir + "/absent/../netns/a":   false, // as the kernel resolves it
		"a":                          false,
		"":                           false,
		dir + "/link/link/netns/..a": true,
	} {
		in, is := In(made, path)
		require.Equal(t, ok, is, path)
		if ok {
			require.Equal(t, filepath.Join(made, filepath.Base(path)), in)
		}
	}
	for name, target := range map[string]string{"in": made + "/a", "out": other + "/a", "dangling": made + "/none"} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	for _, path := range []string{made + "/a", other + "/a"} {
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	in, is := In(made, dir+"/in")
	require.True(t, is)
	require.Equal(t, made+"/a", in)
	for _, name := range []string{"out", "dangling"} {
		_, is := In(made, dir+"/"+name)
		require.False(t, is, name)
	}
	require.NoError(t, os.Symlink(other+"/a", made+"/l"))
	_, is = In(made, made+"/l")
	require.False(t, is, "a link in the directory to another one")
	absent := filepath.Join(dir, "absent")
	in, is = In(absent, absent+"/a")
	require.True(t, is, "before it is made")
	require.Equal(t, absent+"/a", in)
}
