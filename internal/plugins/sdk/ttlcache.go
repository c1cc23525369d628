package sdk

import (
	"sync"
	"time"
)

// TTLCache remembers for CacheTTL which objects that all allocations share
// were found in place, so that a burst of ADDs checks each of them once. If
// another program removes such an object within that time, the next CHECK
// reports it. A TTLCache is safe for concurrent use; a nil one caches nothing.
type TTLCache struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

// CacheTTL is how long a TTLCache remembers.
const CacheTTL = 20 * time.Millisecond

const maxCached = 256

// Unless calls check, unless a call with the same key succeeded within the TTL.
func (c *TTLCache) Unless(key string, check func() error) error {
	return c.UnlessWithin(CacheTTL, key, check)
}

// UnlessWithin is Unless with another time than the TTL.
func (c *TTLCache) UnlessWithin(ttl time.Duration, key string, check func() error) error {
	if c == nil {
		return check()
	}
	c.mu.Lock()
	recent := time.Since(c.seen[key]) < ttl
	c.mu.Unlock()
	if recent {
		return nil
	}
	err := check()
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.seen == nil || len(c.seen) >= maxCached {
			c.seen = make(map[string]time.Time)
		}
		c.seen[key] = time.Now()
	}
	return err
}

// Clear removes all entries.
func (c *TTLCache) Clear() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.seen)
}
