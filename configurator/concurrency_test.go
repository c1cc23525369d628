package configurator

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// TestManyAreTakenDownTogether, but not more at once than there are places.
func TestManyAreTakenDownTogether(t *testing.T) {
	const places, rounds = 3, 2
	for name, remove := range map[string]func(w *world, ctx context.Context) ([]string, error){
		"gc": func(w *world, ctx context.Context) ([]string, error) {
			report, err := w.GC(ctx, nil)
			return report.Removed, err
		},
		"recover": func(w *world, ctx context.Context) ([]string, error) {
			report, err := w.Recover(ctx)
			return report.Removed, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.network("net", "1.0.0", adds())
			var ids []string
			for i := range rounds * places {
				ids = append(ids, fmt.Sprintf("%s%d", name, i))
				_, err := w.Setup(t.Context(), w.alloc(ids[i]))
				require.NoError(t, err)
				w.setPhase(ids[i], record.Adding)
			}
			w.concurrency = places
			spy, meeting := w.spy(), newMeeting(places)
			spy.del = func(ctx context.Context, r *engine.Request) error {
				if err := meeting.attend(ctx); err != nil {
					return err
				}
				defer meeting.leave()
				return spy.Engine.Del(ctx, r)
			}
			removed, err := remove(w, t.Context())
			require.NoError(t, err)
			require.Equal(t, ids, removed)
			require.Equal(t, places, meeting.most)
			w.requireNoRecords()
		})
	}
}

// meeting holds its members until as many as it needs are there at once.
type meeting struct {
	needs int

	mu          sync.Mutex
	there, most int
	waiting     int
	begins      chan struct{}
}

func newMeeting(needs int) *meeting { return &meeting{needs: needs, begins: make(chan struct{})} }

func (m *meeting) attend(ctx context.Context) error {
	m.mu.Lock()
	m.there++
	m.most = max(m.most, m.there)
	begins := m.begins
	if m.waiting++; m.waiting == m.needs {
		close(begins)
		m.waiting, m.begins = 0, make(chan struct{})
	}
	m.mu.Unlock()
	select {
	case <-begins:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *meeting) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.there--
}

// TestGCDestroysASharedNetns whose allocations go at the same time.
func TestGCDestroysASharedNetns(t *testing.T) {
	w, foreign := ownWorld(t)
	w.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp","ipam":{"type":"static","addresses":[{"address":"10.70.0.2/24","gateway":"10.70.0.1"}]}}]}`)
	w.file("other.conflist", `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"ptp","ipam":{"type":"static","addresses":[{"address":"10.71.0.2/24","gateway":"10.71.0.1"}]}}]}`)
	made, err := sandbox.CreateIn("/run/own", "c")
	require.NoError(t, err)
	require.NoError(t, made.Close())
	s := made.Path()
	for i, network := range []string{"net", "other"} {
		name := fmt.Sprintf("eth%d", i)
		_, err := w.Setup(t.Context(), Allocation{ID: "c." + name, ContainerID: "c", Interface: name, Netns: s, Networks: []string{network}})
		require.NoError(t, err)
	}
	report, err := w.GCScope(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	require.Equal(t, []string{"c.eth0", "c.eth1"}, report.Removed)
	require.Equal(t, []string{s}, report.Destroyed)
	w.requireNoOwn(foreign)
}
