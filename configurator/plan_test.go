package configurator

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// TestPlanGC: whatever there is to collect, PlanGC says what GC then does.
func TestPlanGC(t *testing.T) {
	for name, s := range map[string]struct {
		prepare func(*world)
		scope   Scope
		removed []string
		kept    []string
	}{
		"all live":          {func(*world) {}, Scope{Live: []string{"a", "b"}}, []string{}, []string{"a", "b"}},
		"none":              {func(*world) {}, Scope{}, []string{"a", "b"}, []string{}},
		"one dead":          {func(*world) {}, Scope{Live: []string{"b", "nobody"}}, []string{"a"}, []string{"b"}},
		"record lost":       {func(w *world) { w.lose("a") }, Scope{Live: []string{"b"}}, []string{"a"}, []string{"b"}},
		"record lost, live": {func(w *world) { w.lose("a") }, Scope{Live: []string{"a"}}, []string{"b"}, []string{"a"}},
		"all records lost":  {func(w *world) { w.lose("a"); w.lose("b") }, Scope{}, []string{"a", "b"}, []string{}},
		"interrupted ADD":   {func(w *world) { w.setPhase("a", record.Adding) }, Scope{Live: []string{"b"}}, []string{"a"}, []string{"b"}},
		"interrupted DEL":   {func(w *world) { w.setPhase("a", record.Deleting) }, Scope{}, []string{"a", "b"}, []string{}},
		"namespace gone": {func(w *world) {
			require.NoError(w.t, sandbox.Destroy(filepath.Join(sandbox.DefaultDir, "a")))
		}, Scope{}, []string{"a", "b"}, []string{}},
		"another scope": {func(w *world) { w.inAnotherScope("c") }, Scope{}, []string{"a", "b"}, []string{}},
		"of a scope":    {func(w *world) { w.inAnotherScope("c") }, Scope{Name: "cni/net"}, []string{"c"}, []string{}},
		"a record that cannot be read": {func(w *world) {
			require.NoError(w.t, os.WriteFile(filepath.Join(w.cfg.StateDir, "allocs", "torn.json"), []byte("{"), 0o600))
		}, Scope{Live: []string{"a"}}, []string{"b"}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := nativeWorld(t, "1.0.0")
			for _, id := range []string{"a", "b"} {
				_, err := w.Setup(t.Context(), w.alloc(id))
				require.NoError(t, err)
			}
			s.prepare(w)
			for range 2 { // it does nothing
				planned, planErr := w.PlanGC(t.Context(), s.scope)
				requireReport(t, &GCReport{Removed: s.removed, Kept: s.kept}, planned)
				require.Equal(t, name == "a record that cannot be read", planErr != nil)
			}
			_, planErr := w.PlanGC(t.Context(), s.scope)
			collected, err := w.GCScope(t.Context(), s.scope)
			require.Equal(t, s.removed, collected.Removed)
			require.Equal(t, s.kept, collected.Kept)
			if planErr != nil {
				require.EqualError(t, err, planErr.Error())
				require.NoError(t, os.Remove(filepath.Join(w.cfg.StateDir, "allocs", "torn.json")))
			} else {
				require.NoError(t, err)
			}
			_, err = w.GC(t.Context(), nil)
			require.NoError(t, err)
			_, err = w.GCScope(t.Context(), Scope{Name: "cni/net"})
			require.NoError(t, err)
		})
	}
}

// lose removes the record of an allocation, and nothing else.
func (w *world) lose(id string) {
	w.t.Helper()
	require.NoError(w.t, os.Remove(filepath.Join(w.cfg.StateDir, "allocs", id+".json")))
}

func (w *world) inAnotherScope(id string) {
	w.t.Helper()
	a := w.alloc(id)
	a.Scope = "cni/net"
	_, err := w.Setup(w.t.Context(), a)
	require.NoError(w.t, err)
}

// TestNetnsGone: a list says of an allocation that its namespace is gone.
func TestNetnsGone(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.False(t, w.seesNetnsGone())
	require.NoError(t, sandbox.Destroy(a.Netns))
	require.True(t, w.seesNetnsGone())
	require.NoError(t, os.WriteFile(a.Netns, nil, 0o600))
	require.True(t, w.seesNetnsGone(), "what is there is no namespace")
	require.NoError(t, os.Remove(a.Netns))
	require.NoError(t, w.Teardown(t.Context(), a))
}

func (w *world) seesNetnsGone() bool {
	w.t.Helper()
	r, err := w.Get(context.Background(), "a")
	require.NoError(w.t, err)
	list, err := w.List(context.Background())
	require.NoError(w.t, err)
	require.Equal(w.t, r.NetnsGone, list[0].NetnsGone)
	return r.NetnsGone
}

// TestGCOfNamedNetworks: what has lost its record is looked for in the networks that
// the caller names as well.
func TestGCOfNamedNetworks(t *testing.T) {
	w, _ := nativeWorld(t, "1.0.0")
	w.plain("other")
	a := w.alloc("a")
	a.Networks = []string{"net"}
	w.cfg.Network, w.cfg.Networks = "", []string{"other"}
	w.Configurator = newConfigurator(t, w.cfg)
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.lose("a")
	report, err := w.GCScope(t.Context(), Scope{})
	require.NoError(t, err)
	require.Empty(t, report.Removed)

	for _, collect := range []func(context.Context, Scope) (*GCReport, error){w.PlanGC, w.GCScope} {
		_, err = collect(t.Context(), Scope{Live: []string{"a"}, Networks: []string{"none"}})
		require.ErrorIs(t, err, ErrUnknownNetwork)
		report, err = collect(t.Context(), Scope{Networks: []string{"net"}})
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, report.Removed)
	}
	w.requireNoRecords()
}
