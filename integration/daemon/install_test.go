package daemon

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/programs"
)

// TestInstall installs into a staging directory and checks that the files there
// refer to each other correctly.
func TestInstall(t *testing.T) {
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	stage := t.TempDir()
	// Over an older installation, whose programs have other names, and over the
	// current one.
	older := func(program string) string { return filepath.Join(stage, "usr/local/lib/allocnet", program) }
	require.NoError(t, os.MkdirAll(older(""), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(stage, "opt/cni/bin"), 0o755))
	for _, program := range []string{"allocnet-cni", "allocnet-cni-front", "allocnet-cni-alone"} {
		require.NoError(t, os.WriteFile(older(program), nil, 0o755))
	}
	require.NoError(t, os.Symlink("/usr/local/lib/allocnet/allocnet-cni-front", filepath.Join(stage, "opt/cni/bin/allocnet")))
	built := filepath.Join(top, "bin")
	targets := []string{"build", "install"}
	if testing.Short() { // linking all programs once more takes seconds
		out, err := exec.Command("make", "--no-print-directory", "-C", top, "-n", "build").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Regexp(t, `go build (|.* )-buildmode=pie -o `+built+`/ \./cmd/\.\.\.`, string(out))
		built, targets = t.TempDir(), []string{"install"}
		require.NoError(t, programs.Copy(built, "allocnet", "allocnetd", "allocnet-plugins", "allocnet-plugins-shim", "allocnet-cni", "allocnet-cni-shim"))
	}
	for range 2 {
		args := append([]string{"--no-print-directory", "-C", top, "DESTDIR=" + stage, "PREFIX=/usr/local", "BIN=" + built}, targets...)
		out, err := exec.Command("make", args...).CombinedOutput()
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
	require.Contains(t, run("/usr/local/bin/allocnet", nil, "", "plugins", "install", "--daemon", plugins), "/usr/local/bin/allocnet-plugins-shim")

	plugin, err := os.Readlink(filepath.Join(stage, "opt/cni/bin/allocnet"))
	require.NoError(t, err)
	require.Contains(t, run(plugin, []string{"CNI_COMMAND=VERSION"}, `{"cniVersion": "1.1.0"}`), `"supportedVersions"`)
	require.Equal(t, "/usr/local/lib/allocnet/allocnet-cni-shim", plugin)
	require.FileExists(t, filepath.Join(stage, filepath.Dir(plugin), "allocnet-cni"), "it has to be beside the plugin")
	for _, program := range []string{"allocnet-cni-front", "allocnet-cni-alone"} {
		require.NoFileExists(t, older(program))
	}

	hardened := []string{plugin, "usr/local/bin/allocnet-plugins-shim"}
	if !testing.Short() { // those that make build has built
		hardened = append(hardened, "usr/local/bin/allocnet", "usr/local/bin/allocnetd", "usr/local/bin/allocnet-plugins", "usr/local/lib/allocnet/allocnet-cni")
	}
	for _, program := range hardened {
		requireHardened(t, filepath.Join(stage, program))
	}
	if runtime.GOARCH == "amd64" {
		for _, shim := range []string{plugin, "usr/local/bin/allocnet-plugins-shim"} {
			info, err := os.Stat(filepath.Join(stage, shim))
			require.NoError(t, err)
			require.Less(t, info.Size(), int64(64<<10), "%s starts without the C library", shim)
		}
	}

	// Without a C compiler.
	bin := t.TempDir()
	out, err := exec.Command("make", "--no-print-directory", "-C", top, "shim", "CC=no-compiler", "BIN="+bin).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "runtimes start allocnet-cni itself")
	for _, program := range []string{"allocnet", "allocnetd", "allocnet-plugins", "allocnet-cni"} {
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
	require.Contains(t, string(unit), "\nExecReload=/usr/local/bin/allocnetd reload $MAINPID\n")
	require.FileExists(t, filepath.Join(stage, "usr/local/lib/systemd/system/allocnetd.socket"))
}

// TestInstallOnARunningHost: a program that starts during an installation is
// the old or the new version, also if the old one has other names. Uninstalling
// removes all installed files except the settings.
func TestInstallOnARunningHost(t *testing.T) {
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	stage := t.TempDir()
	bin := t.TempDir()
	for _, name := range []string{"allocnet", "allocnetd", "allocnet-plugins", "allocnet-plugins-shim", "allocnet-cni", "allocnet-cni-shim"} {
		require.NoError(t, exec.Command("cp", "/bin/true", filepath.Join(bin, name)).Run())
	}
	target := func(name string, more ...string) error {
		args := append([]string{"--no-print-directory", "-C", top, name, "DESTDIR=" + stage, "BIN=" + bin}, more...)
		out, err := exec.Command("make", args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	require.NoError(t, target("install"))
	// The layout of an older version.
	lib, link := filepath.Join(stage, "usr/lib/allocnet"), filepath.Join(stage, "opt/cni/bin/allocnet")
	require.NoError(t, os.Rename(filepath.Join(lib, "allocnet-cni-shim"), filepath.Join(lib, "allocnet-cni-front")))
	require.NoError(t, exec.Command("cp", "/bin/true", filepath.Join(lib, "allocnet-cni-alone")).Run())
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("/usr/lib/allocnet/allocnet-cni-front", link))

	installations := 5
	if testing.Short() {
		installations = 2
	}
	installed := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < installations && err == nil; i++ {
			err = target("install")
		}
		installed <- err
	}()
	for done := false; !done; {
		for _, program := range []string{"usr/bin/allocnet-plugins", "usr/bin/allocnet-plugins-shim", "usr/lib/allocnet/allocnet-cni"} {
			require.NoError(t, exec.Command(filepath.Join(stage, program)).Run())
		}
		plugin, err := os.Readlink(link)
		require.NoError(t, err)
		if err := exec.Command(filepath.Join(stage, plugin)).Run(); err != nil { // the kernel follows the link atomically
			now, linkErr := os.Readlink(link)
			require.NoError(t, linkErr)
			require.NotEqual(t, plugin, now, err)
		}
		select {
		case err := <-installed:
			require.NoError(t, err)
			done = true
		default:
		}
	}

	plugin := filepath.Join(stage, "opt/cni/bin/bridge")
	for _, program := range []string{"/usr/bin/allocnet-plugins", "/usr/bin/allocnet-plugins-shim"} {
		require.NoError(t, os.Symlink(program, plugin))
		require.ErrorContains(t, target("uninstall"), "allocnet plugins uninstall /opt/cni/bin")
		require.NoError(t, os.Remove(plugin))
	}
	for range 2 {
		require.NoError(t, target("uninstall"))
	}
	var left []string
	require.NoError(t, filepath.WalkDir(stage, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, path)
		}
		return err
	}))
	require.Equal(t, []string{filepath.Join(stage, "etc/allocnet/allocnetd.hcl")}, left)
}

// TestBuildInAnotherUsersCheckout: in another user's checkout, git does not
// report its commit.
func TestBuildInAnotherUsersCheckout(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	dir := t.TempDir()
	for name, text := range map[string]string{"Makefile": string(makefile), "go.mod": "module example.org/m\n", "main.go": "package main\n\nfunc main() {}\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.NoError(t, exec.Command("git", "init", "-q", dir).Run())
	require.NoError(t, exec.Command("chown", "-R", "1", dir).Run())
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null") // a global configuration may mark the directory as safe
	t.Setenv("GIT_CONFIG_SYSTEM", "/dev/null")
	t.Setenv("GOENV", "off") // the file of go env may disable VCS stamping
	t.Setenv("GOFLAGS", "")
	c := exec.Command("go", "build", "-o", "/dev/null", ".")
	c.Dir = dir
	out, err := c.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "error obtaining VCS status", "or this test shows nothing")
	out, err = exec.Command("make", "-C", dir, "--eval", "probe: ; go build -o /dev/null .", "probe").CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// requireHardened checks that a program is position-independent, that its stack
// is not executable, and that its relocations are read-only after the start.
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

// TestShimFlags: the shim is static, and is built with the flags of a package's build.
// With the C library, it checks the sizes of its buffers at run time.
func TestShimFlags(t *testing.T) {
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	bin := t.TempDir()
	header := filepath.Join(bin, "more.h")
	require.NoError(t, os.WriteFile(header, []byte("int of_cppflags = 1;\n"), 0o600))
	out, err := exec.Command("make", "--no-print-directory", "-C", top, "shim", "BIN="+bin, "SHIMS=allocnet-cni",
		"CPPFLAGS=-include "+header, "CFLAGS=-g", "LDFLAGS=-Wl,--defsym=of_ldflags=1").CombinedOutput()
	require.NoError(t, err, "%s", out)
	program := filepath.Join(bin, "allocnet-cni-shim")
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

	out, err = exec.Command("make", "--no-print-directory", "-C", top, "shim", "BIN="+bin, "SHIMS=allocnet-cni", "NOLIBC=").CombinedOutput()
	require.NoError(t, err, "%s", out)
	requireHardened(t, program)
	withLibrary, err := elf.Open(program)
	require.NoError(t, err)
	defer withLibrary.Close()
	symbols, err = withLibrary.Symbols()
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == "__read_chk" }), "_FORTIFY_SOURCE")
}
