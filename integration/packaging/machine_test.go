package packaging

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// machine is a throwaway host on which systemd runs.
type machine struct {
	t   *testing.T
	pid string // of its systemd, on this host
}

// boot starts a throwaway host. It ends with the test.
func boot(t *testing.T) *machine {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	group := newGroup(t)
	// systemd has to be in the group from its start.
	c := exec.Command("sh", "-ec", `echo $$ >"$1/cgroup.procs"; shift; exec unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child --propagation private "$@"`,
		"sh", group, "testdata/boot", t.TempDir(), self)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	require.NoError(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() {
		_ = c.Process.Kill() // and with it the first process of the namespaces
		<-ended
		removeGroup(t, group)
	})
	m := &machine{t: t}
	deadline := time.Now().Add(time.Minute)
	for {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", c.Process.Pid))
		if m.pid = strings.TrimSpace(string(children)); m.pid != "" {
			if state, _ := m.command("systemctl", "is-system-running", "--wait").Output(); strings.TrimSpace(string(state)) == "running" {
				return m
			}
		}
		select {
		case err := <-ended:
			ended <- err
			require.NoError(t, err, "%s", out.String())
		case <-time.After(50 * time.Millisecond):
		}
		require.True(t, time.Now().Before(deadline), "systemd does not run: %s%s", out.String(), m.try("systemctl", "--failed"))
	}
}

// newGroup returns a new cgroup of version 2.
func newGroup(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[2] == "cgroup2" {
			dir, err := os.MkdirTemp(fields[1], "allocnet-package-")
			require.NoError(t, err)
			return dir
		}
	}
	require.Fail(t, "cgroup2 is not mounted")
	return ""
}

// removeGroup removes a cgroup and those below it once their processes have
// ended.
func removeGroup(t *testing.T, group string) {
	var dirs []string
	_ = filepath.WalkDir(group, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	slices.Reverse(dirs)
	for _, dir := range dirs {
		require.Eventually(t, func() bool {
			err := os.Remove(dir)
			return err == nil || errors.Is(err, os.ErrNotExist)
		}, 30*time.Second, 10*time.Millisecond, dir)
	}
}

// command returns a command that runs on the machine, as root.
func (m *machine) command(args ...string) *exec.Cmd {
	c := exec.Command("nsenter", append([]string{"-t", m.pid, "-m", "-p", "-n", "-u", "-i", "-C", "--root", "--wd", "--"}, args...)...)
	c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", helperMode + "=1"}
	return c
}

// try runs a command and returns its output and how it ended.
func (m *machine) try(args ...string) string {
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v\n", out, err)
	}
	return string(out)
}

// run runs a command that must succeed, and returns its standard output
// without white space at the end.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	c := m.command(args...)
	var out, errOut bytes.Buffer
	c.Stdout, c.Stderr = &out, &errOut
	if err := c.Run(); err != nil {
		require.NoError(m.t, err, "%q: %s%s%s", args, out.String(), errOut.String(), m.try("journalctl", "--no-pager", "-u", "allocnetd.service", "-n", "30"))
	}
	return strings.TrimSpace(out.String())
}

// shell runs a script that must succeed, and returns its standard output.
func (m *machine) shell(script string) string {
	m.t.Helper()
	return m.run("sh", "-ec", script)
}

// put copies a file of this host into /tmp of the machine, and returns its path
// there.
func (m *machine) put(file string) string {
	m.t.Helper()
	f, err := os.Open(file)
	require.NoError(m.t, err)
	defer f.Close()
	path := "/var/tmp/" + filepath.Base(file)
	c := m.command("tee", path)
	c.Stdin = f
	require.NoError(m.t, c.Run())
	return path
}

// conversation is a TCP connection from a process of the machine.
type conversation struct {
	m     *machine
	in    io.Writer
	lines chan string
}

// connect opens a connection to an echo service.
func (m *machine) connect(address string) *conversation {
	m.t.Helper()
	c := m.command("helper", "connect", address)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := c.StdinPipe()
	require.NoError(m.t, err)
	out, err := c.StdoutPipe()
	require.NoError(m.t, err)
	require.NoError(m.t, c.Start())
	m.t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	lines := make(chan string)
	ctx, cancel := context.WithCancel(context.Background())
	m.t.Cleanup(cancel)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return &conversation{m: m, in: in, lines: lines}
}

// say sends a line and requires it as the answer.
func (c *conversation) say(line string) {
	c.m.t.Helper()
	_, err := io.WriteString(c.in, line+"\n")
	require.NoError(c.m.t, err)
	select {
	case got := <-c.lines:
		require.Equal(c.m.t, line, got)
	case <-time.After(30 * time.Second):
		require.Fail(c.m.t, "no answer", line)
	}
}
