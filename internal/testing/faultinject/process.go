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

// Verdict is what becomes of a call. The zero value lets it happen.
type Verdict struct {
	Kill  bool       // end the process before it
	Errno unix.Errno // fail it so, if not zero
}

// Decide is asked at every point; n counts from 1, since the process was armed. It
// must not use the process.
type Decide func(n int, p Point) Verdict

// Process is a process under test, with all that it starts. Its methods are safe
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

// Command is a program to be started by [Start].
func Command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{path}, args...)...)
	cmd.Env = append(os.Environ(), commandVariable+"=1")
	return cmd
}

// Start starts a command of [Command], or one that calls [Enter], and returns when
// its calls are points. decide may be nil: then nothing is decided before [Arm].
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

// attach takes the listener over.
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

// Arm begins to count points anew and has decide decide about them.
func (p *Process) Arm(decide Decide) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide, p.points = decide, nil
}

// Points are those that came since the process was armed, with the one at which it
// was killed.
func (p *Process) Points() []Point {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.points)
}

// Killed reports whether a decision has ended the process.
func (p *Process) Killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

// PID is that of the process under test.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Wait waits for the end of the process under test; the error is that of exec.Cmd.
// What it started may go on: see [Process.Gone].
func (p *Process) Wait() error { return p.cmd.Wait() }

// Kill ends the process under test.
func (p *Process) Kill() error { return p.cmd.Process.Kill() }

// Gone is closed when the process under test and all that it started have ended.
// Then [Process.Err] tells what went wrong here.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Err is what kept a call from being understood.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
