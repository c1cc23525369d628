package heal

import (
	"errors"
	"maps"
	"time"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/record"
)

// damage is what is known of an unhealthy allocation.
type damage struct {
	found  string // what CHECK has found
	failed bool   // a failed repair was logged
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
