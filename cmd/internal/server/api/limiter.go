package api

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/allocnet/allocnet/internal/wire"
)

// limiter bounds the number of running and waiting operations. An operation with a key
// first waits for the lock of its key, and only then for a slot. So operations that wait
// for the same allocation take no slots.
type limiter struct {
	limiterOptions
	queue Queue
	slots chan struct{}

	mu     sync.Mutex
	inside int // waiting or running operations
	keys   map[string]*keyLock
}

type limiterOptions struct {
	slots       int           // concurrent operations
	most        int           // operations in all, waiting and running
	perKey      int           // operations with one key, waiting and running; 0 for no limit
	slotTimeout time.Duration // after which an operation releases its slot; 0 for never
}

// keyLock is the lock of one key. It exists while operations hold it or wait for it.
type keyLock struct {
	held  chan struct{}
	users int
}

func newLimiter(o limiterOptions, q Queue) *limiter {
	if q == nil {
		q = noQueue{}
	}
	return &limiter{limiterOptions: o, queue: q, slots: make(chan struct{}, o.slots), keys: map[string]*keyLock{}}
}

// enter waits for the lock of the key and for a slot. The key "" has no lock. The error
// is the context's, or ErrBusy at once if the limiter is full. The caller must call
// leave exactly once.
func (l *limiter) enter(ctx context.Context, key string) (leave func(), err error) {
	k, err := l.join(key)
	if err != nil {
		l.queue.Refused()
		return nil, err
	}
	began := time.Now()
	l.queue.Waiting(1)
	err = l.wait(ctx, k)
	l.queue.Waiting(-1)
	if err != nil {
		l.part(key, k)
		return nil, fmt.Errorf("wait for other operations: %w", err)
	}
	l.queue.Waited(time.Since(began))
	l.queue.Running(1)
	releaseSlot := sync.OnceFunc(func() { <-l.slots })
	stop := func() bool { return true }
	if l.slotTimeout > 0 {
		stop = time.AfterFunc(l.slotTimeout, releaseSlot).Stop
	}
	return func() {
		stop()
		releaseSlot()
		<-k.held
		l.queue.Running(-1)
		l.part(key, k)
	}, nil
}

// wait takes the lock and a slot, or neither.
func (l *limiter) wait(ctx context.Context, k *keyLock) error {
	select {
	case k.held <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		<-k.held
		return ctx.Err()
	}
}

// join counts an operation and returns the lock of its key.
func (l *limiter) join(key string) (*keyLock, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inside >= l.most {
		return nil, fmt.Errorf("%w: %d operations are in progress", wire.ErrBusy, l.inside)
	}
	k := l.keys[key]
	if k == nil {
		k = &keyLock{held: make(chan struct{}, 1)}
	}
	if l.perKey > 0 && k.users >= l.perKey {
		return nil, fmt.Errorf("%w: %d operations on this allocation or sandbox are in progress", wire.ErrBusy, k.users)
	}
	if key != "" {
		l.keys[key] = k
	}
	k.users++
	l.inside++
	return k, nil
}

// part undoes join.
func (l *limiter) part(key string, k *keyLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inside--
	if k.users--; k.users == 0 {
		delete(l.keys, key)
	}
}

// noQueue is a Queue that ignores all calls.
type noQueue struct{}

func (noQueue) Waiting(int)          {}
func (noQueue) Running(int)          {}
func (noQueue) Waited(time.Duration) {}
func (noQueue) Refused()             {}
