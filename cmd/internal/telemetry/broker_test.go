package telemetry

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/wire"
)

func newTestBroker(kept int) *Broker { return newBroker(kept, newClock().now) }

// publishN publishes the numbers from 0 to n-1.
func publishN(b *Broker, n int) {
	for i := range n {
		b.publish("n", i)
	}
}

// receive reads n events as text. It fails if there are fewer.
func receive(t *testing.T, from <-chan wire.Event, n int) (got []string) {
	t.Helper()
	for range n {
		select {
		case e, ok := <-from:
			require.True(t, ok, "the events end after %v", got)
			got = append(got, text(e))
		case <-time.After(10 * time.Second):
			t.Fatalf("there is none after %v", got)
		}
	}
	return got
}

// drain takes all pending events.
func (s *subscription) drain() (got []string) {
	for {
		e, wake := s.take()
		if wake != nil || e.Type == "" {
			return got
		}
		got = append(got, text(e))
	}
}

func text(e wire.Event) string {
	switch l, ok := e.Data.(client.Lost); {
	case !ok:
		return fmt.Sprint(e.Data)
	case l.Restarted:
		return "restarted"
	default:
		return fmt.Sprint("lost ", l.Count)
	}
}

func TestSubscribersGetEventsInOrder(t *testing.T) {
	b := newTestBroker(8)
	publishN(b, 2)
	one, two := b.Subscribe(t.Context(), 0), b.Subscribe(t.Context(), 0)
	publishN(b, 3)
	for _, s := range []<-chan wire.Event{one, two} {
		require.Equal(t, []string{"0", "1", "2"}, receive(t, s, 3))
	}
	b.publish("n", "more")
	require.Equal(t, []string{"more"}, receive(t, one, 1))
	require.Equal(t, []string{"more"}, receive(t, two, 1))
}

func TestReplay(t *testing.T) {
	b := newTestBroker(4)
	publishN(b, 6) // 2 to 5 are kept
	for name, tt := range map[string]struct {
		last uint64
		want []string
	}{
		"nothing missed":        {b.first + 5, nil},
		"the last one":          {b.first + 4, []string{"5"}},
		"all that are kept":     {b.first + 1, []string{"2", "3", "4", "5"}},
		"one more than is kept": {b.first, []string{"lost 1", "2", "3", "4", "5"}},
		"from the very first":   {b.first - 1, []string{"lost 2", "2", "3", "4", "5"}},
		"of the program before": {b.first - 100, []string{"restarted", "2", "3", "4", "5"}},
		"never published":       {b.first + 100, []string{"restarted", "2", "3", "4", "5"}},
		"the largest number":    {^uint64(0), []string{"restarted", "2", "3", "4", "5"}},
		"none":                  {0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := b.after(tt.last)
			require.Equal(t, tt.want, s.drain())
			require.Empty(t, s.drain())
		})
	}
}

// TestSlowSubscribers: slow subscribers lose the oldest events, get their
// number, and continue.
func TestSlowSubscribers(t *testing.T) {
	b := newTestBroker(4)
	s := b.after(0)
	publishN(b, 3)
	e, _ := s.take()
	require.Equal(t, "0", text(e))
	publishN(b, 10)
	require.Equal(t, []string{"lost 8", "6", "7", "8", "9"}, s.drain())
	publishN(b, 1)
	require.Equal(t, []string{"0"}, s.drain())
}

// TestNobodyWaitsForWhoDoesNotRead: a subscriber that does not read delays
// neither publishers nor other subscribers.
func TestNobodyWaitsForWhoDoesNotRead(t *testing.T) {
	b := newTestBroker(4)
	stuck := b.Subscribe(t.Context(), 0)
	good := b.Subscribe(t.Context(), 0)
	for i := range 1000 {
		b.publish("n", i)
		require.Equal(t, []string{fmt.Sprint(i)}, receive(t, good, 1))
	}
	require.Equal(t, 1000, account(t, stuck, "999"))
}

// account reads up to a given last event, and returns the number of events,
// including lost ones.
func account(t *testing.T, from <-chan wire.Event, last string) (n int) {
	t.Helper()
	for {
		got, lost := receive(t, from, 1)[0], 0
		if _, err := fmt.Sscanf(got, "lost %d", &lost); err == nil {
			n += lost
			continue
		}
		n++
		if got == last {
			return n
		}
	}
}

func TestIDs(t *testing.T) {
	c := newClock()
	b := newBroker(4, c.now)
	publishN(b, 2)
	s := b.Subscribe(t.Context(), b.first-1)
	one, two := <-s, <-s
	require.Equal(t, one.ID+1, two.ID)
	require.Equal(t, c.now(), one.Time)
	c.add(time.Millisecond)
	require.Greater(t, newBroker(4, c.now).first, two.ID)
	require.Less(t, two.ID, uint64(1)<<53, "exact in JSON")
}

// TestLostHasNoID: so a subscriber that reconnects requests the events after
// the last one that it got.
func TestLostHasNoID(t *testing.T) {
	b := newTestBroker(1)
	publishN(b, 3)
	e, _ := b.after(b.first).take()
	require.Equal(t, client.TypeLost, e.Type)
	require.Zero(t, e.ID)
}

func TestSubscriptionsEnd(t *testing.T) {
	b := newTestBroker(4)
	ctx, cancel := context.WithCancel(t.Context())
	waiting, unread := b.Subscribe(ctx, 0), b.Subscribe(ctx, b.first-100)
	cancel()
	b.after(b.first - 100).run(ctx) // returns although no one reads
	for _, s := range []<-chan wire.Event{waiting, unread} {
		for e := range s { // the marker may have been delivered first
			require.Equal(t, client.TypeLost, e.Type)
		}
	}
	last := b.Subscribe(t.Context(), 0)
	publishN(b, 2)
	b.close()
	b.publish("n", "late")
	require.Equal(t, []string{"0", "1"}, receive(t, last, 2))
	_, ok := <-last
	require.False(t, ok)
	_, ok = <-b.Subscribe(t.Context(), 0)
	require.False(t, ok, "of a broker that is closed")
	b.close()
}

// TestAllAtOnce: the events that a subscriber gets and the number of lost ones
// add up to the published events, in order.
func TestAllAtOnce(t *testing.T) {
	const publishers, each = 8, 500
	b := newTestBroker(16)
	var subscribers sync.WaitGroup
	for range 4 {
		from := b.Subscribe(t.Context(), 0)
		subscribers.Go(func() {
			last, seen := b.first-1, uint64(0)
			for e := range from {
				if l, ok := e.Data.(client.Lost); ok {
					seen, last = seen+l.Count, last+l.Count
					continue
				}
				if e.ID != last+1 {
					t.Errorf("event %d after %d", e.ID, last)
				}
				seen, last = seen+1, e.ID
			}
			if seen != publishers*each {
				t.Errorf("%d events are accounted for", seen)
			}
		})
	}
	var all sync.WaitGroup
	for range publishers {
		all.Go(func() { publishN(b, each) })
	}
	all.Wait()
	b.close()
	subscribers.Wait()
}
