package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/internal/testing/shard"
)

// PluginDir holds the reference plugins. [Main] sets it.
var PluginDir string

// Roles are what a process of the test binary does in place of the tests, if
// the environment has the variable. They do not return.
type Roles map[string]func()

// Main runs the tests of a package on private hosts, four at once, and returns the exit
// status. Call it in TestMain. A process that an engine starts as a native plugin is
// that plugin, and one that a test starts for a role has that role.
func Main(m *testing.M, roles Roles) int {
	if name := filepath.Base(os.Args[0]); builtin.Plugins[name] != nil {
		return sdk.Main(name, builtin.Plugins, builtin.Versions)
	}
	for variable, role := range roles {
		if os.Getenv(variable) != "" {
			role()
		}
	}
	var err error
	if PluginDir, err = refplugins.Dir(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return shard.Main(m, 4, func() int { return privhost.Main(m) })
}

// DropIns returns a directory with the native plugins as binaries, and with
// fake plugins of the given names.
func DropIns(t *testing.T, others ...string) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	for name := range builtin.Plugins {
		require.NoError(t, os.Symlink(self, filepath.Join(dir, name)))
	}
	require.NoError(t, fakeplugin.Install(dir, others...))
	return dir
}
