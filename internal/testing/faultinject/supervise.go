package faultinject

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is struct seccomp_notif.
type notification struct {
	ID    uint64
	TID   uint32
	Flags uint32
	data
}

// data is struct seccomp_data.
type data struct {
	Number      int32
	Arch        uint32
	Instruction uint64
	Args        [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	ID    uint64
	Value int64
	Error int32
	Flags uint32
}

// idValid is SECCOMP_IOCTL_NOTIF_ID_VALID.
const idValid = 0x40082102

func (p *Process) ioctl(request uint, argument unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.listener), uintptr(request), uintptr(argument))
	if errno != 0 {
		return errno
	}
	return nil
}

// supervise answers all calls until no process runs under the filter any more.
func (p *Process) supervise() {
	defer close(p.gone)
	defer unix.Close(p.pidfd)
	defer unix.Close(p.listener)
	for {
		polled := []unix.PollFd{{Fd: int32(p.listener), Events: unix.POLLIN}}
		_, err := unix.Poll(polled, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			p.fail(fmt.Errorf("wait for calls: %w", err))
			return
		case polled[0].Revents&unix.POLLIN == 0:
			return // all processes have ended
		}
		var n notification
		err = p.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) {
			continue // the caller ended in the meantime
		}
		if err == nil {
			err = p.answer(&n)
		}
		if err != nil {
			p.fail(err)
		}
	}
}

func (p *Process) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}

// answer decides about one call.
func (p *Process) answer(n *notification) error {
	r := response{ID: n.ID, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	verdict, err := p.judge(n)
	switch {
	case verdict.Kill:
		return errors.Join(err, p.end(n))
	case verdict.Errno != 0:
		r.Flags, r.Error = 0, -int32(verdict.Errno)
	}
	sendErr := p.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
	if errors.Is(sendErr, unix.ENOENT) {
		return nil // the caller has ended, so what was read from it is meaningless
	}
	return errors.Join(err, sendErr)
}

// judge checks whether a call is a point, and calls decide if it is.
func (p *Process) judge(n *notification) (Verdict, error) {
	if !p.isUnderTest(n) {
		return Verdict{}, nil
	}
	p.mu.Lock()
	stopped, decide := p.stopped, p.decide
	p.mu.Unlock()
	if stopped {
		return Verdict{Kill: true}, nil
	}
	if decide == nil {
		return Verdict{}, nil
	}
	c := &caller{pidfd: p.pidfd, tid: int(n.TID), args: n.Args}
	point, err := c.point(int(n.Number))
	if err != nil && p.ioctl(idValid, unsafe.Pointer(&n.ID)) != nil {
		return Verdict{}, nil
	}
	if err != nil || point == nil {
		return Verdict{}, err
	}
	return p.ask(decide, *point), nil
}

// isUnderTest reports whether the process under test made the call, or whether
// the call is the execve of its child.
func (p *Process) isUnderTest(n *notification) bool {
	if n.Number != unix.SYS_EXECVE {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", p.cmd.Process.Pid, n.TID))
		return err == nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.TID))
	var parent int
	_, fields, _ := strings.Cut(string(stat), ") ")
	if _, scanErr := fmt.Sscanf(fields, "%1s %d", new(string), &parent); err != nil || scanErr != nil {
		return false
	}
	return parent == p.cmd.Process.Pid
}

// end kills the process under test and, if the call is the execve of its child,
// that child.
func (p *Process) end(n *notification) error {
	err := unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
	if n.Number == unix.SYS_EXECVE {
		err = errors.Join(err, unix.Kill(int(n.TID), unix.SIGKILL))
	}
	return err
}

func (p *Process) ask(decide Decide, point Point) Verdict {
	p.mu.Lock()
	p.points = append(p.points, point)
	number := len(p.points)
	p.mu.Unlock()
	verdict := decide(number, point)
	if verdict.Kill {
		p.mu.Lock()
		p.stopped = true
		p.mu.Unlock()
	}
	return verdict
}
