package configurator

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
)

// TestGCOfANamedScopeRunsNoPlugin, unless a runtime says which attachments are valid:
// what another runtime made with the plugins on the same network, and what another
// scope's allocation without a record has, stays.
func TestGCOfANamedScopeRunsNoPlugin(t *testing.T) {
	w, leases := nativeWorld(t, "1.1.0")
	for id, scope := range map[string]string{"dead": "mine", "live": "mine", "lost": "other"} {
		a := w.alloc(id)
		a.Scope = scope
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	w.lose("lost")
	lease := filepath.Join(leases, "net", "10.77.0.200")
	require.NoError(t, os.WriteFile(lease, []byte("foreign\r\neth0"), 0o600))
	scope := Scope{Name: "mine", Live: []string{"live"}, Networks: []string{"net"}}
	report, err := w.GCScope(t.Context(), scope)
	require.NoError(t, err)
	requireReport(t, &GCReport{Removed: []string{"dead"}, Kept: []string{"live"}}, report)
	require.ElementsMatch(t, []string{"live", "lost", "foreign"}, leaseHolders(t, filepath.Dir(lease)))

	scope.Attachments = []types.GCAttachment{} // what CNI GC of a runtime without attachments says
	_, err = w.GCScope(t.Context(), scope)
	require.NoError(t, err)
	require.Equal(t, []string{"live"}, leaseHolders(t, filepath.Dir(lease)))
	_, err = w.GCScope(t.Context(), Scope{Name: "mine"})
	require.NoError(t, err)
	w.requireNoRecords()
}
