package statedir

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// elsewhere has the test binary mount a file system of its own on the directory
// that it names, and print its instance.
const elsewhere = "ALLOCNET_STATEDIR_ELSEWHERE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(elsewhere); dir != "" {
		err := unix.Mount("tmpfs", dir, "tmpfs", 0, "")
		d, resolveErr := Resolve(dir)
		if err != nil || resolveErr != nil {
			fmt.Fprintln(os.Stderr, err, resolveErr)
			os.Exit(1)
		}
		fmt.Print(d.Instance)
		os.Exit(0)
	}
	os.Exit(privhost.Main(m))
}

func resolve(t *testing.T, path string) Dir {
	t.Helper()
	d, err := Resolve(path)
	require.NoError(t, err)
	return d
}

func TestSpellings(t *testing.T) {
	root := t.TempDir()
	state := filepath.Join(root, "a", "state")
	link := filepath.Join(root, "link")
	require.NoError(t, os.Symlink("a", link))
	dangling := filepath.Join(root, "dangling")
	require.NoError(t, os.Symlink(state, dangling))
	spellings := []string{
		state, state + "/", root + "//a///state", root + "/./a/state/.", root + "/b/../a/state", link + "/state", dangling,
	}
	missing := resolve(t, state)
	require.NotEmpty(t, missing.Instance)
	require.Equal(t, state, missing.Path)
	for range 2 { // the second time it is another inode
		for _, s := range spellings {
			require.Equal(t, missing, resolve(t, s), s)
		}
		require.NoDirExists(t, state, "looking makes nothing")
		require.NoError(t, os.MkdirAll(state, 0o700))
		for _, s := range spellings {
			require.Equal(t, missing, resolve(t, s), s)
		}
		require.NoError(t, os.RemoveAll(filepath.Join(root, "a")))
	}
	require.NotEqual(t, missing.Instance, resolve(t, filepath.Join(root, "a", "other")).Instance)
	require.NotEqual(t, missing.Instance, resolve(t, filepath.Join(state, "state")).Instance)
}

// TestUnreachable parts of a path are taken as they are written.
func TestUnreachable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Equal(t, resolve(t, file+"/state"), resolve(t, file+"//state/"))
	loop := filepath.Join(t.TempDir(), "loop")
	require.NoError(t, os.Symlink(loop, loop))
	require.Equal(t, loop+"/state", resolve(t, loop+"/state").Path)
}

func TestDefault(t *testing.T) {
	privhost.Require(t)
	usual := resolve(t, "")
	require.Equal(t, Dir{Path: names.DefaultStateDir, Key: usual.Key}, usual)
	require.NotEmpty(t, usual.Key)
	for range 2 {
		for _, s := range []string{names.DefaultStateDir, "/run//allocnet/", "/run/./allocnet"} {
			require.Empty(t, resolve(t, s).Instance, s)
		}
		require.NoError(t, os.MkdirAll(names.DefaultStateDir, 0o700))
	}
	other := filepath.Join(t.TempDir(), "run")
	require.NoError(t, os.Symlink("/run", other))
	require.Equal(t, usual, resolve(t, other+"/allocnet"))
	if target, err := filepath.EvalSymlinks("/var/run"); err == nil && target == "/run" {
		require.Equal(t, usual, resolve(t, "/var/run/allocnet"))
	}
	require.NotEmpty(t, resolve(t, "/run/allocnet2").Instance)
}

func TestBindMounts(t *testing.T) {
	privhost.Require(t)
	root := t.TempDir()
	state, bound, odd := filepath.Join(root, "x", "state"), filepath.Join(root, "bound"), filepath.Join(root, "with space\tand\\more")
	for _, dir := range []string{state, bound, odd} {
		require.NoError(t, os.MkdirAll(dir, 0o700))
	}
	for _, mount := range []struct{ from, to string }{{state, bound}, {filepath.Join(root, "x"), odd}} {
		require.NoError(t, unix.Mount(mount.from, mount.to, "", unix.MS_BIND, ""))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(mount.to, unix.MNT_DETACH)) })
	}
	want := resolve(t, state).Instance
	require.Equal(t, want, resolve(t, bound).Instance)
	require.Equal(t, want, resolve(t, odd+"/state").Instance)
	require.NotEqual(t, want, resolve(t, odd).Instance)
	require.NotEqual(t, want, resolve(t, root+"/bound/state").Instance)
}

// TestMountNumbersAreUsedAgain by the kernel: what was found of one is not taken
// for another.
func TestMountNumbersAreUsedAgain(t *testing.T) {
	privhost.Require(t)
	root := t.TempDir()
	at := filepath.Join(root, "at")
	require.NoError(t, os.Mkdir(at, 0o700))
	for _, name := range []string{"a", "b", "a"} {
		dir := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, unix.Mount(dir, at, "", unix.MS_BIND, ""))
		require.Equal(t, resolve(t, dir).Instance, resolve(t, at).Instance)
		require.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
	}
}

// TestMountNamespaces: the same path leads to another directory in another one.
func TestMountNamespaces(t *testing.T) {
	privhost.Require(t)
	dir := t.TempDir()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), elsewhere+"="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	c.Stderr = os.Stderr
	out, err := c.Output()
	require.NoError(t, err)
	require.NotEmpty(t, string(out))
	require.NotEqual(t, resolve(t, dir).Instance, string(out))
}

// A directory is the same one with and without statx.
func TestKeyOf(t *testing.T) {
	for _, dir := range []string{"/", "/proc", t.TempDir()} {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		k, err := keyOf(fd)
		require.NoError(t, err)
		older := key{path: k.path}
		require.NoError(t, older.identify(fd))
		require.Equal(t, older, k)
	}
}
