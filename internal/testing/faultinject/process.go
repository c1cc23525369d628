package faultinject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Verdict decides about a call. The zero value allows it.
type Verdict struct {
	Kill  bool       // kill the process before the call
	Errno unix.Errno // if not zero, fail the call with this error
}

// Decide is called at every point. n counts the points since the process was
// armed, from 1. It must not call methods of the process.
type Decide func(n int, p Point) Verdict

// Process is a process under test and all its descendants. Its methods are safe
// for concurrent use.
type Process struct {
	cmd      *exec.Cmd
	pidfd    int
	listener int

	mu      sync.Mutex
	decide  Decide
	points  []Point
	stopped bool
	err     error

	gone chan struct{}
}

// Command returns a command that [Start] can start.
func Command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{path}, args...)...)
	cmd.Env = append(os.Environ(), commandVariable+"=1")
	return cmd
}

// Start starts a command that was made by [Command] or that calls [Enter], and
// returns once its calls are points. If decide is nil, all calls are allowed
// until [Process.Arm].
func Start(cmd *exec.Cmd, decide Decide) (*Process, error) {
	report, reportEnd, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open report pipe: %w", err)
	}
	defer report.Close()
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, reportVariable+"="+strconv.Itoa(3+len(cmd.ExtraFiles)))
	cmd.ExtraFiles = append(cmd.ExtraFiles, reportEnd)
	err = cmd.Start()
	reportEnd.Close()
	if err != nil {
		return nil, fmt.Errorf("start process under test: %w", err)
	}
	p := &Process{cmd: cmd, decide: decide, gone: make(chan struct{})}
	if err := p.attach(report); err != nil {
		return nil, fmt.Errorf("attach to process under test: %w", errors.Join(err, cmd.Process.Kill(), cmd.Wait()))
	}
	go p.supervise()
	return p, nil
}

// attach duplicates the listener of the process under test.
func (p *Process) attach(report io.Reader) (err error) {
	var number [4]byte
	if _, err := io.ReadFull(report, number[:]); err != nil {
		return fmt.Errorf("read report: %w", err)
	}
	if p.pidfd, err = unix.PidfdOpen(p.cmd.Process.Pid, 0); err != nil {
		return fmt.Errorf("open process: %w", err)
	}
	if p.listener, err = unix.PidfdGetfd(p.pidfd, int(binary.NativeEndian.Uint32(number[:])), 0); err != nil {
		return fmt.Errorf("take over seccomp listener: %w", errors.Join(err, unix.Close(p.pidfd)))
	}
	return nil
}

// Arm resets the count of points and sets decide.
func (p *Process) Arm(decide Decide) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide, p.points = decide, nil
}

// Points returns the points since the process was armed, including the one at
// which it was killed.
func (p *Process) Points() []Point {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.points)
}

// Killed reports whether a verdict killed the process.
func (p *Process) Killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

// PID returns the process ID of the process under test.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Wait waits until the process under test ends. The error is that of exec.Cmd.
// Its descendants may still run: see [Process.Gone].
func (p *Process) Wait() error { return p.cmd.Wait() }

// Kill ends the process under test.
func (p *Process) Kill() error { return p.cmd.Process.Kill() }

// Gone returns a channel that is closed when the process under test and all its
// descendants have ended. After that, [Process.Err] is final.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Err returns the errors of the test process in reading or answering calls.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
