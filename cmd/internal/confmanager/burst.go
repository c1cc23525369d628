package confmanager

import (
	"context"
	"time"
)

const (
	quiet   = 100 * time.Millisecond // time without an event after which a burst is over
	longest = time.Second            // longest wait for the end of a burst
	retry   = 2 * time.Second        // time between looks without an event, while not ready
	rescan  = 30 * time.Second       // time between looks without an event, otherwise
)

func newTimer(d time.Duration) (<-chan time.Time, func() bool) {
	t := time.NewTimer(d)
	return t.C, t.Stop
}

// wait returns when a burst of changes is over, or when a look without a change is due.
func (m *Manager) wait(ctx context.Context, changed <-chan struct{}) {
	idle, stop := m.timer(m.timeout())
	defer stop()
	select {
	case <-ctx.Done():
		return
	case <-idle:
		return
	case <-changed:
	}
	end, stop := m.timer(longest)
	defer stop()
	for more := true; more; {
		more = m.waitQuiet(ctx, changed, end)
	}
}

// timeout returns a short time while a problem exists that may disappear without an event,
// such as a full disk.
func (m *Manager) timeout() time.Duration {
	if m.Ready() != nil {
		return retry
	}
	return rescan
}

// waitQuiet reports whether another change happened within the quiet time.
func (m *Manager) waitQuiet(ctx context.Context, changed <-chan struct{}, end <-chan time.Time) bool {
	calm, stop := m.timer(quiet)
	defer stop()
	select {
	case <-ctx.Done():
	case <-end:
	case <-calm:
	case <-changed:
		return true
	}
	return false
}
