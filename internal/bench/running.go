package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// running is a daemon that is running.
type running struct {
	process *os.Process
	ended   chan error
}

// daemonTime bounds the start and the end of the daemon.
const daemonTime = time.Minute

// runDaemon starts the daemon in a directory of programs. It returns once the daemon
// notifies that it is ready, as it notifies systemd: after the comparison of its records
// with the kernel.
func runDaemon(ctx context.Context, dir, settings string) (r *running, err error) {
	notify := settings + ".notify"
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, filepath.Join(dir, "allocnetd"), "--config", settings)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = daemonTime
	c.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify)
	c.Stderr = os.Stderr
	if err := errors.Join(l.SetReadDeadline(time.Now().Add(daemonTime)), c.Start()); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	r = &running{process: c.Process, ended: make(chan error, 1)}
	go func() { r.ended <- errors.Join(c.Wait(), l.Close(), os.Remove(notify)) }()
	if err := awaitReady(l); err != nil {
		return nil, errors.Join(fmt.Errorf("start allocnetd: %w", err), r.stop())
	}
	return r, nil
}

// awaitReady reads notifications until one reports that the daemon is ready.
func awaitReady(l *net.UnixConn) error {
	text := make([]byte, 4<<10)
	for {
		n, err := l.Read(text)
		if err != nil {
			return err
		}
		if slices.Contains(strings.Split(string(text[:n]), "\n"), "READY=1") {
			return nil
		}
	}
}

// stop ends the daemon.
func (r *running) stop() error {
	err := r.process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil // ended has the reason
	}
	return errors.Join(err, <-r.ended)
}

// clock returns the clock of the daemon's processor time.
func (r *running) clock() clock { return clockOf(r.process.Pid) }
