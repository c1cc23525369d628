package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

func tcpPort(value, to int) portmap.Port {
	return portmap.Port{Value: value, To: to, Protocols: []string{"tcp"}}
}

// updateHost is a native host on which an allocation a publishes TCP port 8080.
func updateHost(t *testing.T, portmapKeys string) (h *testHost, a Allocation) {
	h, _ = nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}`+portmapKeys+`}`)
	a = h.alloc("a")
	a.Ports = []portmap.Port{tcpPort(8080, 80)}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Teardown(context.Background(), a)); h.settle(); h.requireNoRecords() })
	return h, a
}

// published returns the host ports of allocation a in the kernel.
func published(t *testing.T) (ports []string) {
	t.Helper()
	require.NoError(t, ruleset.Lend(func(r *ruleset.Ruleset) error {
		for _, port := range []uint16{8080, 8081, 8082} {
			m, _, err := r.Destination(t.Context(), netip.MustParseAddr("192.0.2.1"), unix.IPPROTO_TCP, port)
			if err != nil {
				return err
			}
			if m != nil {
				ports = append(ports, m.String()+" -> "+m.To.String())
			}
		}
		return nil
	}))
	return ports
}

// TestUpdateRefused: what cannot be changed is refused, and nothing has changed.
func TestUpdateRefused(t *testing.T) {
	h, a := updateHost(t, "")
	b := h.alloc("b")
	b.Ports = []portmap.Port{tcpPort(8081, 80)}
	_, err := h.Setup(t.Context(), b)
	require.NoError(t, err)
	before := h.tree(h.cfg.StateDir)
	var conflict *portmap.ConflictError
	for name, c := range map[string]struct {
		change Change
		want   error
	}{
		"port of another":   {Change{Publish: []portmap.Port{tcpPort(8082, 80), tcpPort(8081, 80)}}, portmap.ErrConflict},
		"published already": {Change{Publish: []portmap.Port{tcpPort(8080, 81)}}, portmap.ErrConflict},
		"no port":           {Change{Publish: []portmap.Port{{Value: -1}}}, ErrInvalidAllocation},
		"no port to remove": {Change{Unpublish: []portmap.Port{{}}}, ErrInvalidAllocation},
		"other revision":    {Change{Revision: "0-0", Publish: []portmap.Port{tcpPort(8082, 80)}}, ErrRevision},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.Update(t.Context(), a.ID, c.change)
			require.ErrorIs(t, err, c.want)
			if errors.As(err, &conflict) {
				require.Equal(t, "a", conflict.ID)
			}
			require.Len(t, published(t), 2)
			require.Equal(t, before, h.tree(h.cfg.StateDir), "records and reservations are as before")
		})
	}
	s, err := h.Update(t.Context(), a.ID, Change{Unpublish: []portmap.Port{tcpPort(8082, 0)}, Publish: a.Ports})
	require.NoError(t, err)
	r, err := h.Get(t.Context(), a.ID)
	require.NoError(t, err)
	require.Equal(t, r.Revision, s.Revision)
	require.Equal(t, before, h.tree(h.cfg.StateDir), "nothing was to be changed")
	require.NoError(t, h.Teardown(t.Context(), b))
	_, err = h.Update(t.Context(), "b", Change{})
	require.ErrorIs(t, err, ErrNotFound)
}

// TestCannotUpdate: host ports that native plugins do not publish in allocnet's tables stay.
func TestCannotUpdate(t *testing.T) {
	privhost.Require(t, "iptables")
	h, a := updateHost(t, `,"backend":"iptables"`)
	_, err := h.Update(t.Context(), a.ID, Change{Publish: []portmap.Port{tcpPort(8082, 80)}})
	require.ErrorIs(t, err, ErrCannotUpdate)
	require.NoError(t, h.CheckOnly(t.Context(), a))
	r, err := h.Get(t.Context(), a.ID)
	require.NoError(t, err)
	require.Len(t, r.Ports, 1)

	binary := newTestHost(t)
	binary.network("net", "1.0.0", adds())
	b := binary.alloc("b")
	_, err = binary.Setup(t.Context(), b)
	require.NoError(t, err)
	_, err = binary.Update(t.Context(), b.ID, Change{Publish: []portmap.Port{tcpPort(8082, 80)}})
	require.ErrorIs(t, err, ErrCannotUpdate)
	require.NoError(t, binary.Teardown(t.Context(), b))
}

// TestUpdateUnserved: without a plugin for host ports, none can be published.
func TestUpdateUnserved(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	h.cfg.AllowUnserved = true
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = h.Update(t.Context(), a.ID, Change{Publish: []portmap.Port{tcpPort(8080, 80)}})
	require.ErrorIs(t, err, ErrUnserved)
	require.NoError(t, h.Teardown(t.Context(), a))
}

// failingPublish is an engine whose Publish fails.
type failingPublish struct {
	nativeEngine
	times int
}

func (f *failingPublish) Publish(ctx context.Context, r *engine.Request, before map[string]json.RawMessage) error {
	if f.times--; f.times >= 0 {
		return errors.New("no memory")
	}
	return f.nativeEngine.Publish(ctx, r, before)
}

// TestUpdateUndone: an update that fails leaves the host ports from before. If these cannot be
// restored either, Recover, Repair and the next Update do it.
func TestUpdateUndone(t *testing.T) {
	for name, finish := range map[string]func(h *testHost, a Allocation) error{
		"at once": nil,
		"recover": func(h *testHost, a Allocation) error { _, err := h.Recover(h.t.Context()); return err },
		"repair":  func(h *testHost, a Allocation) error { _, err := h.Repair(h.t.Context()); return err },
		"setup":   func(h *testHost, a Allocation) error { _, err := h.Setup(h.t.Context(), a); return err },
		"update":  func(h *testHost, a Allocation) error { _, err := h.Update(h.t.Context(), a.ID, Change{}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			h, a := updateHost(t, "")
			before := published(t)
			was, err := h.Get(t.Context(), a.ID)
			require.NoError(t, err)
			times := 1
			if finish != nil {
				times = 2
			}
			h.native = &failingPublish{h.native, times}
			_, err = h.Update(t.Context(), a.ID, Change{Unpublish: a.Ports, Publish: []portmap.Port{tcpPort(8081, 80)}})
			require.ErrorContains(t, err, "no memory")
			if finish != nil {
				require.NoError(t, finish(h, a))
			}
			require.Equal(t, before, published(t))
			r, err := h.store.Get(a.ID)
			require.NoError(t, err)
			require.Nil(t, r.Update)
			require.Len(t, r.Ports, 1)
			require.Equal(t, was.Revision, plan.RevisionOf(r), "nothing has changed")
			require.NoError(t, h.CheckOnly(t.Context(), a))

			b := h.alloc("b")
			b.Ports = []portmap.Port{tcpPort(8081, 80)}
			_, err = h.Setup(t.Context(), b)
			require.NoError(t, err, "the port of the failed update is free")
			require.NoError(t, h.Teardown(t.Context(), b))
		})
	}
}

// TestUpdateOfLabels: labels change alone with every engine, and together with host ports.
func TestUpdateOfLabels(t *testing.T) {
	labelsOf := func(h *testHost, id string) map[string]string {
		r, err := h.Get(t.Context(), id)
		require.NoError(t, err)
		return r.Labels
	}
	binary := newTestHost(t)
	binary.network("net", "1.0.0", adds())
	b := binary.alloc("b")
	b.Labels = map[string]string{"app": "web"}
	_, err := binary.Setup(t.Context(), b)
	require.NoError(t, err)
	_, err = binary.Update(t.Context(), b.ID, Change{Labels: map[string]*string{"tier": new("front")}})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"app": "web", "tier": "front"}, labelsOf(binary, b.ID))
	_, err = binary.Setup(t.Context(), b)
	require.ErrorIs(t, err, ErrDifferent)
	require.ErrorContains(t, err, "labels")
	_, err = binary.Update(t.Context(), b.ID, Change{Labels: map[string]*string{"tier": nil}})
	require.NoError(t, err)
	_, err = binary.Setup(t.Context(), b)
	require.NoError(t, err)
	require.NoError(t, binary.Teardown(t.Context(), b))

	h, a := updateHost(t, "")
	publish := Change{Publish: []portmap.Port{tcpPort(8081, 80)}, Labels: map[string]*string{"app": new("web")}}
	native := h.native
	h.native = &failingPublish{native, 1}
	_, err = h.Update(t.Context(), a.ID, publish)
	require.ErrorContains(t, err, "no memory")
	require.Empty(t, labelsOf(h, a.ID), "nothing has changed")
	h.native = &failingPublish{native, 2}
	_, err = h.Update(t.Context(), a.ID, publish)
	require.ErrorContains(t, err, "no memory")
	_, err = h.Repair(t.Context())
	require.NoError(t, err)
	require.Empty(t, labelsOf(h, a.ID), "the undoing was finished")
	_, err = h.Update(t.Context(), a.ID, publish)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"app": "web"}, labelsOf(h, a.ID))
	require.Len(t, published(t), 2)
}

// TestLabelsOfSlot: a slot has no labels, and the allocation that takes it has its own.
func TestLabelsOfSlot(t *testing.T) {
	h, _ := pooledHost(t, 1)
	for _, labels := range []map[string]string{{"app": "web"}, nil, {"tier": "front"}} {
		h.full()
		_, err := h.Setup(t.Context(), Allocation{ID: "a", OwnNetns: true, Labels: labels})
		require.NoError(t, err)
		r, err := h.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, labels, r.Labels)
		require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a", OwnNetns: true}))
		h.settle()
	}
}

// TestUpdateOfSlot: an allocation from a pool can be updated as any other, and its revision is
// not that of an earlier one.
func TestUpdateOfSlot(t *testing.T) {
	h, _ := pooledHost(t, 1)
	a := Allocation{ID: "a", OwnNetns: true}
	seen := map[string]bool{}
	for range 3 {
		h.full()
		s, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		r, err := h.Get(t.Context(), a.ID)
		require.NoError(t, err)
		require.Equal(t, r.Revision, s.Revision)
		require.False(t, seen[s.Revision])
		seen[s.Revision] = true
		s, err = h.Update(t.Context(), a.ID, Change{Revision: s.Revision, Publish: []portmap.Port{tcpPort(8080, 80)}})
		require.NoError(t, err)
		require.Len(t, s.Ports, 1)
		require.False(t, seen[s.Revision])
		seen[s.Revision] = true
		require.Len(t, published(t), 1)
		require.NoError(t, h.Teardown(t.Context(), a))
		h.settle()
		require.Empty(t, published(t))
	}
}

// TestUpdatePolicyUnserved: a policy in the record of an older version that no plugin enforces does not
// prevent other changes, and can be dropped, but not replaced.
func TestUpdatePolicyUnserved(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	older, err := h.store.Get(a.ID)
	require.NoError(t, err)
	older.Policy, older.Unserved = &policy.Policy{Presets: []policy.Preset{policy.Isolated}}, []string{"policy"}
	require.NoError(t, h.store.Put(older))
	tier := "front"
	_, err = h.Update(t.Context(), a.ID, Change{Labels: map[string]*string{"tier": &tier}})
	require.NoError(t, err)
	_, err = h.Update(t.Context(), a.ID, Change{Policy: &policy.Policy{Presets: []policy.Preset{policy.EgressOnly}}})
	require.ErrorIs(t, err, ErrUnserved)
	s, err := h.Update(t.Context(), a.ID, Change{Policy: &policy.Policy{}})
	require.NoError(t, err)
	require.Empty(t, s.Unserved)
	r, err := h.Get(t.Context(), a.ID)
	require.NoError(t, err)
	require.Nil(t, r.Policy)
	require.Equal(t, map[string]string{"tier": "front"}, r.Labels)
	require.NoError(t, h.Teardown(t.Context(), a))
}
