package configurator

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/exhausted"
	"github.com/allocnet/allocnet/internal/redact"
)

// roomPause is how long the pools prepare nothing after they have given something back.
const roomPause = time.Minute

// namespacePause is the time in which the kernel destroys network namespaces, after their last descriptors were
// closed.
const namespacePause = 100 * time.Millisecond

// room counts how often the pools have given slots back because the process or the host was exhausted.
type room struct {
	mu    sync.Mutex
	times uint64
	pause time.Duration // roomPause, or that of a test
}

// moment returns the value for giveRoom.
func (r *room) moment() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.times
}

// repeatable are the operations that complete what an attempt that failed has left.
var repeatable = []string{"setup", "teardown"}

// yielding returns an operation before which the pools give way: when it fails because descriptors, memory or network
// namespaces are exhausted, they give some back. Repeatable operations are repeated as long as that is possible.
func (c *Configurator) yielding(name string, do func(context.Context) error) func(context.Context) error {
	if len(c.pools) == 0 {
		return do
	}
	return func(ctx context.Context) error {
		for {
			since := c.room.moment()
			err := do(ctx)
			if !c.giveRoom(ctx, since, err) || !slices.Contains(repeatable, name) {
				return err
			}
		}
	}
}

// giveRoom gives slots of all pools back if something has failed with an error because the process or the host was
// exhausted, unless that has been done since a moment. It reports whether another attempt makes sense.
func (c *Configurator) giveRoom(ctx context.Context, since uint64, cause error) bool {
	if !c.mayGiveRoom(cause) {
		return false
	}
	given := c.shed(since, cause)
	if given && lacksNamespaces(cause) {
		_ = c.sleep(ctx, namespacePause)
	}
	return given && ctx.Err() == nil
}

// mayGiveRoom reports whether something has failed because of what the slots of pools hold. To try it again later makes no
// sense before they have given it back.
func (c *Configurator) mayGiveRoom(cause error) bool {
	return len(c.pools) > 0 && (exhausted.Is(cause) || lacksNamespaces(cause))
}

// shed reports whether slots were given back, by this call or by another one since a moment.
func (c *Configurator) shed(since uint64, cause error) bool {
	c.room.mu.Lock()
	defer c.room.mu.Unlock()
	if c.room.times != since {
		return true
	}
	count := 0
	for _, p := range c.pools {
		count += p.shed(c.room.pause)
	}
	if count == 0 {
		return false
	}
	c.room.times++
	c.cfg.Logger.Warn("the process or the host is exhausted; giving prepared network namespaces back", "count", count, "error", redact.Text(cause.Error()))
	return true
}

// lacksNamespaces reports whether the kernel has refused to make another network namespace: see unshare(2).
func lacksNamespaces(err error) bool {
	var call *os.SyscallError
	return errors.As(err, &call) && call.Syscall == "unshare" && errors.Is(call, unix.ENOSPC)
}

const (
	// shedShare is the part of its slots that a pool gives back at a time: a quarter.
	shedShare = 4
	// leastShed is the number of slots whose descriptors, two each, suffice for most operations.
	leastShed = 8
)

// shed closes the descriptors of the oldest slots, with which their network namespaces disappear, and prepares no slots
// for a time. watchPool removes the rest of them later, because that needs descriptors. It returns how many there were.
func (p *pool) shed(pause time.Duration) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = time.Now().Add(pause)
	n := min(len(p.slots), max(len(p.slots)/shedShare, leastShed))
	for _, s := range p.slots[:n] {
		s.Sandbox = nil // the path may lead to another one from now on
		_ = s.close()   // nothing can be done about a descriptor
		p.failed = append(p.failed, s)
	}
	p.slots = slices.Delete(p.slots, 0, n)
	return n
}
