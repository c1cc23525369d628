// Package process runs programs for tests.
package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Process is a program that a test starts, kills and starts again.
type Process struct {
	Args []string
	Env  []string // added to the environment of the test

	t     testing.TB
	log   string // path of a file with the output of all runs
	cmd   *exec.Cmd
	ended chan struct{}
}

// New returns a process that is not started yet. At the end of the test it is killed, and
// its output is logged if the test has failed.
func New(t testing.TB, args ...string) *Process {
	t.Helper()
	p := &Process{Args: args, t: t, log: filepath.Join(t.TempDir(), "log")}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.Kill()
		}
		if t.Failed() {
			t.Logf("%s wrote:\n%s", filepath.Base(args[0]), p.Output())
		}
	})
	return p
}

// Start starts the process.
func (p *Process) Start() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(p.t, err)
	defer log.Close()
	c, ended := exec.Command(p.Args[0], p.Args[1:]...), make(chan struct{})
	c.Env = append(os.Environ(), p.Env...)
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

// Kill ends the process as a crash does.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Terminate asks the process to end, and requires that it succeeds.
func (p *Process) Terminate() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	<-p.ended
	require.True(p.t, p.Succeeded(), "%s: %s", p.cmd.ProcessState, p.Output())
}

// Signal sends a signal to the process.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// PID returns the process ID in the PID namespace of the test.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Wait waits until the process has ended.
func (p *Process) Wait() { <-p.ended }

// HasEnded reports whether the process has ended.
func (p *Process) HasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Succeeded reports whether the process, which has ended, ended with the exit code 0.
func (p *Process) Succeeded() bool { return p.cmd.ProcessState.Success() }

// Output returns what all runs have written to standard output and standard error.
func (p *Process) Output() string {
	data, _ := os.ReadFile(p.log)
	return string(data)
}
