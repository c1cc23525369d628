package record

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUnreadableSandboxes: the error names the file.
func TestUnreadableSandboxes(t *testing.T) {
	s := Open(t.TempDir())
	one := Sandbox{Path: "/run/netns/a", Boot: "b"}
	require.NoError(t, s.AddSandbox("a", one))
	list, err := s.Sandboxes("a")
	require.NoError(t, err)
	require.Equal(t, []Sandbox{one}, list)

	file := filepath.Join(s.state, "sandboxes", "a.json")
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	_, err = s.Sandboxes("a")
	require.ErrorContains(t, err, `sandboxes of allocation "a": `+file+": ")
	require.ErrorContains(t, s.AddSandbox("a", one), file)
	require.NoError(t, s.PutSandboxes("a", nil))
	require.NoFileExists(t, file)
}
