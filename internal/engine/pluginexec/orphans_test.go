package pluginexec

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

const mark = "/state/mark/net4026531840"

// of is the work on a container of this state directory.
func of(id string) Work { return Work{ID: id, Tag: mark} }

func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// killer names the variable that makes this binary call KillOrphans, as a
// plugin that works with this package inside would.
const killer = "ALLOCNET_TEST_KILL_STRAGGLERS"

func init() {
	id := os.Getenv(killer)
	if id == "" {
		return
	}
	if err := KillOrphans(of(id)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("survived")
	os.Exit(0)
}

// orphan is a process with the environment of a plugin.
func orphan(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command("sleep", "300")
	c.Env = append(env, "PATH="+os.Getenv("PATH"))
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c
}

func TestOrphansAreKnownByTheirEnvironment(t *testing.T) {
	path := "CNI_PATH=/opt/cni/bin:" + mark
	strangers := map[string]*exec.Cmd{
		"an ID that begins alike": orphan(t, path, "CNI_COMMAND=ADD", "CNI_CONTAINERID=known2"),
		"an ID that ends alike":   orphan(t, path, "CNI_COMMAND=ADD", "CNI_CONTAINERID=unknown"),
		"another variable":        orphan(t, path, "CNI_COMMAND=ADD", "X=CNI_CONTAINERID=known"),
		"another runtime":         orphan(t, "CNI_PATH=/opt/cni/bin", "CNI_COMMAND=ADD", "CNI_CONTAINERID=known"),
		"another state directory": orphan(t, "CNI_PATH=/other/mark/net4026531840", "CNI_COMMAND=ADD", "CNI_CONTAINERID=known"),
		"another host":            orphan(t, "CNI_PATH=/state/mark/net1", "CNI_COMMAND=ADD", "CNI_CONTAINERID=known"),
	}
	adding := orphan(t, path, "CNI_COMMAND=ADD", "CNI_CONTAINERID=known")
	deleting := orphan(t, "CNI_CONTAINERID=known", "CNI_COMMAND=DEL", path)
	for _, c := range []*exec.Cmd{adding, deleting} {
		require.Eventually(t, func() bool { return of("known").On(c.Process.Pid) }, 5*time.Second, time.Millisecond)
	}
	require.NoError(t, KillOrphans(of("known"), "CHECK"))
	require.False(t, zombie(adding.Process.Pid), "what ADD left running on purpose survives a CHECK")
	require.NoError(t, KillOrphans(of("known"), "DEL"))
	require.EqualError(t, deleting.Wait(), "signal: killed")
	require.False(t, zombie(adding.Process.Pid))
	require.NoError(t, KillOrphans(of("known")))
	require.EqualError(t, adding.Wait(), "signal: killed")
	for name, c := range strangers {
		require.False(t, of("known").On(c.Process.Pid), name)
		require.NoError(t, c.Process.Signal(unix.SIGCONT), name)
		require.False(t, zombie(c.Process.Pid), name)
	}
}

// TestOrphansThatDoNotEnd are named, and no success.
func TestOrphansThatDoNotEnd(t *testing.T) {
	pid, release := fakeplugin.Undying(t, "CNI_PATH="+mark, "CNI_COMMAND=ADD", "CNI_CONTAINERID=undying")
	err := KillOrphans(of("undying"))
	require.ErrorContains(t, err, fmt.Sprintf("%d (sleep)", pid))
	require.ErrorIs(t, err, ErrAlive)
	release()
	require.NoError(t, KillOrphans(of("undying")))
}

// TestOrphansGoWithTheirGroup, whatever their environment is by then.
func TestOrphansGoWithTheirGroup(t *testing.T) {
	c := exec.Command("sh", "-c", `env -i sleep 300 & echo $!; wait`)
	c.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=leader", "CNI_PATH="+mark)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	var child int
	_, err = fmt.Fscan(out, &child)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
	require.Eventually(t, func() bool { return !of("leader").On(child) }, 5*time.Second, time.Millisecond, "env ran")
	require.NoError(t, KillOrphans(of("leader")))
	require.EqualError(t, c.Wait(), "signal: killed")
	require.Eventually(t, func() bool { return zombie(child) }, 5*time.Second, time.Millisecond)
}

// TestOrphansSpareAPluginThatCalls: allocnet can run inside a plugin, which
// has this very environment, and so has what started it.
func TestOrphansSpareAPluginThatCalls(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command("sh", "-c", `"$0"; echo "$?, and so did its parent"`, self)
	c.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=embedded", "CNI_PATH="+mark, killer+"=embedded")
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	require.NoError(t, c.Run(), out.String())
	require.Equal(t, "survived\n0, and so did its parent\n", out.String())
}

// TestParentOfAnOddlyNamedProcess: the name in /proc/PID/stat can hold anything.
func TestParentOfAnOddlyNamedProcess(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	data, err := os.ReadFile(sleep)
	require.NoError(t, err)
	odd := filepath.Join(t.TempDir(), "a) S 1 (b")
	require.NoError(t, os.WriteFile(odd, data, 0o755))
	c := exec.Command(odd, "300")
	require.Eventually(t, func() bool {
		err := c.Start() // another thread's fork may hold the file open for a moment
		return err == nil || !errors.Is(err, unix.ETXTBSY)
	}, 5*time.Second, time.Millisecond)
	require.NotNil(t, c.Process)
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	require.Equal(t, os.Getpid(), parent(c.Process.Pid))
	require.Zero(t, parent(1<<30))
}

func TestOrphansSpareTheCallerAndStrangers(t *testing.T) {
	require.True(t, ancestry()[os.Getpid()])
	require.True(t, ancestry()[os.Getppid()])
	require.False(t, of("nobody").On(os.Getpid()))
	require.NoError(t, KillOrphans(of("nobody")))
	require.NoError(t, unix.Kill(os.Getppid(), 0))
}
