package heal

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/journal"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Checker runs CHECK of allocations, and repairs them: of those that may be damaged as
// soon as possible, and of all in the background. It runs one CHECK at a time. Its
// methods are safe for concurrent use.
type Checker struct {
	CheckerOptions

	mu        sync.Mutex
	queue     []string // to be checked next
	queued    map[string]bool
	waiting   map[task]waiting
	wake      chan struct{}
	working   chan struct{} // has a value while a CHECK or a Restore runs
	listing   time.Time     // not before, the records are listed for tasks of kind container
	unhealthy map[string]damage
	unchecked map[string]bool          // those whose last CHECK could not be completed
	reported  int                      // number of those
	waits     map[string]time.Duration // before the next CHECK of what the last one has not found healthy
}

// CheckerOptions are the options of NewChecker.
type CheckerOptions struct {
	Service func() Service // the active one
	// Interval is the time in which every allocation is checked once in the
	// background; 0 for never.
	Interval time.Duration
	Report   Report
	Logger   hclog.Logger
}

// damage is what is known of an unhealthy allocation.
type damage struct {
	found  string // what CHECK has found
	failed bool   // a failed repair was logged
}

// task is what is to be done later with an allocation. Each task waits once.
type task struct {
	id   string
	kind kind
}

// kind is the kind of a task.
type kind int

const (
	recheck   kind = iota // check the allocation
	retry                 // restore it again, because another operation was working on it
	container             // check the allocations whose container has the ID
)

// waiting is when a task is due.
type waiting struct {
	at    time.Time
	after time.Duration // the wait before the next try, if the allocation is still busy
	cause cause         // of a retry
}

// cause is what a repair is published with.
type cause struct{ kind, change string }

const (
	// laterTime is the time in which a Teardown ends.
	laterTime = time.Second
	// firstUnhealthy is the time until the next CHECK of an allocation that became
	// unhealthy, because its user may set it up again or tear it down, or that could not be
	// checked. It doubles with every CHECK, up to lastUnhealthy.
	firstUnhealthy = 5 * time.Second
	lastUnhealthy  = 10 * time.Minute
	// share is the part of the time that CHECKs in the background may take, as a
	// divisor: those of plugin binaries take long.
	share     = 20
	firstBusy = 100 * time.Millisecond
	lastBusy  = time.Second // of a client that checks it again and again, an allocation is rarely free
	maxQueue  = 100_000
)

// NewChecker returns a Checker, which does nothing until Run is called.
func NewChecker(o CheckerOptions) *Checker {
	return &Checker{CheckerOptions: o, queued: map[string]bool{}, waiting: map[task]waiting{}, unhealthy: map[string]damage{}, unchecked: map[string]bool{}, waits: map[string]time.Duration{}, wake: make(chan struct{}, 1), working: make(chan struct{}, 1)}
}

// Soon has allocations checked. Those without a record are ignored.
func (c *Checker) Soon(ids ...string) {
	c.change(func() {
		for _, id := range ids {
			if !c.queued[id] && len(c.queue) < maxQueue {
				c.queued[id] = true
				c.queue = append(c.queue, id)
			}
		}
	})
}

func (c *Checker) after(wait time.Duration, id string) {
	c.change(func() { c.wait(task{id: id}, waiting{at: time.Now().Add(wait)}) })
}

// LaterContainer has the allocations with a container ID checked after a second: the owner of a
// link has that ID, which is the one of the allocation unless this was taken from a pool or chose
// another one.
func (c *Checker) LaterContainer(id string) {
	c.change(func() { c.wait(task{id, container}, waiting{at: time.Now().Add(laterTime)}) })
}

// Retry continues a repair: it restores the allocations on which another operation was working, when
// that has ended.
func (c *Checker) Retry(of *client.Heal, ids ...string) {
	for _, id := range ids {
		c.retryAfter(id, firstBusy, cause{of.Cause, of.Change})
	}
}

func (c *Checker) retryAfter(id string, after time.Duration, why cause) {
	c.change(func() {
		c.wait(task{id, retry}, waiting{at: time.Now().Add(after), after: min(2*after, lastBusy), cause: why})
	})
}

// wait adds a task, unless it is due earlier already. The number of tasks is bounded: the CHECK of
// all allocations at an interval, if there is one, finds the others. c.mu is locked.
func (c *Checker) wait(t task, w waiting) {
	known, ok := c.waiting[t]
	if ok && known.at.Before(w.at) || !ok && len(c.waiting) >= maxQueue {
		return
	}
	c.waiting[t] = w
}

func (c *Checker) change(do func()) {
	c.mu.Lock()
	do()
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// pauseTime is the longest that a Healer waits for the CHECK of one allocation.
const pauseTime = 500 * time.Millisecond

// pause waits until no CHECK runs, and prevents one until release is called. Otherwise a Healer
// would find the allocation busy each time, if it is damaged again and again. A CHECK that takes
// long, as of a plugin binary, is not waited for.
func (c *Checker) pause() (release func()) {
	select {
	case c.working <- struct{}{}:
		return func() { <-c.working }
	case <-time.After(pauseTime):
		return func() {}
	}
}

// Run checks until the context ends.
func (c *Checker) Run(ctx context.Context) error {
	round := &round{checker: c, next: time.Now().Add(c.Interval)}
	for ctx.Err() == nil {
		if due := c.takeWaiting(time.Now()); len(due) > 0 {
			c.alone(func() { c.resume(ctx, due) })
		} else if id, ok := c.takeQueued(); ok {
			c.alone(func() { c.check(ctx, id) })
		} else {
			c.sleep(ctx, round)
		}
	}
	return ctx.Err()
}

// alone calls a function while no Healer restores.
func (c *Checker) alone(do func()) {
	c.working <- struct{}{}
	defer func() { <-c.working }()
	do()
}

// sleep waits for something to do, or makes the next step of the round.
func (c *Checker) sleep(ctx context.Context, r *round) {
	now := time.Now()
	next := now.Add(time.Hour)
	if c.Interval > 0 {
		if !r.next.After(now) {
			c.alone(func() { r.step(ctx) })
			return
		}
		next = r.next
	}
	c.mu.Lock()
	for t, w := range c.waiting {
		if at := c.dueAt(t, w); at.Before(next) {
			next = at
		}
	}
	c.mu.Unlock()
	timer := time.NewTimer(next.Sub(now))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-c.wake:
	case <-timer.C:
	}
}

func (c *Checker) takeQueued() (id string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return "", false
	}
	id, c.queue = c.queue[0], c.queue[1:]
	delete(c.queued, id)
	return id, true
}

// dueAt returns when a task is due. c.mu is locked.
func (c *Checker) dueAt(t task, w waiting) time.Time {
	if t.kind == container && w.at.Before(c.listing) {
		return c.listing
	}
	return w.at
}

// takeWaiting takes the tasks that are due.
func (c *Checker) takeWaiting(now time.Time) map[task]waiting {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := map[task]waiting{}
	for t, w := range c.waiting {
		if !c.dueAt(t, w).After(now) {
			due[t] = w
			delete(c.waiting, t)
		}
	}
	return due
}

// resume restores allocations that were busy, and has the affected ones checked.
func (c *Checker) resume(ctx context.Context, due map[task]waiting) {
	var busy []string
	containers := map[string]bool{}
	for t := range due {
		switch t.kind {
		case recheck:
			c.Soon(t.id)
		case retry:
			busy = append(busy, t.id)
		case container:
			c.Soon(t.id) // also the slot of a pool, which is not listed
			containers[t.id] = true
		}
	}
	if len(containers) > 0 {
		c.soonOf(ctx, containers)
	}
	if len(busy) == 0 {
		return
	}
	began := time.Now()
	var changes []string
	for _, id := range busy {
		if change := due[task{id, retry}].cause.change; !slices.Contains(changes, change) {
			changes = append(changes, change)
		}
	}
	report, err := c.Service().Restore(journal.WithCause(ctx, strings.Join(changes, "; ")), busy...)
	if err != nil {
		c.Soon(busy...)
		return
	}
	restored := map[cause][]string{}
	for _, id := range report.Restored {
		why := due[task{id, retry}].cause
		restored[why] = append(restored[why], id)
	}
	for why, ids := range restored {
		heal := &client.Heal{Cause: why.kind, Change: why.change, Restored: len(ids), Allocs: ids[:min(len(ids), maxNamed)], Seconds: time.Since(began).Seconds()}
		c.Report.Healed(*heal)
		log(c.Logger, heal)
	}
	c.Soon(report.Restored...)
	c.Soon(report.Failed...)
	for _, id := range report.Busy {
		w := due[task{id, retry}]
		c.retryAfter(id, w.after, w.cause)
	}
}

// soonOf has the allocations of containers with other IDs checked. A Teardown deletes a veth, too,
// so the listings of the records use only a share of the time.
func (c *Checker) soonOf(ctx context.Context, containers map[string]bool) {
	began := time.Now()
	records, err := c.Service().List(ctx)
	if err != nil {
		c.Logger.Debug("deleted links: not all records could be read", "error", err)
	}
	for i := range records {
		if containers[records[i].ContainerID] {
			c.Soon(records[i].ID)
		}
	}
	c.mu.Lock()
	c.listing = began.Add(share * time.Since(began))
	c.mu.Unlock()
}

// check runs CHECK of an allocation and repairs what it can.
func (c *Checker) check(ctx context.Context, id string) {
	began := time.Now()
	repaired, err := c.Service().CheckAndRepair(ctx, id)
	heal := client.Heal{Cause: "drift", Seconds: time.Since(began).Seconds()}
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, configurator.ErrNotChecked):
		c.setUnchecked(id)
		c.checkAgain(id)
	case err == nil || errors.Is(err, configurator.ErrNotFound):
		c.setHealthy(id)
		if repaired {
			heal.Change, heal.Restored, heal.Allocs = "found by CHECK", 1, []string{id}
			c.Report.Healed(heal)
		}
	default:
		heal.Unhealthy, heal.Error = id, redact.Text(err.Error())
		became, first := c.setUnhealthy(id, heal.Error, true)
		if became {
			c.Report.Healed(heal)
		}
		if !first {
			return
		}
		c.Logger.Error("the network of an allocation is damaged, and the repair failed: it is tried again later; if the error stays, tear the allocation down, or set it up again", "alloc", id, "error", heal.Error)
	}
}

// checkAgain has an allocation checked again later, which was not found healthy.
func (c *Checker) checkAgain(id string) {
	c.mu.Lock()
	wait := min(max(2*c.waits[id], firstUnhealthy), lastUnhealthy)
	c.waits[id] = wait
	c.mu.Unlock()
	c.after(wait, id)
}

// setUnhealthy records that an allocation is unhealthy, or also that its repair failed, and has it
// checked again later. It reports whether the allocation was healthy before, and whether its repair
// has not failed before.
func (c *Checker) setUnhealthy(id, found string, failed bool) (became, first bool) {
	c.mu.Lock()
	before, known := c.unhealthy[id]
	if !known {
		delete(c.waits, id)
	}
	c.unhealthy[id] = damage{found, failed || before.failed}
	delete(c.unchecked, id)
	c.report()
	c.mu.Unlock()
	c.checkAgain(id)
	return !known, !before.failed
}

// setUnchecked records that the last CHECK of an allocation could not be completed. An unhealthy one stays so.
func (c *Checker) setUnchecked(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.unhealthy[id]; !known {
		c.unchecked[id] = true
		c.report()
	}
}

func (c *Checker) setHealthy(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unhealthy, id)
	delete(c.unchecked, id)
	delete(c.waits, id)
	c.report()
}

// report reports the numbers of allocations. c.mu is locked.
func (c *Checker) report() {
	c.Report.Unhealthy(len(c.unhealthy))
	if n := len(c.unchecked); n != c.reported {
		c.reported = n
		c.Report.Unchecked(n)
	}
}

// Damage returns what is known of an allocation, if it is unhealthy.
func (c *Checker) Damage(id string) (found string, unhealthy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, unhealthy := c.unhealthy[id]
	return d.found, unhealthy
}

// Found notes what a request has found of an allocation: that it is healthy, or gone, if err is
// nil. An unhealthy one counts from then on, and is checked and repaired later, so that its user can
// do that first. A change of an allocation that could not be finished is finished later. Found
// ignores other errors, and an allocation whose network namespace is gone.
func (c *Checker) Found(id string, err error) {
	known, unchecked := c.state(id)
	switch {
	case errors.Is(err, record.ErrUnfinished):
		c.after(firstUnhealthy, id)
	case err == nil && (known || unchecked):
		c.setHealthy(id)
	case err == nil, known, !errors.Is(err, configurator.ErrUnhealthy), errors.Is(err, configurator.ErrInvalidAllocation):
	default:
		found := redact.Text(err.Error())
		if became, _ := c.setUnhealthy(id, found, false); became {
			c.Report.Healed(client.Heal{Cause: "drift", Unhealthy: id, Error: found})
		}
	}
}

// NotChecked notes that a CHECK of an allocation could not be completed, and has it checked again later.
func (c *Checker) NotChecked(id string) {
	if unhealthy, unchecked := c.state(id); !unhealthy && !unchecked {
		c.setUnchecked(id)
		c.checkAgain(id)
	}
}

// HasUnhealthy reports whether an allocation is unhealthy.
func (c *Checker) HasUnhealthy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.unhealthy) > 0
}

// state returns what is known of an allocation.
func (c *Checker) state(id string) (unhealthy, unchecked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, unhealthy = c.unhealthy[id]
	return unhealthy, c.unchecked[id]
}

// forget removes allocations without a record from the unhealthy ones.
func (c *Checker) forget(exists map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := func(id string) bool { return !exists[id] }
	maps.DeleteFunc(c.unhealthy, func(id string, _ damage) bool { return gone(id) })
	maps.DeleteFunc(c.unchecked, func(id string, _ bool) bool { return gone(id) })
	maps.DeleteFunc(c.waits, func(id string, _ time.Duration) bool { return gone(id) })
	c.report()
}

// round goes through all allocations, one after the other, spread over the interval.
type round struct {
	checker *Checker
	ids     []string
	next    time.Time // of the next step
	pause   time.Duration
}

// step checks the next allocation, or begins the next round.
func (r *round) step(ctx context.Context) {
	if len(r.ids) == 0 {
		r.begin(ctx)
		return
	}
	id, began := r.ids[0], time.Now()
	r.ids = r.ids[1:]
	r.checker.check(ctx, id)
	r.next = began.Add(max(r.pause, share*time.Since(began)))
}

// begin begins a round with a comparison of everything that Restore compares.
func (r *round) begin(ctx context.Context) {
	c, began := r.checker, time.Now()
	records, err := c.Service().List(ctx)
	if err != nil {
		c.Logger.Debug("comparison in the background: not all records could be read", "error", err)
	}
	exists := map[string]bool{}
	for i := range records {
		r.ids = append(r.ids, records[i].ID)
		exists[records[i].ID] = true
	}
	c.forget(exists)
	r.pause = c.Interval / time.Duration(len(r.ids)+1)
	r.next = began.Add(r.pause)
	if len(r.ids) == 0 {
		return
	}
	const change = "found by the comparison in the background"
	report, err := c.Service().Restore(journal.WithCause(ctx, change))
	if err != nil || ctx.Err() != nil {
		return // the CHECKs find what is missing
	}
	if n := len(report.Restored); n > 0 {
		c.Report.Healed(client.Heal{
			Cause: "drift", Change: change, Restored: n, Allocs: report.Restored[:min(n, maxNamed)], Seconds: time.Since(began).Seconds(),
		})
		c.Logger.Warn("restored what was missing", "change", change, "restored", n)
	}
	c.Soon(report.Restored...)
	c.Soon(report.Failed...)
}
