package cniservice

import (
	"context"
	"sync"
)

// locks are those of IDs in this process. The zero value is none.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	free  chan struct{} // holds one value while nobody has the lock
	users int           // that have it or wait
}

// lock waits for the lock of an ID, not longer than for the context.
func (l *locks) lock(ctx context.Context, id string) (unlock func(), err error) {
	mine := l.join(id)
	select {
	case <-mine.free:
		return func() { mine.free <- struct{}{}; l.leave(id) }, nil
	case <-ctx.Done():
		l.leave(id)
		return nil, ctx.Err()
	}
}

func (l *locks) join(id string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine := l.held[id]
	if mine == nil {
		if l.held == nil {
			l.held = map[string]*lock{}
		}
		mine = &lock{free: make(chan struct{}, 1)}
		mine.free <- struct{}{}
		l.held[id] = mine
	}
	mine.users++
	return mine
}

func (l *locks) leave(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[id].users--
	if l.held[id].users == 0 {
		delete(l.held, id)
	}
}
