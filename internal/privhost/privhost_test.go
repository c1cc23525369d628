package privhost_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/privhost"
	"github.com/allocnet/allocnet/internal/retry"
	testhost "github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestHostIsPrivate(t *testing.T) {
	testhost.Require(t)

	links, err := retry.List(netlink.LinkList)
	require.NoError(t, err)
	require.Len(t, links, 1)
	require.Equal(t, "lo", links[0].Attrs().Name)
	addresses, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(links[0], netlink.FAMILY_V4) })
	require.NoError(t, err)
	require.Len(t, addresses, 1)
	require.Equal(t, "127.0.0.1/8", addresses[0].IPNet.String())

	require.Zero(t, os.Geteuid())
	for _, dir := range append(privhost.StateDirs, testDirs...) {
		probe := filepath.Join(dir, "probe")
		require.NoError(t, os.WriteFile(probe, nil, 0o600))
		require.NoError(t, os.Remove(probe))
	}
	require.Empty(t, names("/var/lib/cni"))
	require.FileExists(t, "/etc/passwd")
}

func TestNothingLeaksOut(t *testing.T) {
	testhost.Require(t)
	require.NoError(t, os.MkdirAll("/run/existing/content", 0o755))
	t.Cleanup(func() { os.RemoveAll("/run/existing") })
	fillSrv(t)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)

	stdout, stderr, status := runHelper(t, helperCommand("change"))
	require.Zero(t, status, stdout+stderr)
	require.Contains(t, stdout, "sysfs shows own links: true\n")
	require.Contains(t, stdout, "/run/existing: \n", "a covered directory starts out empty")
	require.Contains(t, stdout, "/srv: b c dir file link\n", "the neighbours of a covered directory stay")
	require.Contains(t, stdout, "/srv/dir/mounted: below\n", "and so do mounts in them")

	require.Equal(t, "existing", names("/run"))
	require.Equal(t, "content", names("/run/existing"))
	require.Empty(t, names("/var/lib/cni"))
	require.Equal(t, "dir file link", names("/srv"))
	content, err := os.ReadFile("/srv/file")
	require.NoError(t, err)
	require.Equal(t, "content", string(content))
	_, err = netlink.LinkByName("new0")
	require.ErrorAs(t, err, &netlink.LinkNotFoundError{})
	mountsAfter, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.Equal(t, string(mounts), string(mountsAfter))
}

// fillSrv fills /srv, in which a helper covers directories, with one entry of
// every kind.
func fillSrv(t *testing.T) {
	t.Helper()
	require.NoError(t, os.MkdirAll("/srv/dir/mounted", 0o755))
	require.NoError(t, unix.Mount("tmpfs", "/srv/dir/mounted", "tmpfs", 0, ""))
	require.NoError(t, os.Mkdir("/srv/dir/mounted/below", 0o755))
	require.NoError(t, os.WriteFile("/srv/file", []byte("content"), 0o600))
	require.NoError(t, os.Symlink("../etc/passwd", "/srv/link"))
	t.Cleanup(func() {
		require.NoError(t, unix.Unmount("/srv/dir/mounted", 0))
		for _, name := range strings.Fields(names("/srv")) {
			os.RemoveAll(filepath.Join("/srv", name))
		}
	})
}

// TestOrdinaryUser enters as a user without capabilities. If an ordinary user
// started the tests, the helper runs as that user.
func TestOrdinaryUser(t *testing.T) {
	testhost.Require(t)
	require.NoError(t, os.MkdirAll("/run/existing", 0o755))
	t.Cleanup(func() { os.RemoveAll("/run/existing") })
	cmd := helperCommand("change")
	if testhost.IsHostRoot() {
		// Only root can read the directory in which the test binary was built.
		binary, err := os.ReadFile("/proc/self/exe")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile("/run/test", binary, 0o755))
		t.Cleanup(func() { os.Remove("/run/test") })
		cmd.Path = "/run/test"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	stdout, stderr, status := runHelper(t, cmd)
	require.Zero(t, status, stdout+stderr)
	require.Contains(t, stdout, "sysfs shows own links: true\nuser: 0\nnames of iptables tables can be read: true\n")
	require.Empty(t, names("/var/lib/cni"))
}

func TestExitStatus(t *testing.T) {
	testhost.Require(t)
	for helper, want := range map[string]int{"exit": 42, "kill": 137, "again": 0} {
		stdout, stderr, status := runHelper(t, helperCommand(helper))
		require.Equal(t, want, status, stdout+stderr)
	}
}

func TestEnterInsideRunsInPlace(t *testing.T) {
	testhost.Require(t)
	stdout, _, _ := runHelper(t, helperCommand("again"))
	require.Equal(t, "same process: true\n", stdout)
}

func TestPathIsCompleted(t *testing.T) {
	testhost.Require(t)
	stdout, stderr, _ := runHelper(t, helperCommand("path", "PATH=/bin"))
	require.Equal(t, "/bin:/usr/local/sbin:/usr/sbin:/sbin\n", stdout, stderr)
}

func TestSystemBusIsUnset(t *testing.T) {
	testhost.Require(t)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/the/host's")
	stdout, stderr, status := runHelper(t, helperCommand("bus"))
	require.Zero(t, status, stderr)
	require.Equal(t, "\n", stdout)
}

func TestSignalsReachTheCopy(t *testing.T) {
	testhost.Require(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd, stdout := startAwait(t)
			require.NoError(t, cmd.Process.Signal(sig))
			rest, err := io.ReadAll(stdout)
			require.NoError(t, err)
			require.Equal(t, sig.String()+"\n", string(rest))
			_ = cmd.Wait()
			require.Equal(t, 3, cmd.ProcessState.ExitCode())
		})
	}
}

func TestCopyDiesWithOriginal(t *testing.T) {
	testhost.Require(t)
	cmd, stdout := startAwait(t)
	require.NoError(t, cmd.Process.Kill())
	rest, err := io.ReadAll(stdout)
	require.NoError(t, err, "the copy lives on and holds its standard output open")
	require.Empty(t, rest)
	_ = cmd.Wait()
}

// startAwait starts the helper "await" and returns once its copy waits for a
// signal. The returned reader times out after ten seconds. The helper has its own
// session, so the terminal sends it no signals.
func startAwait(t *testing.T) (*exec.Cmd, io.Reader) {
	t.Helper()
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { reader.Close() })
	require.NoError(t, reader.SetReadDeadline(time.Now().Add(10*time.Second)))
	cmd := helperCommand("await")
	cmd.Stdout = writer
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	writer.Close()
	require.NoError(t, err)
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	stdout := bufio.NewReader(reader)
	line, err := stdout.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "waiting\n", line)
	return cmd, stdout
}

func TestEnterImpossible(t *testing.T) {
	testhost.Require(t)
	for helper, want := range map[string]string{
		"no root":   "set up private host: replace directory \"/\"",
		"relative":  "set up private host: cover directory \"missing\": not an absolute path",
		"powerless": "start private host: ",
	} {
		t.Run(helper, func(t *testing.T) {
			stdout, stderr, status := runHelper(t, helperCommand(helper))
			require.Equal(t, 99, status)
			require.Contains(t, stderr, want)
			require.Empty(t, stdout, "the program must not run outside")
		})
	}
}

// TestStrayMarker starts a program with the marker of another process. It must not
// set up its host, and Inside must be false.
func TestStrayMarker(t *testing.T) {
	testhost.Require(t)
	here, err := privhost.Identity()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("/run/canary", nil, 0o600))
	t.Cleanup(func() { os.Remove("/run/canary") })

	cmd := helperCommand("exit", privhost.Marker+"="+privhost.MarkedLeft+here)
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	cmd.ExtraFiles = []*os.File{null}
	_, _, status := runHelper(t, cmd)
	require.Equal(t, 1, status)
	require.FileExists(t, "/run/canary")

	t.Setenv(privhost.Marker, privhost.MarkedInside+"mnt:[1]")
	require.False(t, privhost.Inside())
}
