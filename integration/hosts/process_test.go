package hosts

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

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
