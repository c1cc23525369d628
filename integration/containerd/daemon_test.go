package containerd

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/testing/process"
)

// newDaemon starts allocnetd with additional settings, and waits until it is ready.
func newDaemon(t testing.TB, settings string) *process.Process {
	t.Helper()
	bin, err := programs()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "allocnetd.hcl")
	require.NoError(t, os.WriteFile(file, []byte("log { level = \"warn\" }\n"+settings), 0o600))
	d := process.New(t, filepath.Join(bin, "allocnetd"), "--config", file)
	startDaemon(t, d)
	return d
}

// startDaemon starts the daemon and waits until it is ready.
func startDaemon(t testing.TB, d *process.Process) {
	t.Helper()
	d.Start()
	c := client.New(client.Config{})
	eventually(t, "allocnetd is ready", func() bool { return d.HasEnded() || c.Ready(t.Context()) == nil })
	require.False(t, d.HasEnded(), d.Output())
}

// pluginDir returns a directory with allocnet's plugin and those that a command installs.
func pluginDir(t testing.TB, args ...string) string {
	t.Helper()
	bin, err := programs()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(bin, "allocnet-cni-shim"), filepath.Join(dir, "allocnet")))
	out, err := exec.Command(filepath.Join(bin, "allocnet"), append([]string{"plugins", "install", dir}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}
