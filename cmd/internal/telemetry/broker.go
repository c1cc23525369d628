package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/wire"
)

// defaultKept is the default number of events that a Broker keeps.
const defaultKept = 1024

// Broker publishes events to subscribers and keeps the most recent ones. A subscriber
// is only a position among the kept events, so it adds no cost to publishing. A slow
// subscriber delays neither the publisher nor other subscribers; it loses the oldest
// events instead. A Broker is safe for concurrent use. The IDs of events keep
// increasing when the program restarts, with a gap.
type Broker struct {
	now   func() time.Time
	first uint64 // the ID of the first event of this process
	// arrived has a value after a subscriber has arrived while there was no other.
	arrived chan struct{}

	mu     sync.Mutex
	next   uint64        // the ID of the next event
	kept   []wire.Event  // a ring: the event with ID i is at index i modulo the length
	wake   chan struct{} // closed at the next event; nil if no subscriber waits
	closed bool

	subscribers int
}

func newBroker(kept int, now func() time.Time) *Broker {
	if kept <= 0 {
		kept = defaultKept
	}
	// The first ID is the time in microseconds. A program publishes fewer events than
	// one per microsecond, so IDs increase across restarts. JSON represents the number
	// exactly.
	first := uint64(now().UnixMicro())
	return &Broker{now: now, first: first, next: first, kept: make([]wire.Event, kept), arrived: make(chan struct{}, 1)}
}

// publish publishes an event with data, which must be encodable as JSON and must not be
// changed any more. It does not block.
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

// Subscribe returns a channel of the kept events after the one with the ID last; for 0,
// of the events from now on. An event of TypeLost replaces missing events. The channel
// is closed when the context ends; when the Telemetry shuts down, it is closed after
// the last event. A subscriber that stops reading must end the context. Events are
// shared: subscribers must not change their Data.
func (b *Broker) Subscribe(ctx context.Context, last uint64) <-chan wire.Event {
	s := b.after(last)
	go s.run(ctx)
	return s.out
}

// Subscribers returns the number of subscribers.
func (b *Broker) Subscribers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.subscribers
}

// Arrived returns a channel that gets a value when a subscriber arrives and there is no other.
func (b *Broker) Arrived() <-chan struct{} { return b.arrived }

// arrive counts a subscriber. The caller holds the lock.
func (b *Broker) arrive() {
	b.subscribers++
	if b.subscribers > 1 {
		return
	}
	select {
	case b.arrived <- struct{}{}:
	default: // the value of an earlier one is not yet received
	}
}

func (b *Broker) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribers--
}

// after returns the subscription that begins after the event with the ID last.
func (b *Broker) after(last uint64) *subscription {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arrive()
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

// wakeAll wakes all waiting subscribers. The caller holds the lock.
func (b *Broker) wakeAll() {
	if b.wake != nil {
		close(b.wake)
		b.wake = nil
	}
}

// oldest returns the ID of the oldest kept event.
func (b *Broker) oldest() uint64 {
	return max(b.first, b.next-min(b.next, uint64(len(b.kept))))
}

// subscription is the position of one subscriber.
type subscription struct {
	broker    *Broker
	next      uint64
	restarted bool
	out       chan wire.Event
}

// run sends events to the subscriber until the context ends or the Broker is closed.
func (s *subscription) run(ctx context.Context) {
	defer close(s.out)
	defer s.broker.leave()
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

// take returns the next event. If there is none yet, it returns a channel that is
// closed at the next event. If the Broker is closed, it returns neither.
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
