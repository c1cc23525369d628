package faultinject

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// changesVariable makes the test binary run change on the directory that it
// names.
const changesVariable = "ALLOCNET_TEST_CHANGES"

func TestMain(m *testing.M) {
	Main()
	if dir := os.Getenv(changesVariable); dir != "" {
		if err := change(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(privhost.Main(m))
}

// change makes one change of each kind, with reads in between.
func change(dir string) error {
	file, old := filepath.Join(dir, "file"), filepath.Join(dir, "old")
	if err := Enter(); err != nil {
		return err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "changed"}}
	for _, step := range []func() error{
		func() error { return os.WriteFile(file, []byte("text"), 0o600) },
		func() error { _, err := os.ReadFile(file); return err },
		func() error { return os.Rename(file, old) },
		func() error { _ = os.Remove(file); return os.Remove(old) },
		func() error { return os.MkdirAll(filepath.Join(dir, "sub"), 0o700) },
		func() error { return unix.Symlink("target", filepath.Join(dir, "link")) },
		func() error { return netlink.LinkAdd(bridge) },
		func() error { _, err := netlink.LinkByName("changed"); return err },
		func() error { return netlink.LinkDel(bridge) },
		func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) },
		func() error { return exec.Command("true", "-S").Run() },
		func() error { return exec.Command("true", "changed").Run() },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

var changes = []string{
	"file: openat O_CREAT DIR/file",
	"file: write DIR/file",
	"file: renameat DIR/file",
	"file: unlinkat DIR/old",
	"file: mkdirat DIR/sub",
	"file: symlinkat DIR/link",
	"rtnetlink: NEWLINK",
	"rtnetlink: DELLINK",
	"sysctl: write /proc/sys/net/ipv4/ip_forward",
	"process: execve true changed",
}

func start(t *testing.T, decide Decide) (p *Process, dir string) {
	t.Helper()
	privhost.Require(t)
	dir = t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), changesVariable+"="+dir)
	cmd.Stderr = os.Stderr
	p, err := Start(cmd, decide)
	require.NoError(t, err)
	return p, dir
}

// named returns the points without the name of the directory.
func named(p *Process, dir string) []string {
	var names []string
	for _, point := range p.Points() {
		if name, err := filepath.Rel(dir, point.Object); err == nil && filepath.IsLocal(name) {
			point.Object = "DIR/" + name
		}
		names = append(names, point.String())
	}
	return names
}

// distinct returns a function that numbers the points, from 1. A call that the kernel restarts has the number that it
// had: see TestPoints.
func distinct() func(Point) int {
	number, last := 0, ""
	return func(p Point) int {
		if text := p.String(); text != last {
			number, last = number+1, text
		}
		return number
	}
}

// TestPoints checks that every change is a point, in order, and nothing else
// is.
func TestPoints(t *testing.T) {
	p, dir := start(t, func(int, Point) Verdict { return Verdict{} })
	require.NoError(t, p.Wait())
	<-p.Gone()
	require.NoError(t, p.Err())
	// The kernel restarts the write of ip_forward if another process holds the
	// rtnetlink lock.
	require.Equal(t, changes, slices.Compact(named(p, dir)))
	require.False(t, p.Killed())
}

// TestKillAtEveryPoint checks that the call at which the process dies has no
// effect, and that all calls before it have.
func TestKillAtEveryPoint(t *testing.T) {
	for at := 1; at <= len(changes); at++ {
		number := distinct()
		p, dir := start(t, func(_ int, point Point) Verdict { return Verdict{Kill: number(point) == at} })
		require.ErrorContains(t, p.Wait(), "killed")
		<-p.Gone()
		require.NoError(t, p.Err())
		require.True(t, p.Killed())
		require.Equal(t, changes[:at], slices.Compact(named(p, dir)))
		_, err := os.Lstat(filepath.Join(dir, "sub"))
		require.Equal(t, at > 5, err == nil, "killed before point %d", at)
		link, err := netlink.LinkByName("changed")
		require.Equal(t, at == 8, err == nil, "killed before point %d", at)
		if err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
	}
}

// TestFailAtEveryPoint checks that the caller receives the injected error.
func TestFailAtEveryPoint(t *testing.T) {
	for at := 1; at <= len(changes); at++ {
		number := distinct()
		p, dir := start(t, func(_ int, point Point) Verdict {
			if number(point) == at {
				return Verdict{Errno: unix.EDQUOT}
			}
			return Verdict{}
		})
		require.ErrorContains(t, p.Wait(), "exit status 1", "%s", changes[at-1])
		<-p.Gone()
		require.NoError(t, p.Err())
		require.Equal(t, changes[:at], slices.Compact(named(p, dir))[:at])
		if link, err := netlink.LinkByName("changed"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
	}
}

// TestCommand runs a program without hooks whose child outlives it.
func TestCommand(t *testing.T) {
	privhost.Require(t)
	dir := t.TempDir()
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	cmd := Command(sh, "-c", "mkdir "+dir+"/made; sleep 300 & echo $! >"+dir+"/pid; wait")
	p, err := Start(cmd, nil)
	require.NoError(t, err)
	var pid int
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(dir + "/pid")
		n, _ := fmt.Sscan(string(data), &pid)
		return err == nil && n == 1
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, p.Kill())
	require.ErrorContains(t, p.Wait(), "killed")
	select {
	case <-p.Gone():
		t.Fatal("what it started goes on")
	default:
	}
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	<-p.Gone()
	require.NoError(t, p.Err())
	require.DirExists(t, dir+"/made")
}
