package sandbox

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadNetns is the network namespace that the calling thread is in.
const threadNetns = "/proc/thread-self/ns/net"

// mainThread stands for the whole process in /proc, and cannot end before it. No call may run there.
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

// A call is a function that runs on a thread of its own.
type call struct {
	fn       func() error
	err      error
	finished bool // and did not end its goroutine
	done     chan struct{}
}

func (c *call) run() {
	runtime.LockOSThread()
	if unix.Gettid() == mainThread {
		// While this goroutine holds the main thread, the call runs on another one, which answers the caller itself.
		defer runtime.UnlockOSThread()
		go c.run()
		<-c.done
		return
	}
	defer close(c.done)
	c.err = restoring(c.fn)
	c.finished = true
}

// restoring calls fn with the goroutine locked to its thread, then returns the thread to its former namespace and unlocks
// it. A thread that cannot be returned stays locked, and so ends with its goroutine.
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
