package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInstall stages an installation, and finds in it what refers to each other.
func TestInstall(t *testing.T) {
	top, err := filepath.Abs("..")
	require.NoError(t, err)
	stage := t.TempDir()
	for range 2 { // over what is there
		out, err := exec.Command("make", "--no-print-directory", "-C", top, "build", "install", "DESTDIR="+stage, "PREFIX=/usr/local").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	run := func(program string, env []string, stdin string, args ...string) string {
		c := exec.Command(filepath.Join(stage, program), args...)
		c.Env, c.Stdin = env, strings.NewReader(stdin)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s: %s", program, out)
		return string(out)
	}
	run("/usr/local/bin/allocnetd", nil, "", "validate", filepath.Join(stage, "etc/allocnet/allocnetd.hcl"))
	plugins := t.TempDir()
	require.Contains(t, run("/usr/local/bin/allocnet", nil, "", "plugins", "install", plugins), "bridge")

	plugin, err := os.Readlink(filepath.Join(stage, "opt/cni/bin/allocnet"))
	require.NoError(t, err)
	require.Contains(t, run(plugin, []string{"CNI_COMMAND=VERSION"}, `{"cniVersion": "1.1.0"}`), `"supportedVersions"`)
	require.Equal(t, "/usr/local/lib/allocnet/allocnet-cni-front", plugin)
	for _, program := range []string{"allocnet-cni", "allocnet-cni-alone"} {
		require.FileExists(t, filepath.Join(stage, filepath.Dir(plugin), program), "it has to be beside the plugin")
	}

	// Without a compiler for C.
	bin := t.TempDir()
	out, err := exec.Command("make", "--no-print-directory", "-C", top, "front", "CC=no-compiler", "BIN="+bin).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "runtimes start allocnet-cni itself")
	for _, program := range []string{"allocnet", "allocnetd", "allocnet-plugins", "allocnet-cni", "allocnet-cni-alone"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), nil, 0o755))
	}
	other := t.TempDir()
	out, err = exec.Command("make", "--no-print-directory", "-C", top, "install", "DESTDIR="+other, "BIN="+bin).CombinedOutput()
	require.NoError(t, err, "%s", out)
	plugin, err = os.Readlink(filepath.Join(other, "opt/cni/bin/allocnet"))
	require.NoError(t, err)
	require.Equal(t, "/usr/lib/allocnet/allocnet-cni", plugin)

	unit, err := os.ReadFile(filepath.Join(stage, "usr/local/lib/systemd/system/allocnetd.service"))
	require.NoError(t, err)
	require.Contains(t, string(unit), "\nExecStart=/usr/local/bin/allocnetd run\n")
	require.Contains(t, string(unit), "\nExecReload=/usr/local/bin/allocnetd validate\n")
	require.FileExists(t, filepath.Join(stage, "usr/local/lib/systemd/system/allocnetd.socket"))
}
