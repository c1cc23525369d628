package privhost

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalRelay keeps the original process alive while its copy runs, and forwards
// termination signals to the copy.
type signalRelay struct {
	signals chan os.Signal
	done    chan struct{}
}

// newSignalRelay returns a relay that already collects signals.
func newSignalRelay() *signalRelay {
	r := &signalRelay{signals: make(chan os.Signal, 8), done: make(chan struct{})}
	signal.Notify(r.signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	return r
}

// start forwards signals to process until stop is called.
func (r *signalRelay) start(process *os.Process) {
	go func() {
		for {
			select {
			case sig := <-r.signals:
				if !sentByTerminal(sig) {
					// The copy may have ended; then the signal is dropped.
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

// sentByTerminal reports whether sig came from the terminal, which sends it to the
// copy as well. If it were forwarded, the copy would receive it twice, and many
// programs skip their cleanup on a second interrupt.
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
