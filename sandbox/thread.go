package sandbox

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadNetns is the path of the calling thread's network namespace.
const threadNetns = "/proc/thread-self/ns/net"

// mainThread is the thread that represents the whole process in /proc. It cannot end
// before the process, so no call may run on it.
var mainThread = unix.Getpid()

// onThread calls fn, which may change the network namespace, on a thread of its own.
func onThread(fn func() error) error {
	c := call{fn: fn, done: make(chan struct{})}
	go c.run()
	<-c.done
	if !c.finished {
		runtime.Goexit()
	}
	return c.err
}

// A call is a function that runs on its own thread.
type call struct {
	fn       func() error
	err      error
	finished bool // fn has returned, rather than ended its goroutine
	done     chan struct{}
}

// run calls fn on a thread other than the main thread.
func (c *call) run() {
	runtime.LockOSThread()
	if unix.Gettid() == mainThread {
		// While this goroutine holds the main thread, another goroutine runs the call
		// on another thread and wakes the caller itself.
		defer runtime.UnlockOSThread()
		go c.run()
		<-c.done
		return
	}
	defer close(c.done)
	c.err = restoring(c.fn)
	c.finished = true
}

// restoring calls fn with the goroutine locked to its thread. Then it returns the
// thread to its previous namespace and unlocks it. If that fails, the thread stays
// locked, so it ends with its goroutine.
func restoring(fn func() error) error {
	before, err := openRaw(threadNetns, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open namespace of thread: %w", err)
	}
	defer func() {
		if unix.Setns(before, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		unix.Close(before)
	}()
	return fn()
}
