package heal

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/redact"
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
