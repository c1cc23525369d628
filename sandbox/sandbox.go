package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// A Sandbox is an open network namespace. Until Close or Destroy, it owns a descriptor,
// which keeps the namespace alive. It is safe for concurrent use.
type Sandbox struct {
	path string
	file *os.File
}

// Open opens the sandbox at path, and changes nothing. Errors: see [Validate].
func Open(path string) (*Sandbox, error) {
	return openAs(path, checkSandbox)
}

// OpenAny is [Open], but also opens the namespace of the process itself. It never
// returns ErrHostNamespace.
func OpenAny(path string) (*Sandbox, error) {
	return openAs(path, checkAny)
}

func openAs(path string, check func(fd int) error) (*Sandbox, error) {
	file, err := open(path, check)
	if err != nil {
		return nil, fmt.Errorf("open sandbox %q: %w", path, err)
	}
	return &Sandbox{path: path, file: file}, nil
}

// Validate returns nil if path can be opened as a sandbox. Otherwise the error is
// ErrNotExist, ErrNotNamespace, ErrHostNamespace or a system error.
func Validate(path string) error {
	if err := validate(path); err != nil {
		return fmt.Errorf("open sandbox %q: %w", path, err)
	}
	return nil
}

// LoopbackUp brings up the loopback link of the sandbox at path. It is idempotent.
// Errors: see [Validate].
func LoopbackUp(path string) error {
	s, err := Open(path)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.LoopbackUp()
}

// LoopbackUp brings up the loopback link of the sandbox. It is idempotent.
func (s *Sandbox) LoopbackUp() error { return s.Do(loopbackUp) }

// Path returns the path of the file on which the namespace is mounted.
func (s *Sandbox) Path() string { return s.path }

// ProcPath returns a path that leads to the namespace from any process of the host. It
// leads to no other file until Close. After Close, ProcPath returns "", and a path that
// it returned before may lead to another file.
func (s *Sandbox) ProcPath() (path string) {
	_ = s.With(func(fd int) error {
		path = fmt.Sprintf("/proc/%s/fd/%d", self(), fd)
		return nil
	})
	return path
}

// self returns the number of this process in the PID namespace of /proc, which may
// differ from that of the process.
var self = sync.OnceValue(func() string {
	if pid, err := os.Readlink("/proc/self"); err == nil {
		return pid
	}
	return strconv.Itoa(os.Getpid())
})

// Name returns the last element of the path.
func (s *Sandbox) Name() string { return filepath.Base(s.path) }

// Do calls fn on a thread in the sandbox and returns fn's error. No other goroutine
// runs on that thread until fn returns; the caller's thread stays in its namespace. If
// fn ends its goroutine with runtime.Goexit, as a failing test does, Do ends the
// caller's goroutine as well. After Close, Do returns os.ErrClosed.
func (s *Sandbox) Do(fn func() error) error {
	return onThread(func() error {
		if err := s.enter(); err != nil {
			return err
		}
		return fn()
	})
}

// Close closes the descriptor. The sandbox remains. Close may be called again.
func (s *Sandbox) Close() error {
	if err := s.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close sandbox %q: %w", s.path, err)
	}
	return nil
}

// Destroy closes s and destroys the sandbox, as the function Destroy does.
func (s *Sandbox) Destroy() error {
	return errors.Join(Destroy(s.path), s.Close())
}

// With calls fn with the descriptor of the namespace, for requests to the kernel, and
// returns fn's error. The descriptor stays open until fn returns, even if Close is
// called meanwhile; Close does not wait for fn. fn must neither keep nor close the
// descriptor. After Close, With returns os.ErrClosed and does not call fn.
func (s *Sandbox) With(fn func(fd int) error) error {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("use sandbox %q: %w", s.path, err)
	}
	var fnErr error
	// Control only returns an error if the descriptor was closed before.
	if conn.Control(func(fd uintptr) { fnErr = fn(int(fd)) }) != nil {
		return fmt.Errorf("use sandbox %q: %w", s.path, os.ErrClosed)
	}
	return fnErr
}

// enter moves the calling thread into the sandbox.
func (s *Sandbox) enter() error {
	return s.With(func(fd int) error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter sandbox %q: %w", s.path, os.NewSyscallError("setns", err))
		}
		return nil
	})
}
