package configurator

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
)

// TestGCOfInvalidIDs: GC removes nothing if its list has an ID that no allocation can have.
func TestGCOfInvalidIDs(t *testing.T) {
	h, _ := nativeHost(t, "1.1.0")
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	for _, id := range []string{"", "../a", "a\n"} {
		for _, collect := range []func(context.Context, Scope) (*GCReport, error){h.GCScope, h.PlanGC} {
			report, err := collect(t.Context(), Scope{Live: []string{"b", id}})
			require.ErrorIs(t, err, ErrInvalidAllocation)
			require.ErrorContains(t, err, "live allocation 2 of 2")
			require.Empty(t, report.Removed)
		}
	}
	require.NoError(t, h.Check(t.Context(), Allocation{ID: "a"}))
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
}

// TestGCOfANamedScopeRunsNoPlugin: GC of a named scope runs no plugin, unless a
// runtime lists the valid attachments. So what another runtime made with the
// plugins on the same network stays, as does another scope's allocation without
// a record.
func TestGCOfANamedScopeRunsNoPlugin(t *testing.T) {
	h, leases := nativeHost(t, "1.1.0")
	for id, scope := range map[string]string{"dead": "mine", "live": "mine", "lost": "other"} {
		a := h.alloc(id)
		a.Scope = scope
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	h.lose("lost")
	lease := filepath.Join(leases, "net", "10.77.0.200")
	require.NoError(t, os.WriteFile(lease, []byte("foreign\r\neth0"), 0o600))
	scope := Scope{Name: "mine", Live: []string{"live"}, Networks: []string{"net"}}
	report, err := h.GCScope(t.Context(), scope)
	require.NoError(t, err)
	requireReport(t, &GCReport{Removed: []string{"dead"}, Kept: []string{"live"}}, report)
	require.ElementsMatch(t, []string{"live", "lost", "foreign"}, leaseHolders(t, filepath.Dir(lease)))

	scope.Attachments = []types.GCAttachment{} // the list of a runtime without attachments
	_, err = h.GCScope(t.Context(), scope)
	require.NoError(t, err)
	require.Equal(t, []string{"live"}, leaseHolders(t, filepath.Dir(lease)))
	_, err = h.GCScope(t.Context(), Scope{Name: "mine"})
	require.NoError(t, err)
	h.requireNoRecords()
}

// TestGCKeepsAnotherScopesNewAllocation: GC of the scope "" lists the records before an allocation of
// another scope writes its own, and the owners of links after that. It does not take it for a lost one.
func TestGCKeepsAnotherScopesNewAllocation(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`)
	a := h.alloc("a")
	a.Scope = "other"
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	file := filepath.Join(h.cfg.StateDir, "allocs", "a.json")
	require.NoError(t, os.Rename(file, file+".later"))
	known, err := h.known(t.Context(), Scope{})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, known.dead)
	require.NoError(t, os.Rename(file+".later", file))
	report := &GCReport{}
	_, err = h.collectAll(t.Context(), known, Scope{}, report)
	require.NoError(t, err)
	require.Empty(t, report.Removed)
	require.Equal(t, []string{"a"}, report.Kept)
	require.NoError(t, h.Check(t.Context(), a))
}

// TestCreatedAfterTheLock: an allocation counts as created when its Setup has the lock.
func TestCreatedAfterTheLock(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`)
	a := h.alloc("a")
	unlock, err := h.lock(t.Context(), a.ID)
	require.NoError(t, err)
	planned, ended := make(chan struct{}, 1), make(chan error, 1)
	now := h.now
	h.now = func() time.Time {
		select {
		case planned <- struct{}{}:
		default:
		}
		return now()
	}
	go func() {
		_, err := h.Setup(context.WithoutCancel(t.Context()), a)
		ended <- err
	}()
	<-planned
	released := now()
	unlock()
	require.NoError(t, <-ended)
	r, err := h.Get(t.Context(), a.ID)
	require.NoError(t, err)
	require.False(t, r.Created.Before(released))
}
