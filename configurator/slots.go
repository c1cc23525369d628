package configurator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// pool prepares network namespaces. It is safe for concurrent use.
type pool struct {
	Pool
	key string // of Store.LockPool

	mu      sync.Mutex
	slots   []*slot
	making  int       // slots that are being prepared
	out     int       // slots that are being bound to allocations; after close, see release
	newest  time.Time // when the last one was bound
	paused  time.Time // prepare no slot before
	closed  bool
	status  PoolStatus
	wake    chan struct{} // has a value if there may be room for a slot
	pending []*slot       // to be discarded by watchPool
	failed  []*slot       // that could not be removed; watchPool tries again
	recheck bool          // another program may have damaged slots
	tend    chan struct{} // has a value if watchPool has something to do
	stop    context.CancelFunc
	ended   sync.WaitGroup
	unlock  func()
}

// slotPrefix begins the ID of every slot.
const slotPrefix = "pool-"

// slot is a prepared network namespace. Its record has phase Pooled. The goroutine that
// removes it from the pool owns it.
type slot struct {
	*plan.Plan
	request  *engine.Request // with the results
	prepared *native.Prepared
	sandbox  *sandbox.Sandbox
	file     *record.Slot
	survives bool   // see leasesSurvive
	since    uint64 // before its ADD: see watch.Monitor
}

// close closes the descriptors of a slot. It may be called again.
func (s *slot) close() error {
	if s.file != nil { // a slot that could not be set up has none
		s.file.Close()
	}
	return s.sandbox.Close()
}

// awaitRoom waits until the pool is not full, and takes the place of one slot. It returns
// false if the context ends.
func (p *pool) awaitRoom(ctx context.Context) bool {
	for ctx.Err() == nil {
		p.mu.Lock()
		room := len(p.slots)+p.making+p.out+len(p.failed) < p.Size
		pause := p.pause(time.Now())
		if room && pause <= 0 {
			p.making++
			p.mu.Unlock()
			return true
		}
		p.mu.Unlock()
		// In a pause, the Setups do not wake this goroutine.
		var over <-chan time.Time
		wake := p.wake
		if room {
			over, wake = time.After(pause), nil
		}
		select {
		case <-over:
		case <-wake:
		case <-ctx.Done():
		}
	}
	return false
}

// pause returns how long not to prepare a slot: within a burst, Setups go first, as long as
// there are slots for them. The caller holds p.mu.
func (p *pool) pause(now time.Time) time.Duration {
	if left := p.paused.Sub(now); left > 0 {
		return left
	}
	if len(p.slots) <= p.Size/4 {
		return 0
	}
	return takeQuietTime - now.Sub(p.newest)
}

// yield is takeIf that also keeps the pool from preparing slots for fillRetry.
func (p *pool) yield(unwanted func(*slot) bool) []*slot {
	p.mu.Lock()
	p.paused = time.Now().Add(fillRetry)
	p.mu.Unlock()
	return p.takeIf(unwanted)
}

// giveUp frees the place of a slot that could not be made.
func (p *pool) giveUp(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making--
	p.status.Err = err
}

// put adds a new slot.
func (p *pool) put(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making--
	p.status.Err = nil
	p.slots = append(p.slots, s)
}

// take removes the oldest slot from the pool; nil if there is none. The caller calls putBack
// or release afterwards.
func (p *pool) take() *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if len(p.slots) == 0 {
		p.status.Dry++
		return nil
	}
	s := p.slots[0]
	p.slots = slices.Delete(p.slots, 0, 1)
	p.status.Taken++
	p.out++
	return s
}

// putBack adds a slot that was not used after all. It reports false if the pool was closed
// meanwhile: then the caller discards the slot and calls release.
func (p *pool) putBack(s *slot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Taken--
	if p.closed {
		return false
	}
	p.out--
	p.slots = append(p.slots, s)
	return true
}

// close keeps Setups from taking slots, unless the pool was closed before. The caller calls
// release when it has discarded the slots.
func (p *pool) close() (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.closed = true
	p.out++
	return true
}

// release frees the place of a slot that was bound to an allocation, or discarded. The last
// call after close unlocks the pool: until then, other processes leave its slots alone.
func (p *pool) release() {
	p.mu.Lock()
	p.out--
	p.newest = time.Now()
	last := p.closed && p.out == 0
	p.mu.Unlock()
	p.awake()
	if last {
		p.unlock()
	}
}

// discardAll has all slots discarded in the background: what is wrong with one that was taken is
// usually wrong with all.
func (p *pool) discardAll() {
	p.mu.Lock()
	p.pending, p.slots = append(p.pending, p.slots...), nil // at once, for ClosePools
	p.mu.Unlock()
	p.awake()
	notify(p.tend)
}

// takePending returns the slots that are to be discarded.
func (p *pool) takePending() (slots []*slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	slots, p.pending = p.pending, nil
	return slots
}

// addFailed adds slots that could not be removed. After close, only their descriptors are closed: their
// records are those of a dead pool, which Recover removes.
func (p *pool) addFailed(slots []*slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.failed = append(p.failed, slots...)
		return
	}
	for _, s := range slots {
		_ = s.close() // nothing can be done about a descriptor
	}
}

// failedSlots returns the slots that could not be removed. They keep their places in the pool until discard
// has removed them.
func (p *pool) failedSlots() []*slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.failed)
}

// dropFailed removes slots from those that could not be removed, and lets the pool prepare others.
func (p *pool) dropFailed(removed func(*slot) bool) {
	p.mu.Lock()
	p.failed = slices.DeleteFunc(p.failed, removed)
	p.mu.Unlock()
	notify(p.wake)
}

// toCheck returns the slots that are to be checked.
func (p *pool) toCheck() []*slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.recheck {
		return nil
	}
	p.recheck = false
	return slices.Clone(p.slots)
}

// borrow takes a slot out of the pool while it is checked, unless it is no longer there.
func (p *pool) borrow(s *slot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.slots, s)
	if i < 0 {
		return false
	}
	p.slots = slices.Delete(p.slots, i, i+1)
	p.out++
	return true
}

// giveBack ends the check of a slot. A damaged one does not come back.
func (p *pool) giveBack(s *slot, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out--
	if errors.Is(err, ErrUnhealthy) {
		p.awake()
	} else {
		p.slots = append(p.slots, s)
	}
}

func (p *pool) takeAll() []*slot { return p.takeIf(func(*slot) bool { return true }) }

// takeIf removes the slots for which unwanted returns true.
func (p *pool) takeIf(unwanted func(*slot) bool) []*slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	var taken []*slot
	p.slots = slices.DeleteFunc(p.slots, func(s *slot) bool {
		if unwanted(s) {
			taken = append(taken, s)
			return true
		}
		return false
	})
	if len(taken) > 0 {
		p.awake()
	}
	return taken
}

func (p *pool) awake() { notify(p.wake) }

// notify puts a value into a channel unless it has one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
