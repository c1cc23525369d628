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

// TestGCKeepsToItsNetworks: others in the directory may be another runtime's,
// whose attachments are in no record of ours.
func TestGCKeepsToItsNetworks(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Network = "ours" })
	w.network("ours", "1.1.0", adds())
	w.network("theirs", "1.1.0", adds(), behaviours{})
	_, err := w.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"one GC"}, w.commands())
}

// TestGCHoldsUpNobody where no plugin knows GC: it does not wait for operations
// that run, and they do not wait for it.
func TestGCHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	unlock, err := w.store.Lock(t.Context(), "busy")
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = w.GC(ctx, nil)
	require.NoError(t, err)
}

func TestRecordOfAnUnknownEngine(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.changeRecord("a", func(r *record.Record) { r.Engine = "warp" })
	w.commands()

	require.ErrorIs(t, w.Check(t.Context(), a), ErrNotChecked)
	_, err = w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrNotChecked)
	require.ErrorContains(t, err, `"warp"`)
	require.ErrorIs(t, w.Teardown(t.Context(), a), ErrIncomplete)
	require.Empty(t, w.commands())
}

// TestTeardownThatFailsWithoutRecordLeavesOne, so that GC goes on with it.
func TestTeardownThatFailsWithoutRecordLeavesOne(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 100, Msg: "del trouble", Only: 1}}))
	require.ErrorIs(t, w.Teardown(t.Context(), Allocation{ID: "lost"}), ErrIncomplete)
	r, err := w.Get(t.Context(), "lost")
	require.NoError(t, err)
	require.Equal(t, PhaseDeleting, r.Phase)
	report, err := w.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"lost"}, report.Removed)
}

// TestTeardownOfWhatWasRefused: an ADD that found a plugin missing recorded nothing,
// and neither does the DEL after it, which would have all that follows go by the
// broken configuration.
func TestTeardownOfWhatWasRefused(t *testing.T) {
	w := newWorld(t)
	broken := strings.ReplaceAll(w.conflist("net", "1.0.0", nil, adds()), `"type":"one"`, `"type":"nosuch"`)
	w.file("net.conflist", broken)
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrPluginNotInstalled)
	err = w.Teardown(t.Context(), a)
	require.ErrorIs(t, err, ErrPluginNotInstalled, "nosuch may hold something that only it knows of")
	require.NotErrorIs(t, err, ErrIncomplete, "which says that there is a record")
	require.ErrorContains(t, err, `needs plugin "nosuch"`)
	w.requireNoRecords()

	w.network("net", "1.0.0", adds())
	require.NoError(t, w.Teardown(t.Context(), a))
	_, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one DEL", "one ADD"}, w.commands())
}

// TestTeardownOfWhatCleanupKnows: that nothing is found is enough, installed or not.
func TestTeardownOfWhatCleanupKnows(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Engine = EngineExec })
	w.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","ipam":{"type":"host-local","subnet":"10.77.0.0/24"}}]}`)
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrPluginNotInstalled)
	require.NoError(t, w.Teardown(t.Context(), a))
	w.requireNoRecords()
}

// TestSameAllocationAfterARestart: what the configuration makes of its ports, and
// what they are called, does not make it another one.
func TestSameAllocationAfterARestart(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	a.Ports = []portmap.Port{{Label: "http", Value: 80, HostIP: "192.0.2.1"}}
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.cfg.IgnorePortMappingHostIP = true
	w.cfg.Networks = nil
	w.Configurator = newConfigurator(t, w.cfg)
	a.Ports[0].Label = "web"
	_, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD", "one CHECK"}, w.commands())
}

// TestRecoverAndRepairKeepToTheirScope, and without one to none.
func TestRecoverAndRepairKeepToTheirScope(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	scopes := map[string]string{"a": "mine", "b": "other", "c": ""}
	for id, scope := range scopes {
		a := w.alloc(id)
		a.Scope = scope
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	for scope, healthy := range map[string][]string{"mine": {"a"}, "other": {"b"}, "nobody": {}, "": {"a", "b", "c"}} {
		report, err := w.RepairScope(t.Context(), Scope{Name: scope})
		require.NoError(t, err)
		require.Equal(t, &RepairReport{Healthy: healthy, Repaired: []string{}, Broken: []string{}}, report)
	}
	_, err := w.repairOne(t.Context(), Scope{Name: "mine"}, "b")
	require.ErrorIs(t, err, errGone, "another scope has the ID by now")
	draft := filepath.Join(w.cfg.StateDir, "allocs", ".half.json")
	for _, c := range []struct {
		scope   string
		removed []string
	}{{"nobody", []string{}}, {"mine", []string{"a"}}, {"other", []string{"b"}}, {"", []string{"c"}}} {
		for id := range scopes {
			if _, err := w.Get(t.Context(), id); err == nil {
				w.setPhase(id, record.Adding)
			}
		}
		if c.scope == "mine" {
			unfinished, err := w.recoverOne(t.Context(), Scope{Name: "mine"}, "b", new(summaries))
			require.NoError(t, err)
			require.False(t, unfinished, "another scope has the ID by now")
		}
		require.NoError(t, os.WriteFile(draft, nil, 0o600))
		report, err := w.RecoverScope(t.Context(), Scope{Name: c.scope})
		require.NoError(t, err)
		require.Equal(t, c.removed, report.Removed, c.scope)
	}
	require.NoFileExists(t, draft)

	require.NoError(t, os.WriteFile(filepath.Join(w.cfg.StateDir, "allocs", "b.json"), []byte("{"), 0o600))
	_, err = w.RepairScope(t.Context(), Scope{Name: "mine"})
	require.NoError(t, err, "nobody knows whose b is")
	_, err = w.RepairScope(t.Context(), Scope{})
	require.Error(t, err)
}

// TestGCScopeDestroysNetns of its own allocations, also what a crash left of one, and
// those of no other scope.
func TestGCScopeDestroysNetns(t *testing.T) {
	w, foreign := ownWorld(t)
	crashed := func(id, scope string) string {
		a := Allocation{ID: id, OwnNetns: true, Scope: scope}
		require.NoError(t, w.nameNetns(&a))
		made, err := w.makeNetns(&a)
		require.NoError(t, err)
		require.True(t, made)
		return a.Netns
	}
	mine, other, unscoped := crashed("mine", "s"), crashed("other", "t"), crashed("unscoped", "")
	for id, scope := range map[string]string{"a": "s", "b": "t"} {
		_, err := w.Setup(t.Context(), Allocation{ID: id, OwnNetns: true, Scope: scope})
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
		plan, err := w.PlanGC(t.Context(), c.scope)
		require.NoError(t, err)
		require.Equal(t, c.destroyed, plan.Destroyed)
		report, err := w.GCScope(t.Context(), c.scope)
		require.NoError(t, err)
		require.Equal(t, c.destroyed, report.Destroyed)
	}
	w.requireNoOwn(foreign)
}
