package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
)

// TestFormats reads a record of each format that versions have written. The
// samples stay as they are: a change of the format adds one.
func TestFormats(t *testing.T) {
	samples, err := filepath.Glob("testdata/formats/*.json")
	require.NoError(t, err)
	require.Len(t, samples, 2)
	for _, sample := range samples {
		text, err := os.ReadFile(sample)
		require.NoError(t, err)
		state := t.TempDir()
		s := Open(state)
		require.NoError(t, os.MkdirAll(s.dir, 0o700))
		require.NoError(t, os.Chmod(state, 0o700))
		require.NoError(t, os.WriteFile(s.file("web"), text, 0o600))
		r, err := s.Get("web")
		require.NoError(t, err, sample)
		require.Equal(t, "web", r.ID)
		require.Equal(t, "/run/netns/web", r.Netns)
		require.Equal(t, Ready, r.Phase)
		require.Equal(t, "allocnet", r.Attachments[0].Network)
		require.Equal(t, 8080, r.Ports[0].HostPort)
		require.Contains(t, string(r.Attachments[0].Config), "host-local")
		require.Contains(t, string(r.Attachments[0].Result), "10.202.0.2/16")

		newer := strings.Replace(string(text), `"version":1`, `"version":2`, 1)
		require.NotEqual(t, string(text), newer)
		require.NoError(t, os.WriteFile(s.file("web"), []byte(newer), 0o600))
		_, err = s.Get("web")
		require.ErrorIs(t, err, allocnet.ErrNewer)
		kept, err := os.ReadFile(s.file("web"))
		require.NoError(t, err)
		require.Equal(t, newer, string(kept), "it is not touched")
	}
}
