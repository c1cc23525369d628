package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/wire"
)

const defaultKept = 1024

// Broker publishes events to subscribers, and keeps the last ones. A subscriber is a
// position among the kept events, so it costs the publisher nothing. A slow
// subscriber delays neither the publisher nor others: it loses the oldest events. It
// is safe for concurrent use. The IDs of events go on increasing when the program
// is started again, with a gap.
type Broker struct {
	now   func() time.Time
	first uint64 // the ID of the first event ever

	mu     sync.Mutex
	next   uint64        // the ID of the next event
	kept   []wire.Event  // event i is at i modulo the length
	wake   chan struct{} // closed with the next event; nil: nobody waits for it
	closed bool
}

func newBroker(kept int, now func() time.Time) *Broker {
	if kept <= 0 {
		kept = defaultKept
	}
	// In microseconds of a clock no program publishes more events than that; and
	// the number is exact in JSON.
	first := uint64(now().UnixMicro())
	return &Broker{now: now, first: first, next: first, kept: make([]wire.Event, kept)}
}

// publish makes an event of data, which must not be changed any more and has to
// have a JSON form. It never waits.
func (b *Broker) publish(kind string, data any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.kept[b.next%uint64(len(b.kept))] = wire.Event{ID: b.next, Time: b.now(), Type: kind, Data: data}
	b.next++
	b.wakeAll()
}

// Subscribe returns the events after the one with the ID last, as far as they are
// kept; for 0, those from now on. An event of TypeLost stands where some are
// missing. The channel is closed when the context ends, and after the last event
// when the Telemetry shuts down. A reader that stops has to end the context. Events
// are shared: no subscriber may change their Data.
func (b *Broker) Subscribe(ctx context.Context, last uint64) <-chan wire.Event {
	s := b.after(last)
	go s.run(ctx)
	return s.out
}

func (b *Broker) after(last uint64) *subscription {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &subscription{broker: b, next: last + 1, out: make(chan wire.Event)}
	switch {
	case last == 0:
		s.next = b.next
	case s.next < b.first, s.next > b.next:
		s.restarted = true
	}
	return s
}

func (b *Broker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.wakeAll()
}

func (b *Broker) wakeAll() {
	if b.wake != nil {
		close(b.wake)
		b.wake = nil
	}
}

// oldest is the ID of the oldest event that is kept.
func (b *Broker) oldest() uint64 {
	return max(b.first, b.next-min(b.next, uint64(len(b.kept))))
}

// subscription is the place of one subscriber.
type subscription struct {
	broker    *Broker
	next      uint64
	restarted bool
	out       chan wire.Event
}

func (s *subscription) run(ctx context.Context) {
	defer close(s.out)
	for {
		e, wake := s.take()
		switch {
		case wake != nil:
			select {
			case <-wake:
			case <-ctx.Done():
				return
			}
		case e.Type == "":
			return
		default:
			select {
			case s.out <- e:
			case <-ctx.Done():
				return
			}
		}
	}
}

// take returns the next event; without one, what to wait for; neither after the
// last.
func (s *subscription) take() (wire.Event, <-chan struct{}) {
	b := s.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	oldest := b.oldest()
	switch {
	case s.restarted:
		s.restarted, s.next = false, oldest
		return b.lost(client.Lost{Restarted: true}), nil
	case s.next < oldest:
		missed := oldest - s.next
		s.next = oldest
		return b.lost(client.Lost{Count: missed}), nil
	case s.next < b.next:
		e := b.kept[s.next%uint64(len(b.kept))]
		s.next++
		return e, nil
	case b.closed:
		return wire.Event{}, nil
	}
	if b.wake == nil {
		b.wake = make(chan struct{})
	}
	return wire.Event{}, b.wake
}

func (b *Broker) lost(l client.Lost) wire.Event {
	return wire.Event{Time: b.now(), Type: client.TypeLost, Data: l}
}
