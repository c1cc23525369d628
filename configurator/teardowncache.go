package configurator

import (
	"encoding/json"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// teardownCache is a TTL cache of the allocations that this process took down, with
// nothing left, by what was asked for. Runtimes repeat a DEL within moments. A Setup
// removes its allocation; another process that sets one up writes a record, by
// which every Teardown goes first. If the directory of the records is lost, so is
// what is known here.
type teardownCache struct {
	mu   sync.Mutex
	done map[string]cachedTeardown // by ID
}

// cachedTeardown is what was asked for, and when it was done.
type cachedTeardown struct {
	request string
	at      time.Time
}

const (
	teardownTTL        = time.Minute
	maxCachedTeardowns = 4096
)

// requestOf is what of an allocation decides where a Teardown without a record looks,
// with the directory that has no record of it; "" where there is none.
func (c *Configurator) requestOf(a *Allocation) string {
	var dir unix.Stat_t
	if err := unix.Stat(c.cfg.StateDir, &dir); err != nil {
		return ""
	}
	text, err := json.Marshal([]any{dir.Dev, dir.Ino, a.ID, a.ContainerID, a.Interface, a.Scope, a.Networks, a.Conflists})
	if err != nil {
		return ""
	}
	return string(text)
}

func (t *teardownCache) note(id, request string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, one := range t.done {
		if len(t.done) < maxCachedTeardowns {
			break
		}
		if now.Sub(one.at) >= teardownTTL || len(t.done) == maxCachedTeardowns {
			delete(t.done, id)
		}
	}
	if t.done == nil {
		t.done = map[string]cachedTeardown{}
	}
	t.done[id] = cachedTeardown{request, now}
}

func (t *teardownCache) forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.done, id)
}

// has reports whether the same was asked for a moment ago.
func (t *teardownCache) has(id, request string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, ok := t.done[id]
	return ok && request != "" && one.request == request && now.Sub(one.at) < teardownTTL
}
