package kernel

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNeighbourLimit(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	l := &limits{root: root}
	again := func() error { l.looked = time.Time{}; return l.check() }
	require.NoError(t, again(), "what cannot be seen is no limit")

	write("sys/net/ipv4/neigh/default/gc_thresh3", "1024\n")
	write("sys/net/ipv6/neigh/default/gc_thresh3", "16\n")
	write("net/stat/arp_cache", "entries  allocs   destroys\n000003ff  00000016 0000000a\n000003ff  0 0\n")
	write("net/stat/ndisc_cache", "entries,allocs\n0000000f  00000016\n")
	require.NoError(t, again())

	write("net/stat/arp_cache", "entries  allocs   destroys\n00000400  00000016 0000000a\n")
	require.NoError(t, l.check(), "the answer serves for a while")
	err := again()
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "1024 entries")
	require.ErrorContains(t, err, "net.ipv4.neigh.default.gc_thresh3")
	require.NotContains(t, err.Error(), "ipv6")

	write("net/stat/ndisc_cache", "entries\n00000010\n")
	require.ErrorContains(t, again(), "net.ipv6.neigh.default.gc_thresh3")
	write("net/stat/arp_cache", "entries\n")
	write("net/stat/ndisc_cache", "entries\nxyz\n")
	require.NoError(t, again())
}
