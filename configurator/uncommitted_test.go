package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/portmap"
)

// watchedPublish is a native engine that calls a function of a test after each Publish.
type watchedPublish struct {
	nativeEngine
	after func() error
}

func (w *watchedPublish) Publish(ctx context.Context, r *engine.Request, before map[string]json.RawMessage) error {
	return errors.Join(w.nativeEngine.Publish(ctx, r, before), w.after())
}

// TestUpdateIsNotShownBefore it is recorded as done: Get and List have what the allocation had before,
// during an Update, during its undoing and after one that was interrupted.
func TestUpdateIsNotShownBefore(t *testing.T) {
	for name, ports := range map[string][]portmap.Port{"with ports": {tcpPort(8080, 80)}, "without ports": nil} {
		t.Run(name, func(t *testing.T) {
			h, _ := nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
			a := h.alloc("a")
			a.Ports, a.Labels = ports, map[string]string{"app": "web"}
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			before, err := h.Get(t.Context(), "a")
			require.NoError(t, err)
			shown := 0
			requireBefore := func() {
				shown++
				r, err := h.Get(t.Context(), "a")
				require.NoError(t, err)
				records, err := h.List(t.Context())
				require.NoError(t, err)
				for _, is := range []Record{*r, records[0]} {
					is.Updated = before.Updated
					require.Len(t, is.Ports, len(ports))
					require.Len(t, is.Status.Ports, len(ports))
					is.Ports, is.Status.Ports = before.Ports, before.Status.Ports // nil and empty are the same
					require.Equal(t, *before, is)
				}
			}
			trouble := errors.New("trouble")
			native := h.native
			h.native = &watchedPublish{native, func() error { requireBefore(); return trouble }}
			change := Change{Unpublish: ports, Publish: []portmap.Port{tcpPort(8081, 80)}, Labels: map[string]*string{"tier": new("front")}}
			_, err = h.Update(t.Context(), "a", change)
			require.ErrorIs(t, err, trouble)
			require.Equal(t, 2, shown, "during the update and its undoing")
			requireBefore()
			_, err = h.Repair(t.Context())
			require.ErrorIs(t, err, trouble)
			requireBefore()

			h.native = &watchedPublish{native, func() error { requireBefore(); return nil }}
			s, err := h.Update(t.Context(), "a", change)
			require.NoError(t, err)
			r, err := h.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, s.Revision, r.Revision)
			require.NotEqual(t, before.Revision, r.Revision)
			require.Equal(t, 8081, r.Ports[0].HostPort)
			require.Len(t, r.Ports, 1)
			require.Equal(t, r.Ports, r.Status.Ports)
			require.Len(t, r.Labels, 2)
			require.NoError(t, h.Teardown(t.Context(), a))
			h.settle()
			h.requireNoRecords()
		})
	}
}
