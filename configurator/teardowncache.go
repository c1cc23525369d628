package configurator

import (
	"encoding/json"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// teardownCache is a TTL cache of the teardowns that this process has completed without
// leftovers. Runtimes repeat a DEL within moments, and the cache answers the repetition. A
// Setup in this process removes the entry of its allocation. A Setup in another process
// writes a record, and Teardown uses a record before it uses the cache. A key contains the
// identity of the state directory, so a replaced directory invalidates the entries.
type teardownCache struct {
	mu   sync.Mutex
	done map[string]cachedTeardown // by ID
}

// cachedTeardown is the request of a Teardown and the time of its end.
type cachedTeardown struct {
	request string
	at      time.Time
}

const (
	teardownTTL        = time.Minute
	maxCachedTeardowns = 4096
)

// requestOf returns the cache key of a Teardown without a record: the identity of the state
// directory and the fields of the allocation that select networks. It is "" if there is no
// state directory.
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

// has reports whether the same request was completed within teardownTTL.
func (t *teardownCache) has(id, request string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, ok := t.done[id]
	return ok && request != "" && one.request == request && now.Sub(one.at) < teardownTTL
}
