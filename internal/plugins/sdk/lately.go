package sdk

import (
	"sync"
	"time"
)

// Lately remembers for a moment what all allocations share and was seen to be
// there, so that a burst of ADDs does not look again each time. That somebody took
// it away since is the same as if he did so just after an ADD: CHECK notices. It
// is safe for concurrent use; a nil one remembers nothing.
type Lately struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

const (
	latelyTime = 20 * time.Millisecond
	latelySize = 256
)

// Unless calls look, unless it found nothing wrong a moment ago.
func (l *Lately) Unless(key string, look func() error) error {
	if l == nil {
		return look()
	}
	l.mu.Lock()
	recent := time.Since(l.seen[key]) < latelyTime
	l.mu.Unlock()
	if recent {
		return nil
	}
	err := look()
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.seen == nil || len(l.seen) >= latelySize {
			l.seen = make(map[string]time.Time)
		}
		l.seen[key] = time.Now()
	}
	return err
}

// Forget has everything looked at again.
func (l *Lately) Forget() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.seen)
}
