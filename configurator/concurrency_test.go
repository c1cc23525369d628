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

// TestManyAreTakenDownTogether: teardowns run concurrently, up to the limit.
func TestManyAreTakenDownTogether(t *testing.T) {
	const places, rounds = 3, 2
	for name, remove := range map[string]func(h *testHost, ctx context.Context) ([]string, error){
		"gc": func(h *testHost, ctx context.Context) ([]string, error) {
			report, err := h.GC(ctx, nil)
			return report.Removed, err
		},
		"recover": func(h *testHost, ctx context.Context) ([]string, error) {
			report, err := h.Recover(ctx)
			return report.Removed, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.network("net", "1.0.0", adds())
			var ids []string
			for i := range rounds * places {
				ids = append(ids, fmt.Sprintf("%s%d", name, i))
				_, err := h.Setup(t.Context(), h.alloc(ids[i]))
				require.NoError(t, err)
				h.setPhase(ids[i], record.Adding)
			}
			h.concurrency = places
			spy, meeting := h.spy(), newMeeting(places)
			spy.del = func(ctx context.Context, r *engine.Request) error {
				if err := meeting.attend(ctx); err != nil {
					return err
				}
				defer meeting.leave()
				return spy.Engine.Del(ctx, r)
			}
			removed, err := remove(h, t.Context())
			require.NoError(t, err)
			require.Equal(t, ids, removed)
			require.Equal(t, places, meeting.most)
			h.requireNoRecords()
		})
	}
}

// meeting blocks its members until enough of them have arrived.
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

// TestGCDestroysASharedNetns: GC removes several allocations of one namespace
// at the same time.
func TestGCDestroysASharedNetns(t *testing.T) {
	h, foreign := ownHost(t)
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp","ipam":{"type":"static","addresses":[{"address":"10.70.0.2/24","gateway":"10.70.0.1"}]}}]}`)
	h.file("other.conflist", `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"ptp","ipam":{"type":"static","addresses":[{"address":"10.71.0.2/24","gateway":"10.71.0.1"}]}}]}`)
	made, err := sandbox.CreateIn("/run/own", "c")
	require.NoError(t, err)
	require.NoError(t, made.Close())
	s := made.Path()
	for i, network := range []string{"net", "other"} {
		name := fmt.Sprintf("eth%d", i)
		_, err := h.Setup(t.Context(), Allocation{ID: "c." + name, ContainerID: "c", Interface: name, Netns: s, Networks: []string{network}})
		require.NoError(t, err)
	}
	report, err := h.GCScope(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	require.Equal(t, []string{"c.eth0", "c.eth1"}, report.Removed)
	require.Equal(t, []string{s}, report.Destroyed)
	h.requireNoOwn(foreign)
}
