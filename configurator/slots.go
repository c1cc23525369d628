package configurator

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
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
	slots   []*slot   // that can be taken
	places  int       // from the beginning of preparations until the slots are bound or removed; see also close
	newest  time.Time // when the last one was bound
	paused  time.Time // prepare no slot before
	closed  bool
	drained bool // after close: ClosePools has all slots that are left
	status  PoolStatus
	wake    chan struct{} // has a value if there may be room for a slot
	pending []*slot       // to be discarded by watchPool
	failed  []*slot       // that could not be removed, or were shed; watchPool removes them
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

// sweepSlotNotes removes the notes about the network namespaces of slots whose records are gone. These
// disappeared with the process of their pool.
func (c *Configurator) sweepSlotNotes(ctx context.Context) error {
	ids, err := c.store.WithSandboxes()
	errs := []error{err}
	for _, id := range ids {
		if strings.HasPrefix(id, slotPrefix) {
			errs = append(errs, about(id, c.sweepSlotNote(ctx, id)))
		}
	}
	return errors.Join(errs...)
}

func (c *Configurator) sweepSlotNote(ctx context.Context, id string) error {
	if _, err := c.store.Get(id); !errors.Is(err, fs.ErrNotExist) {
		return nil // without the lock, which another operation may hold for long
	}
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := c.store.Get(id); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err = c.netns.Destroy(id, func(record.Sandbox) bool { return false }) // forgets those that are gone
	return err
}

// close closes the descriptors of a slot. It may be called again.
func (s *slot) close() error {
	if s.file != nil { // a slot that could not be set up has none
		s.file.Close()
	}
	return s.sandbox.Close()
}

// awaitRoom waits until the pool is not full, and takes the place of one slot. The caller calls put
// or giveUp afterwards. awaitRoom returns false if the context ends.
func (p *pool) awaitRoom(ctx context.Context) bool {
	for ctx.Err() == nil {
		p.mu.Lock()
		room := p.places < p.Size
		pause := p.pause(time.Now())
		if room && pause <= 0 {
			p.places++
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

// giveUp ends the preparation of a slot that failed. left is the slot if something of it may be left,
// otherwise nil.
func (p *pool) giveUp(left *slot, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Err = err
	if left == nil {
		p.free()
	} else {
		p.keep(left)
	}
}

// put adds a new slot.
func (p *pool) put(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Err = nil
	p.slots = append(p.slots, s)
}

// take removes the oldest slot from the pool; nil if there is none. The caller calls putBack
// or bound afterwards, or discards the slot.
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
	return s
}

// putBack adds a slot that was not used after all. It reports false if the pool was closed
// meanwhile: then the caller discards the slot.
func (p *pool) putBack(s *slot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Taken--
	if p.closed {
		return false
	}
	p.slots = append(p.slots, s)
	return true
}

// close keeps Setups from taking slots, unless the pool was closed before. It takes a place, which the caller
// frees with unlockClosed when it has discarded the slots.
func (p *pool) close() (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.closed = true
	p.places++
	return true
}

// unlockClosed unlocks the closed pool, or leaves that to the Setups that still have slots.
func (p *pool) unlockClosed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free()
}

// free frees a place. The last call after close unlocks the pool: until then, other processes leave its
// slots alone. The caller holds p.mu.
func (p *pool) free() {
	p.places--
	notify(p.wake)
	if p.closed && p.places == 0 {
		p.unlock()
	}
}

// bound frees the place of a slot that was bound to an allocation.
func (p *pool) bound() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest = time.Now()
	p.free()
}

// removed frees the place of a slot that was removed.
func (p *pool) removed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Discarded++
	p.free()
}

// notRemoved keeps slots that could not be removed.
func (p *pool) notRemoved(slots []*slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range slots {
		p.keep(s)
	}
}

// keep keeps a slot, with its place, until watchPool or ClosePools has removed it. After drain, only its
// descriptors are closed: its record is that of a dead pool, which Recover removes. The caller holds p.mu.
func (p *pool) keep(s *slot) {
	if !p.drained {
		p.failed = append(p.failed, s)
		return
	}
	_ = s.close() // nothing can be done about a descriptor
	p.free()
}

// discardAll has all slots discarded in the background: what is wrong with one that was taken is
// usually wrong with all.
func (p *pool) discardAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending, p.slots = append(p.pending, p.slots...), nil // at once, for ClosePools
	notify(p.tend)
}

// drain empties all lists of slots of a closed pool. The caller discards the slots, for the last time.
func (p *pool) drain() []*slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Concat(p.slots, p.pending, p.failed)
	p.slots, p.pending, p.failed, p.drained = nil, nil, nil, true
	return all
}

// takeAll empties one of the lists of slots, which the caller discards.
func (p *pool) takeAll(list *[]*slot) []*slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := *list
	*list = nil
	return all
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
	return true
}

// giveBack adds a borrowed slot that is not damaged.
func (p *pool) giveBack(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots = append(p.slots, s)
}

// takeIf takes the slots for which unwanted returns true out of the pool. The caller discards them.
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
	return taken
}

// notify puts a value into a channel unless it has one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
