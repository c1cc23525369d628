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

// notifier tells systemd how the daemon is, if systemd started it and wants to
// know.
type notifier struct {
	logger hclog.Logger

	mu       sync.Mutex
	ready    bool
	stopping bool
}

func (n *notifier) send(lines ...string) {
	if _, err := sd.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		n.logger.Warn("systemd was not told", "state", lines, "error", err)
	}
}

// starting asks for that much more time than the unit allows for the start.
func (n *notifier) starting(more time.Duration, status string) {
	n.send("STATUS="+status, extend(more))
}

// becomeReady says that the daemon is ready, for the first time or after a reload,
// unless it is about to end.
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

// reload runs what reloads. Before the daemon is ready systemd expects no word of
// it.
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
	n.send(sd.SdNotifyStopping, "STATUS=finishing what runs", extend(longest))
}

func (n *notifier) alive() { n.send(sd.SdNotifyWatchdog) }

func extend(by time.Duration) string {
	return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", by.Microseconds())
}

// monotonic is the clock by which systemd tells reloads apart, in microseconds.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano() / 1000
}
