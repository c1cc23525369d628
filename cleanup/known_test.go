package cleanup

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReleased: an address no longer belongs to the target if another allocation
// leases it, or if it is not leased and only host-local can have leased it.
func TestReleased(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "net"), 0o700))
	for addr, holder := range map[string]string{"10.1.0.2": "a", "10.1.0.3": "b"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "net", addr), []byte(holder+"\r\neth0"), 0o600))
	}
	result := json.RawMessage(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/s"}],"ips":[
		{"address":"10.1.0.2/24","interface":0},{"address":"10.1.0.3/24","interface":0},{"address":"10.1.0.4/24","interface":0}]}`)
	for plugins, want := range map[string][]string{
		`{"type":"bridge","ipam":{"type":"host-local","dataDir":%q}}`:                        {"10.1.0.3", "10.1.0.4"},
		`{"type":"bridge","ipam":{"type":"host-local","dataDir":%q}},{"type":"host-device"}`: {"10.1.0.3"},
		`{"type":"bridge","ipam":{"type":"static","dataDir":%q}}`:                            nil,
	} {
		released, err := Released(t.Context(), Target{ID: "a", Attachments: []Attachment{{
			Network: "net", IfName: "eth0", Result: result,
			Config: fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"net","plugins":[`+plugins+`]}`, dir),
		}}})
		require.NoError(t, err)
		var got []string
		for _, addr := range released {
			got = append(got, addr.String())
		}
		require.Equal(t, want, got, plugins)
	}
}
