package confmanager

import (
	"context"
	"time"
)

const (
	quiet   = 100 * time.Millisecond // without an event: a burst is over
	longest = time.Second            // that a burst is waited for
	retry   = 2 * time.Second        // at most, without any event, until all is well
	rescan  = 30 * time.Second       // at most, without any event, from then on
)

func newTimer(d time.Duration) (<-chan time.Time, func() bool) {
	t := time.NewTimer(d)
	return t.C, t.Stop
}

// wait returns when something changed and the burst of changes is over, or when
// it is time for a look without any.
func (m *Manager) wait(ctx context.Context, changed <-chan struct{}) {
	idle, stop := m.timer(m.patience())
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

// patience is short while something is in the way that may go without an event: a
// full disk, a mount.
func (m *Manager) patience() time.Duration {
	if m.Ready() != nil {
		return retry
	}
	return rescan
}

// waitQuiet reports whether there was another change before the quiet time was
// over.
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
