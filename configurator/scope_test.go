package configurator

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// TestGCKeepsToItsNetworks: other networks in the directory may belong to
// another runtime, whose attachments have no record here.
func TestGCKeepsToItsNetworks(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Network = "ours" })
	h.network("ours", "1.1.0", adds())
	h.network("theirs", "1.1.0", adds(), behaviours{})
	_, err := h.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"one GC"}, h.commands())
}

// TestGCHoldsUpNobody: if no plugin supports GC, GC does not wait for running
// operations, nor they for GC.
func TestGCHoldsUpNobody(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	unlock, err := h.store.Lock(t.Context(), "busy")
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = h.GC(ctx, nil)
	require.NoError(t, err)
}

func TestRecordOfAnUnknownEngine(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.changeRecord("a", func(r *record.Record) { r.Engine = "warp" })
	h.commands()

	require.ErrorIs(t, h.Check(t.Context(), a), ErrNotChecked)
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrNotChecked)
	require.ErrorContains(t, err, `"warp"`)
	require.ErrorIs(t, h.Teardown(t.Context(), a), ErrIncomplete)
	require.Empty(t, h.commands())
}

// TestTeardownThatFailsWithoutRecordLeavesOne: such a Teardown writes a record,
// so that GC can continue.
func TestTeardownThatFailsWithoutRecordLeavesOne(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 100, Msg: "del trouble", Only: 1}}))
	require.ErrorIs(t, h.Teardown(t.Context(), Allocation{ID: "lost"}), ErrIncomplete)
	r, err := h.Get(t.Context(), "lost")
	require.NoError(t, err)
	require.Equal(t, PhaseDeleting, r.Phase)
	report, err := h.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"lost"}, report.Removed)
}

// TestTeardownOfWhatWasRefused: an ADD that found a plugin missing recorded
// nothing. Its DEL records nothing either, because later operations would use
// the broken configuration from that record.
func TestTeardownOfWhatWasRefused(t *testing.T) {
	h := newTestHost(t)
	broken := strings.ReplaceAll(h.conflist("net", "1.0.0", nil, adds()), `"type":"one"`, `"type":"nosuch"`)
	h.file("net.conflist", broken)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrPluginNotInstalled)
	err = h.Teardown(t.Context(), a)
	require.ErrorIs(t, err, ErrPluginNotInstalled, "nosuch may hold something that only it knows of")
	require.NotErrorIs(t, err, ErrIncomplete, "which says that there is a record")
	require.ErrorContains(t, err, `needs plugin "nosuch"`)
	h.requireNoRecords()

	h.network("net", "1.0.0", adds())
	require.NoError(t, h.Teardown(t.Context(), a))
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one DEL", "one ADD"}, h.commands())
}

// TestTeardownOfWhatCleanupKnows: if cleanup knows the plugins and finds
// nothing, Teardown succeeds, whether or not they are installed.
func TestTeardownOfWhatCleanupKnows(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Engine = EngineExec })
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","ipam":{"type":"host-local","subnet":"10.77.0.0/24"}}]}`)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrPluginNotInstalled)
	require.NoError(t, h.Teardown(t.Context(), a))
	h.requireNoRecords()
}

// TestSameAllocationAfterARestart: a setting that changes its ports, and new
// labels of them, do not make it another allocation.
func TestSameAllocationAfterARestart(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Label: "http", Value: 80, HostIP: "192.0.2.1"}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.cfg.IgnorePortMappingHostIP = true
	h.cfg.Networks = nil
	h.Configurator = newConfigurator(t, h.cfg)
	a.Ports[0].Label = "web"
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD", "one CHECK"}, h.commands())
}

// TestRecoverAndRepairKeepToTheirScope: with a scope they change only its
// allocations, without one all.
func TestRecoverAndRepairKeepToTheirScope(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	scopes := map[string]string{"a": "mine", "b": "other", "c": ""}
	for id, scope := range scopes {
		a := h.alloc(id)
		a.Scope = scope
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	for scope, healthy := range map[string][]string{"mine": {"a"}, "other": {"b"}, "nobody": {}, "": {"a", "b", "c"}} {
		report, err := h.RepairScope(t.Context(), Scope{Name: scope})
		require.NoError(t, err)
		require.Equal(t, &RepairReport{Healthy: healthy, Repaired: []string{}, Broken: []string{}}, report)
	}
	_, err := h.repairOne(t.Context(), Scope{Name: "mine"}, "b")
	require.ErrorIs(t, err, errGone, "another scope has the ID by now")
	draft := filepath.Join(h.cfg.StateDir, "allocs", ".half.json")
	for _, c := range []struct {
		scope   string
		removed []string
	}{{"nobody", []string{}}, {"mine", []string{"a"}}, {"other", []string{"b"}}, {"", []string{"c"}}} {
		for id := range scopes {
			if _, err := h.Get(t.Context(), id); err == nil {
				h.setPhase(id, record.Adding)
			}
		}
		if c.scope == "mine" {
			unfinished, err := h.recoverOne(t.Context(), Scope{Name: "mine"}, "b", new(summaries))
			require.NoError(t, err)
			require.False(t, unfinished, "another scope has the ID by now")
		}
		require.NoError(t, os.WriteFile(draft, nil, 0o600))
		report, err := h.RecoverScope(t.Context(), Scope{Name: c.scope})
		require.NoError(t, err)
		require.Equal(t, c.removed, report.Removed, c.scope)
	}
	require.NoFileExists(t, draft)

	require.NoError(t, os.WriteFile(filepath.Join(h.cfg.StateDir, "allocs", "b.json"), []byte("{"), 0o600))
	_, err = h.RepairScope(t.Context(), Scope{Name: "mine"})
	require.NoError(t, err, "nobody knows whose b is")
	_, err = h.RepairScope(t.Context(), Scope{})
	require.Error(t, err)
}

// TestGCScopeDestroysNetns: GC of a scope destroys the namespaces of its own
// allocations, also those that a crash left, and none of another scope.
func TestGCScopeDestroysNetns(t *testing.T) {
	h, foreign := ownHost(t)
	crashed := func(id, scope string) string {
		a := Allocation{ID: id, OwnNetns: true, Scope: scope}
		require.NoError(t, h.netns.Name(&a))
		made, err := h.netns.Make(t.Context(), &a)
		require.NoError(t, err)
		require.True(t, made)
		return a.Netns
	}
	mine, other, unscoped := crashed("mine", "s"), crashed("other", "t"), crashed("unscoped", "")
	for id, scope := range map[string]string{"a": "s", "b": "t"} {
		_, err := h.Setup(t.Context(), Allocation{ID: id, OwnNetns: true, Scope: scope})
		require.NoError(t, err)
	}
	for _, c := range []struct {
		scope     Scope
		destroyed []string
	}{
		{Scope{Name: "s", Live: []string{"a", "mine"}}, nil},
		{Scope{Name: "s", Live: []string{"a"}}, []string{mine}},
		{Scope{Name: "s"}, []string{"/run/own/a"}},
		{Scope{Live: []string{"unscoped"}}, []string{other}},
		{Scope{Name: "t"}, []string{"/run/own/b"}},
		{Scope{}, []string{unscoped}},
	} {
		c.scope.DestroyNetns = true
		plan, err := h.PlanGC(t.Context(), c.scope)
		require.NoError(t, err)
		require.Equal(t, c.destroyed, plan.Destroyed)
		report, err := h.GCScope(t.Context(), c.scope)
		require.NoError(t, err)
		require.Equal(t, c.destroyed, report.Destroyed)
	}
	h.requireNoOwn(foreign)
}
