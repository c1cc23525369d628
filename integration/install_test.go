package integration

import (
	"debug/elf"
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

	for _, program := range []string{
		"usr/local/bin/allocnet", "usr/local/bin/allocnetd", "usr/local/bin/allocnet-plugins", plugin,
		"usr/local/lib/allocnet/allocnet-cni", "usr/local/lib/allocnet/allocnet-cni-alone",
	} {
		requireHardened(t, filepath.Join(stage, program))
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

// requireHardened looks for a program at random addresses, with a stack that cannot
// be executed and with relocations that are read-only once they are done.
func requireHardened(t *testing.T, program string) {
	t.Helper()
	f, err := elf.Open(program)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, elf.ET_DYN, f.Type, program)
	segments := map[elf.ProgType]elf.ProgFlag{}
	for _, p := range f.Progs {
		segments[p.Type] = p.Flags
	}
	require.Contains(t, segments, elf.PT_GNU_RELRO, program)
	require.Zero(t, segments[elf.PT_GNU_STACK]&elf.PF_X, program)
}

// TestShimFlags: the shim checks the sizes of its buffers at run time, is static, and
// takes the flags of a package's build.
func TestShimFlags(t *testing.T) {
	top, err := filepath.Abs("..")
	require.NoError(t, err)
	bin := t.TempDir()
	header := filepath.Join(bin, "more.h")
	require.NoError(t, os.WriteFile(header, []byte("int of_cppflags = 1;\n"), 0o600))
	out, err := exec.Command("make", "--no-print-directory", "-C", top, "front", "BIN="+bin,
		"CPPFLAGS=-include "+header, "CFLAGS=-g", "LDFLAGS=-Wl,--defsym=of_ldflags=1").CombinedOutput()
	require.NoError(t, err, "%s", out)
	program := filepath.Join(bin, "allocnet-cni-front")
	requireHardened(t, program)
	f, err := elf.Open(program)
	require.NoError(t, err)
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
	require.NotNil(t, f.Section(".debug_info"), "CFLAGS")
	symbols, err := f.Symbols()
	require.NoError(t, err)
	found := map[string]bool{}
	for _, s := range symbols {
		found[s.Name] = true
	}
	require.True(t, found["of_cppflags"], "CPPFLAGS")
	require.True(t, found["of_ldflags"], "LDFLAGS")
	require.True(t, found["__read_chk"], "_FORTIFY_SOURCE")
}
