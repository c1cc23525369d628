package telemetry

import (
	"sync"
	"time"
)

// The least times between two counts that are not made during a scrape. That of leases without an owner
// reads all leases, which takes a quarter of a second for 10,000 allocations. Findings and readiness take
// some milliseconds each, or as long as the plugins that are asked.
const (
	ownerlessTime = 5 * time.Minute
	findingsTime  = time.Minute
	readyTime     = 15 * time.Second
)

// The pause after a count is at least so many times as long as the count.
const (
	countPart = 200
	readyPart = 10
)

// background counts in the background, at the request of scrapes.
type background struct {
	count func() (map[string]int, error)
	now   func() time.Time
	least time.Duration
	part  time.Duration

	mu      sync.Mutex
	running chan struct{} // closed at the end of the last count that was begun
	begun   time.Time
	pause   time.Duration
	counts  map[string]int
	err     error
}

// current returns the last counts, nil before the first ones, and begins to count again if
// they are old.
func (b *background) current() (map[string]int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if since := b.now().Sub(b.begun); !b.isRunning() && (since < 0 || since >= b.pause) {
		b.running, b.begun = make(chan struct{}), b.now()
		go b.run(b.running)
	}
	return b.counts, b.err
}

func (b *background) isRunning() bool {
	if b.running == nil {
		return false
	}
	select {
	case <-b.running:
		return false
	default:
		return true
	}
}

func (b *background) run(ended chan struct{}) {
	counts, err := b.count()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts, b.err, b.pause = counts, err, max(b.least, b.part*b.now().Sub(b.begun))
	close(ended)
}
