package privhost

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// A signalRelay keeps the original alive while its copy runs, and passes on what was meant to end it.
type signalRelay struct {
	signals chan os.Signal
	done    chan struct{}
}

// newSignalRelay begins to collect signals.
func newSignalRelay() *signalRelay {
	r := &signalRelay{signals: make(chan os.Signal, 8), done: make(chan struct{})}
	signal.Notify(r.signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	return r
}

// start passes signals on to process until stop.
func (r *signalRelay) start(process *os.Process) {
	go func() {
		for {
			select {
			case sig := <-r.signals:
				if !sentByTerminal(sig) {
					// The copy may just have ended; then there is nobody to tell.
					_ = process.Signal(sig)
				}
			case <-r.done:
				return
			}
		}
	}()
}

func (r *signalRelay) stop() {
	signal.Stop(r.signals)
	close(r.done)
}

// sentByTerminal reports whether sig is one that a terminal sends, and sends to the copy as well: passed on, it
// would arrive twice, and the second interrupt often means "do not even clean up".
func sentByTerminal(sig os.Signal) bool {
	if sig != syscall.SIGINT && sig != syscall.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}
