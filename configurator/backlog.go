package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/record"
)

// DefaultBacklog is the default of Config.Backlog.
const DefaultBacklog = 4096

// backlog has the allocations that are disconnected and not yet deleted. One goroutine, which
// runs while there are any, deletes them in batches, because the kernel waits once per
// batch. It is safe for concurrent use.
type backlog struct {
	limit int // maximum number of removals, including those that are being acknowledged

	mu       sync.Mutex
	taken    int
	ended    uint64              // how many removals there were
	removals map[string]*removal // by ID
	queue    []*removal          // not yet begun, oldest first
	newest   time.Time           // when the last one was added
	hurry    bool                // a caller waits
	wake     chan struct{}       // ends a pause of the goroutine
	idle     chan struct{}       // closed when the goroutine ends; nil while none runs
	cancel   context.CancelFunc  // of the removals that run

	// Tests replace these.
	quietTime, longestPause, drainTime, settleTime time.Duration
}

// removal is the second part of one Teardown.
type removal struct {
	plan  *plan.Plan
	added time.Time
	done  chan struct{} // closed when the backlog no longer has it
	fails int
	again time.Time // when to try again after a failure
}

const (
	// quietTime is how long no removal must be added before a batch begins: within a
	// burst, teardowns go first.
	quietTime = 2 * time.Millisecond
	// longestPause bounds the time between the end of a Teardown and the batch that
	// deletes its links.
	longestPause = time.Second
	// drainTime bounds Close.
	drainTime = 10 * time.Second
	// settleTime bounds how long a failed ADD waits for removals that may hold what it
	// needs.
	settleTime = 5 * time.Second
	// firstRetry and lastRetry are the pauses after a batch in which a removal failed.
	firstRetry, lastRetry = time.Second, time.Minute
)

func newBacklog(limit int) *backlog {
	return &backlog{limit: limit, removals: map[string]*removal{}, wake: make(chan struct{}, 1),
		quietTime: quietTime, longestPause: longestPause, drainTime: drainTime, settleTime: settleTime}
}

// take takes a place. The caller calls add or giveUp afterwards.
func (b *backlog) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken >= b.limit {
		return false
	}
	b.taken++
	return true
}

// giveUp returns the place of an allocation that could not be disconnected.
func (b *backlog) giveUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken--
}

// add adds an allocation whose place the caller has taken, and starts the goroutine if it is
// not running.
func (b *backlog) add(p *plan.Plan, now time.Time, run func(context.Context)) {
	one := &removal{plan: p, added: now, done: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if earlier := b.removals[p.ID]; earlier != nil { // another process has finished it
		b.forget(earlier)
	}
	b.removals[p.ID], b.queue, b.newest = one, append(b.queue, one), now
	if b.idle == nil {
		var ctx context.Context
		ctx, b.cancel = context.WithCancel(context.Background())
		b.idle = make(chan struct{})
		go run(ctx)
	}
}

// forget removes a removal, unless it was removed before. The caller holds b.mu.
func (b *backlog) forget(one *removal) {
	if b.removals[one.plan.ID] == one {
		delete(b.removals, one.plan.ID)
		b.taken--
		b.ended++
		close(one.done)
	}
}

// removed ends the removal of an allocation that a Setup has found to be removed, or has removed.
// Others that wait for it go on, while the Setup holds the lock of the allocation: it may wait for
// another removal itself.
func (b *backlog) removed(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if one := b.removals[id]; one != nil {
		b.forget(one)
	}
}

// next returns the next batch, after a pause. It returns nil, and marks the goroutine as
// ended, if there is nothing left.
func (b *backlog) next(now func() time.Time) []*removal {
	for {
		b.mu.Lock()
		if len(b.queue) == 0 {
			b.cancel()
			close(b.idle)
			b.idle, b.hurry = nil, false
			b.mu.Unlock()
			return nil
		}
		at := now()
		pause := b.pause(at)
		if pause <= 0 {
			batch := b.due(at)
			b.mu.Unlock()
			return batch
		}
		b.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-b.wake:
		}
	}
}

// pause returns how long to wait before the next batch. The caller holds b.mu.
func (b *backlog) pause(now time.Time) time.Duration {
	pause := max(lastRetry, b.longestPause)
	for _, one := range b.queue {
		switch {
		case b.hurry:
			return 0
		case one.fails > 0:
			pause = min(pause, one.again.Sub(now))
		case b.taken > b.limit/2:
			return 0
		default:
			pause = min(pause, b.quietTime-now.Sub(b.newest), b.longestPause-now.Sub(one.added))
		}
	}
	return pause
}

// due takes the removals out of the queue, except those that failed and are not to be
// tried again yet. The caller holds b.mu.
func (b *backlog) due(now time.Time) []*removal {
	var due, later []*removal
	for _, one := range b.queue {
		if b.hurry || !one.again.After(now) {
			due = append(due, one)
		} else {
			later = append(later, one)
		}
	}
	b.queue, b.hurry = later, false
	return due
}

// end removes a removal after its batch, or queues it again if it failed.
func (b *backlog) end(one *removal, err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.forget(one)
	}
	if b.removals[one.plan.ID] != one {
		return
	}
	one.fails++
	one.again = now.Add(min(firstRetry<<min(one.fails-1, 10), lastRetry))
	b.queue = append(b.queue, one)
}

// of returns the removal of a record, or nil.
func (b *backlog) of(r *record.Record) *removal {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.removals[r.ID]
	if one == nil || !r.Acknowledged || !one.plan.Updated.Equal(r.Updated) {
		return nil
	}
	return one
}

// inNetns returns a removal in the network namespace of a record, or nil.
func (b *backlog) inNetns(r *record.Record) *removal {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range b.removals {
		if one.plan.ID != r.ID && one.plan.SameNetns(r) {
			return one
		}
	}
	return nil
}

// wait waits until a removal has ended or the context ends.
func (b *backlog) wait(ctx context.Context, one *removal) error {
	b.rush()
	select {
	case <-one.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the removal of allocation %q: %w", one.plan.ID, ctx.Err())
	}
}

// rush makes the goroutine begin the next batch at once.
func (b *backlog) rush() {
	b.mu.Lock()
	b.hurry = b.idle != nil
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// moment returns the moment for settle.
func (b *backlog) moment() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// settle waits for the removals that exist now, at most settleTime. It reports whether there
// were any since a moment.
func (b *backlog) settle(ctx context.Context, since uint64) (any bool) {
	b.mu.Lock()
	now := slices.Collect(maps.Values(b.removals))
	any = len(now) > 0 || b.ended != since
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, b.settleTime)
	defer cancel()
	for _, one := range now {
		if b.wait(ctx, one) != nil {
			break
		}
	}
	return any
}

// close waits at most drainTime for the removals, and stops those that are left then. Their
// records remain.
func (b *backlog) close() error {
	b.mu.Lock()
	idle, cancel := b.idle, b.cancel
	b.mu.Unlock()
	if idle == nil {
		return nil
	}
	b.rush()
	select {
	case <-idle:
		return nil
	case <-time.After(b.drainTime):
	}
	b.mu.Lock()
	left := len(b.removals)
	b.mu.Unlock()
	cancel()
	b.rush()
	<-idle
	return fmt.Errorf("removals of %d allocations did not end within %s; Recover finishes them", left, b.drainTime)
}

// Pending returns the number of allocations whose Teardown in this Configurator has returned,
// and that are not yet deleted.
func (c *Configurator) Pending() int {
	c.backlog.mu.Lock()
	defer c.backlog.mu.Unlock()
	return len(c.backlog.removals)
}

// runBacklog deletes what the allocations of the backlog have left, until none is left.
func (c *Configurator) runBacklog(ctx context.Context) {
	for batch := c.backlog.next(c.now); batch != nil; batch = c.backlog.next(c.now) {
		byID := make(map[string]*removal, len(batch))
		ids := make([]string, len(batch))
		for i, one := range batch {
			ids[i], byID[one.plan.ID] = one.plan.ID, one
		}
		each(context.WithoutCancel(ctx), c.concurrency, ids, func(id string) (bool, error) {
			one := byID[id]
			err := c.finishRemoval(ctx, one)
			if err != nil && ctx.Err() == nil {
				c.cfg.Logger.Warn("removal failed; trying again", "alloc", id, "error", redact.Text(err.Error()))
			} else if ctx.Err() != nil {
				err = nil // Close does not wait any longer
			}
			c.backlog.end(one, err, c.now())
			return err == nil, err
		})
	}
}

// finishRemoval deletes what a disconnected allocation has left, unless another operation
// has done so.
func (c *Configurator) finishRemoval(ctx context.Context, one *removal) error {
	return c.operation(ctx, "remove", one.plan.ID, func(ctx context.Context) error {
		unlock, err := c.lockUnlessDone(ctx, one)
		if err != nil || unlock == nil {
			return err
		}
		defer unlock()
		r, err := c.store.Get(one.plan.ID)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case c.backlog.of(r) != one:
			return nil
		}
		return c.remove(ctx, one.plan)
	})
}

// lockUnlessDone locks the allocation of a removal. It returns nil if another operation ends the
// removal meanwhile.
func (c *Configurator) lockUnlessDone(ctx context.Context, one *removal) (unlock func(), err error) {
	locking, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-one.done:
			cancel()
		case <-locking.Done():
		}
	}()
	unlock, err = c.lock(locking, one.plan.ID)
	if err == nil {
		return unlock, nil
	}
	select {
	case <-one.done:
		return nil, nil
	default:
		return nil, err
	}
}

// finishAcknowledged deletes what an allocation has left that another process has
// disconnected. It reports whether nothing is left.
func (c *Configurator) finishAcknowledged(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, c.backlog.settleTime)
	defer cancel()
	if r, err := c.store.Get(id); err == nil && !r.Acknowledged {
		return false
	}
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return false
	}
	defer unlock()
	r, err := c.store.Get(id)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	if !r.Acknowledged {
		return false
	}
	p, _ := c.planOfRemoval(r)
	return c.remove(ctx, p) == nil
}

// planOfRemoval returns the plan with which an unfinished record is removed: that of the
// backlog if this process has disconnected the allocation.
func (c *Configurator) planOfRemoval(r *record.Record) (p *plan.Plan, interrupted bool) {
	if one := c.backlog.of(r); one != nil {
		return one.plan, false
	}
	return c.planToRemove(r), true
}

// acknowledge disconnects an allocation and leaves the rest of its teardown to the backlog.
// It returns false if the caller has to do the whole teardown: if the backlog is full, or if
// the allocation cannot be disconnected without a DEL.
func (c *Configurator) acknowledge(ctx context.Context, p *plan.Plan) bool {
	if p.Phase != record.Ready || p.FormerBoot || p.Unreadable != nil || !c.runsInProcess(p) || !c.backlog.take() {
		return false
	}
	added := false
	defer func() {
		if !added {
			c.backlog.giveUp()
		}
	}()
	unlock, err := c.lockNetworks(ctx, p.Record)
	if err != nil {
		return false
	}
	defer unlock()
	c.recordDeleting(p.Record)
	err = c.step(ctx, StepDisconnect, p.Record, func(ctx context.Context) error { return c.disconnect(ctx, p) })
	if err != nil {
		c.cfg.Logger.Debug("the allocation cannot be disconnected before DEL", "alloc", p.ID, "error", redact.Text(err.Error()))
		return false
	}
	gone := p.Changed(func(r *record.Record) { r.Updated = c.now() })
	if err := c.store.Acknowledge(gone.Record); err != nil {
		c.cfg.Logger.Warn("cannot record that the allocation is disconnected; running DEL now", "alloc", p.ID, "error", err)
		return false
	}
	gone.Phase = record.Ready // for this process: DEL begins with everything that ADD made
	c.backlog.add(gone, c.now(), c.runBacklog)
	added = true
	return true
}

func (c *Configurator) disconnect(ctx context.Context, p *plan.Plan) error {
	req, err := c.request(p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return c.native.Disconnect(ctx, req)
}

// awaitNetns waits for the removal of allocations that this process has disconnected, and
// whose interfaces are still in the network namespace of a record.
func (c *Configurator) awaitNetns(ctx context.Context, r *record.Record) error {
	for one := c.backlog.inNetns(r); one != nil; one = c.backlog.inNetns(r) {
		if err := c.backlog.wait(ctx, one); err != nil {
			return err
		}
	}
	return nil
}
