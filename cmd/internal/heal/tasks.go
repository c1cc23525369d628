package heal

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/state/journal"
)

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
