package sandbox

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread calls fn, which may change the network namespace, on a thread of its own.
func onThread(fn func() error) error {
	var err error
	finished := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = lockThread(fn)
		finished = true
	}()
	<-done
	if !finished {
		runtime.Goexit()
	}
	return err
}

// lockThread calls fn with the goroutine locked to its thread, and puts the thread back into the namespace it was
// in. A thread that cannot be put back stays locked, and so ends together with its goroutine.
func lockThread(fn func() error) error {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread stands for the whole process in /proc, and cannot end before it. While it is
		// locked here, fn gets another one.
		defer runtime.UnlockOSThread()
		return onThread(fn)
	}
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open namespace of thread: %w", err)
	}
	defer func() {
		if enter(home) == nil {
			runtime.UnlockOSThread()
		}
		home.Close()
	}()
	return fn()
}

// enter moves the thread into the network namespace that file is open on.
func enter(file *os.File) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	// Control keeps the descriptor from being closed, and its number reused, during the call. Its own error can
	// only mean that it was closed before.
	if conn.Control(func(fd uintptr) { setErr = unix.Setns(int(fd), unix.CLONE_NEWNET) }) != nil {
		return os.ErrClosed
	}
	return os.NewSyscallError("setns", setErr)
}
