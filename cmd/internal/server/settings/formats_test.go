package settings

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFormats reads a file with all settings of each version. The samples stay as they are:
// a setting keeps its meaning, and a version that adds some adds a sample.
func TestFormats(t *testing.T) {
	samples, err := filepath.Glob("testdata/formats/*.hcl")
	require.NoError(t, err)
	require.Len(t, samples, 1)
	for _, sample := range samples {
		text, err := os.ReadFile(sample)
		require.NoError(t, err)
		s := Settings{}
		require.Empty(t, parse(&s, sample, text), sample)
		require.Equal(t, "/etc/cni/net.d", s.ConfDir)
		require.Equal(t, 90*time.Second, s.Timeout)
		require.Equal(t, 3, s.Retry.Attempts)
		require.Equal(t, "/run/allocnet/allocnetd.sock", s.Socket.Path)
	}
}
