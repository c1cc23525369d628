package configurator

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
)

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
