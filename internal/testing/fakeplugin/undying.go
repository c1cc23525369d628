package fakeplugin

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Undying starts a process with the given environment that survives SIGKILL
// until release is called or the test ends: a tracer stops it at its exit. It
// simulates a process that is blocked in the kernel, for example by an
// unresponsive file system.
func Undying(t testing.TB, environ ...string) (pid int, release func()) {
	t.Helper()
	c := exec.Command("sleep", "300")
	c.Env, c.SysProcAttr = environ, &syscall.SysProcAttr{Ptrace: true}
	started, stop, done := make(chan error), make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // ptrace identifies the tracer by its thread
		defer runtime.UnlockOSThread()
		err := trace(c)
		started <- err
		if err == nil {
			<-stop
			done <- finish(c)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("trace process: %v", err)
	}
	release = sync.OnceFunc(func() {
		close(stop)
		if err := <-done; err != nil {
			t.Errorf("end process: %v", err)
		}
	})
	t.Cleanup(release)
	return c.Process.Pid, release
}

// trace starts a process that is killed when its tracer exits.
func trace(c *exec.Cmd) error {
	if err := c.Start(); err != nil {
		return err
	}
	if _, err := unix.Wait4(c.Process.Pid, nil, 0, nil); err != nil { // at its execve
		return err
	}
	if err := unix.PtraceSetOptions(c.Process.Pid, unix.PTRACE_O_TRACEEXIT|unix.PTRACE_O_EXITKILL); err != nil {
		return err
	}
	return unix.PtraceCont(c.Process.Pid, 0)
}

// finish kills the process and lets it exit.
func finish(c *exec.Cmd) error {
	if err := c.Process.Kill(); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(c.Process.Pid, &status, unix.WALL, nil); err != nil || status.Signaled() {
			return err
		}
		if err := unix.PtraceCont(c.Process.Pid, 0); err != nil {
			return err
		}
	}
}
