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

// TestPlanGC: PlanGC reports exactly what GC then does.
func TestPlanGC(t *testing.T) {
	for name, s := range map[string]struct {
		prepare func(*testHost)
		scope   Scope
		removed []string
		kept    []string
	}{
		"all live":          {func(*testHost) {}, Scope{Live: []string{"a", "b"}}, []string{}, []string{"a", "b"}},
		"none":              {func(*testHost) {}, Scope{}, []string{"a", "b"}, []string{}},
		"one dead":          {func(*testHost) {}, Scope{Live: []string{"b", "unknown"}}, []string{"a"}, []string{"b"}},
		"record lost":       {func(h *testHost) { h.lose("a") }, Scope{Live: []string{"b"}}, []string{"a"}, []string{"b"}},
		"record lost, live": {func(h *testHost) { h.lose("a") }, Scope{Live: []string{"a"}}, []string{"b"}, []string{"a"}},
		"all records lost":  {func(h *testHost) { h.lose("a"); h.lose("b") }, Scope{}, []string{"a", "b"}, []string{}},
		"interrupted ADD":   {func(h *testHost) { h.setPhase("a", record.Adding) }, Scope{Live: []string{"b"}}, []string{"a"}, []string{"b"}},
		"interrupted DEL":   {func(h *testHost) { h.setPhase("a", record.Deleting) }, Scope{}, []string{"a", "b"}, []string{}},
		"namespace gone": {func(h *testHost) {
			require.NoError(h.t, sandbox.Destroy(filepath.Join(sandbox.DefaultDir, "a")))
		}, Scope{}, []string{"a", "b"}, []string{}},
		"another scope": {func(h *testHost) { h.inAnotherScope("c") }, Scope{}, []string{"a", "b"}, []string{}},
		"of a scope":    {func(h *testHost) { h.inAnotherScope("c") }, Scope{Name: "cni/net"}, []string{"c"}, []string{}},
		"a record that cannot be read": {func(h *testHost) {
			require.NoError(h.t, os.WriteFile(filepath.Join(h.cfg.StateDir, "allocs", "torn.json"), []byte("{"), 0o600))
		}, Scope{Live: []string{"a"}}, []string{"b"}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := nativeHost(t, "1.0.0")
			for _, id := range []string{"a", "b"} {
				_, err := h.Setup(t.Context(), h.alloc(id))
				require.NoError(t, err)
			}
			s.prepare(h)
			for range 2 { // PlanGC changes nothing
				planned, planErr := h.PlanGC(t.Context(), s.scope)
				requireReport(t, &GCReport{Removed: s.removed, Kept: s.kept}, planned)
				require.Equal(t, name == "a record that cannot be read", planErr != nil)
			}
			_, planErr := h.PlanGC(t.Context(), s.scope)
			collected, err := h.GCScope(t.Context(), s.scope)
			require.Equal(t, s.removed, collected.Removed)
			require.Equal(t, s.kept, collected.Kept)
			if planErr != nil {
				require.EqualError(t, err, planErr.Error())
				require.NoError(t, os.Remove(filepath.Join(h.cfg.StateDir, "allocs", "torn.json")))
			} else {
				require.NoError(t, err)
			}
			_, err = h.GC(t.Context(), nil)
			require.NoError(t, err)
			_, err = h.GCScope(t.Context(), Scope{Name: "cni/net"})
			require.NoError(t, err)
		})
	}
}

// lose removes only the record of an allocation.
func (h *testHost) lose(id string) {
	h.t.Helper()
	require.NoError(h.t, os.Remove(filepath.Join(h.cfg.StateDir, "allocs", id+".json")))
}

func (h *testHost) inAnotherScope(id string) {
	h.t.Helper()
	a := h.alloc(id)
	a.Scope = "cni/net"
	_, err := h.Setup(h.t.Context(), a)
	require.NoError(h.t, err)
}

// TestNetnsGone: List reports that the namespace of an allocation is gone.
func TestNetnsGone(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.False(t, h.seesNetnsGone())
	require.NoError(t, sandbox.Destroy(a.Netns))
	require.True(t, h.seesNetnsGone())
	require.NoError(t, os.WriteFile(a.Netns, nil, 0o600))
	require.True(t, h.seesNetnsGone(), "what is there is no namespace")
	require.NoError(t, os.Remove(a.Netns))
	require.NoError(t, h.Teardown(t.Context(), a))
}

func (h *testHost) seesNetnsGone() bool {
	h.t.Helper()
	r, err := h.Get(context.Background(), "a")
	require.NoError(h.t, err)
	list, err := h.List(context.Background())
	require.NoError(h.t, err)
	require.Equal(h.t, r.NetnsGone, list[0].NetnsGone)
	return r.NetnsGone
}

// TestGCOfNamedNetworks: allocations without a record are also searched for in
// the networks that the caller names.
func TestGCOfNamedNetworks(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	h.plain("other")
	a := h.alloc("a")
	a.Networks = []string{"net"}
	h.cfg.Network, h.cfg.Networks = "", []string{"other"}
	h.Configurator = newConfigurator(t, h.cfg)
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.lose("a")
	report, err := h.GCScope(t.Context(), Scope{})
	require.NoError(t, err)
	require.Empty(t, report.Removed)

	for _, collect := range []func(context.Context, Scope) (*GCReport, error){h.PlanGC, h.GCScope} {
		_, err = collect(t.Context(), Scope{Live: []string{"a"}, Networks: []string{"none"}})
		require.ErrorIs(t, err, ErrUnknownNetwork)
		report, err = collect(t.Context(), Scope{Networks: []string{"net"}})
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, report.Removed)
	}
	h.requireNoRecords()
}
