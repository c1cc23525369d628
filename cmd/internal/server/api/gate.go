package api

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/allocnet/allocnet/internal/wire"
)

// gate bounds how much is done at once and how much waits. Who wants to work on
// an allocation waits for his turn there first, and only then for a slot: however
// many wait for one allocation, they take one slot.
type gate struct {
	gateLimits
	queue Queue
	slots chan struct{}

	mu     sync.Mutex
	inside int // waiting or working
	turns  map[string]*turn
}

type gateLimits struct {
	slots    int           // how much is worked on at once
	most     int           // how much there may be in all
	perKey   int           // how much there may be of one key; 0 for any
	patience time.Duration // after which a slot is given back; 0 for never
}

// turn is the queue for one key. It is there while somebody is in it.
type turn struct {
	mine  chan struct{}
	users int
}

func newGate(l gateLimits, q Queue) *gate {
	if q == nil {
		q = untold{}
	}
	return &gate{gateLimits: l, queue: q, slots: make(chan struct{}, l.slots), turns: map[string]*turn{}}
}

// enter waits until there is a slot, and nobody else inside with the same key;
// "" is a key that nobody shares. The error is that of the context, or ErrBusy at
// once. leave must be called, once.
func (g *gate) enter(ctx context.Context, key string) (leave func(), err error) {
	t, err := g.join(key)
	if err != nil {
		g.queue.Refused()
		return nil, err
	}
	began := time.Now()
	g.queue.Waiting(1)
	err = g.wait(ctx, t)
	g.queue.Waiting(-1)
	if err != nil {
		g.part(key, t)
		return nil, fmt.Errorf("wait for other operations: %w", err)
	}
	g.queue.Waited(time.Since(began))
	g.queue.Running(1)
	giveBack := sync.OnceFunc(func() { <-g.slots })
	stop := func() bool { return true }
	if g.patience > 0 {
		stop = time.AfterFunc(g.patience, giveBack).Stop
	}
	return func() {
		stop()
		giveBack()
		<-t.mine
		g.queue.Running(-1)
		g.part(key, t)
	}, nil
}

// wait takes the turn and a slot, or neither.
func (g *gate) wait(ctx context.Context, t *turn) error {
	select {
	case t.mine <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		<-t.mine
		return ctx.Err()
	}
}

// join gets in line for a key.
func (g *gate) join(key string) (*turn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside >= g.most {
		return nil, fmt.Errorf("%w: %d are in progress", wire.ErrBusy, g.inside)
	}
	t := g.turns[key]
	if t == nil {
		t = &turn{mine: make(chan struct{}, 1)}
	}
	if g.perKey > 0 && t.users >= g.perKey {
		return nil, fmt.Errorf("%w: %d on this allocation or sandbox are in progress", wire.ErrBusy, t.users)
	}
	if key != "" {
		g.turns[key] = t
	}
	t.users++
	g.inside++
	return t, nil
}

// part is the end of join.
func (g *gate) part(key string, t *turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if t.users--; t.users == 0 {
		delete(g.turns, key)
	}
}

// untold is a Queue for nobody.
type untold struct{}

func (untold) Waiting(int)          {}
func (untold) Running(int)          {}
func (untold) Waited(time.Duration) {}
func (untold) Refused()             {}
