package server

import (
	"fmt"
	"strings"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// notifier reports the daemon's state to systemd, if systemd expects that.
type notifier struct {
	logger hclog.Logger

	mu       sync.Mutex
	ready    bool
	stopping bool
}

func (n *notifier) send(lines ...string) {
	if _, err := sd.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		n.logger.Warn("could not notify systemd", "state", lines, "error", err)
	}
}

// starting reports a status and extends the unit's start timeout.
func (n *notifier) starting(more time.Duration, status string) {
	n.send("STATUS="+status, extend(more))
}

// becomeReady reports that the daemon is ready, for the first time or after a reload,
// unless the daemon is about to end.
func (n *notifier) becomeReady(status string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopping {
		return false
	}
	n.ready = true
	n.send(sd.SdNotifyReady, "STATUS="+status)
	return true
}

// reload calls run, which reloads. It reports the reload to systemd only after the
// daemon has become ready.
func (n *notifier) reload(run func() (status string)) {
	n.mu.Lock()
	ready := n.ready
	if ready {
		n.send(sd.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", monotonic()), "STATUS=reloading")
	}
	n.mu.Unlock()
	if status := run(); ready {
		n.becomeReady(status)
	}
}

func (n *notifier) stop(longest time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready, n.stopping = false, true
	n.send(sd.SdNotifyStopping, "STATUS=finishing running requests", extend(longest))
}

func (n *notifier) keepalive() { n.send(sd.SdNotifyWatchdog) }

func extend(by time.Duration) string {
	return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", by.Microseconds())
}

// monotonic returns the time in microseconds by which systemd distinguishes reloads.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano() / 1000
}
