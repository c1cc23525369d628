package containerd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// programs builds allocnet's programs and the example once, and returns their directory.
var programs = sync.OnceValues(func() (dir string, err error) {
	if !privhost.Inside() {
		return "", errors.New("only inside a private host")
	}
	top, err := refplugins.Checkout()
	if err != nil {
		return "", err
	}
	if programsDir, err = os.MkdirTemp("", "allocnet-programs-"); err != nil {
		return "", err
	}
	for _, command := range [][]string{
		{"go", "build", "-o", programsDir, "./cmd/allocnetd", "./cmd/allocnet", "./cmd/allocnet-cni", "./cmd/allocnet-plugins"},
		{"make", "shim", "BIN=" + programsDir},
		{"env", "GOWORK=off", "go", "-C", "examples/containerd", "build", "-o", filepath.Join(programsDir, "example"), "."},
	} {
		c := exec.Command(command[0], command[1:]...)
		c.Dir, c.Env = top, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=")
		if out, err := c.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%q: %w: %s", command, err, out)
		}
	}
	return programsDir, nil
})

// programsDir is removed at the end of all tests.
var programsDir string

// process is a program that a test starts, kills and starts again.
type process struct {
	t    testing.TB
	args []string
	env  []string
	log  string // path of a file with the output of all its runs

	cmd   *exec.Cmd
	ended chan struct{}
}

// newProcess returns a process that is not started yet. It is killed at the end of the
// test.
func newProcess(t testing.TB, args ...string) *process {
	t.Helper()
	p := &process{t: t, args: args, log: filepath.Join(t.TempDir(), "log")}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.kill()
		}
		if t.Failed() {
			t.Logf("%s wrote:\n%s", filepath.Base(args[0]), p.output())
		}
	})
	return p
}

// begin starts the process.
func (p *process) begin() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(p.t, err)
	defer log.Close()
	c, ended := exec.Command(p.args[0], p.args[1:]...), make(chan struct{})
	c.Env = append(os.Environ(), p.env...)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the process ends.
		runtime.LockOSThread()
		err := c.Start()
		started <- err
		if err == nil {
			_ = c.Wait()
			close(ended)
		}
	}()
	require.NoError(p.t, <-started)
	p.cmd, p.ended = c, ended
}

// kill ends the process as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// term asks the process to end, and requires that it succeeds.
func (p *process) term() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	<-p.ended
	require.True(p.t, p.cmd.ProcessState.Success(), "%s: %s", p.cmd.ProcessState, p.output())
}

// hasEnded reports whether the process has ended.
func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// output returns the output of all runs.
func (p *process) output() string {
	data, _ := os.ReadFile(p.log)
	return string(data)
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, time.Minute, 5*time.Millisecond, what)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// endOthers kills all processes except those of the tests, such as the containers that a
// killed containerd has left.
func endOthers(t testing.TB) {
	t.Helper()
	keep := []string{"1", strconv.Itoa(os.Getppid()), strconv.Itoa(os.Getpid())}
	eventually(t, "all other processes end", func() bool {
		paths, err := filepath.Glob("/proc/[0-9]*")
		require.NoError(t, err)
		for _, path := range paths {
			if pid := filepath.Base(path); !slices.Contains(keep, pid) {
				n, _ := strconv.Atoi(pid)
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
		return len(paths) == len(keep)
	})
}

// unmountBelow unmounts what is mounted in a directory.
func unmountBelow(t testing.TB, dir string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") {
			require.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
		}
	}
}
