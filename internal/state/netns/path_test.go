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
	absent := filepath.Join(dir, "absent")
	in, is := In(absent, absent+"/a")
	require.True(t, is, "before it is made")
	require.Equal(t, absent+"/a", in)
}
