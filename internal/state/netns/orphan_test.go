package netns

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// TestOrphansOf: the namespace of an allocation is no orphan if a Setup has written the record after
// Orphans has looked for those without one.
func TestOrphansOf(t *testing.T) {
	privhost.Require(t)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	n := &Notes{Store: record.Open(dir), Dir: "/run/own"}
	s, err := sandbox.CreateIn(n.Dir, "web")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	identity, err := s.Identity()
	require.NoError(t, err)
	require.NoError(t, n.Store.AddSandbox("web", record.Sandbox{Path: s.Path(), Identity: identity, Boot: "this"}))
	orphans := func() []string {
		t.Helper()
		list, err := n.orphansOf("web", "this")
		require.NoError(t, err)
		return list
	}
	require.Equal(t, []string{s.Path()}, orphans())
	unlock, err := n.Store.Lock(t.Context(), "web")
	require.NoError(t, err)
	require.Empty(t, orphans(), "an operation works on the allocation")
	unlock()
	require.NoError(t, n.Store.Put(&record.Record{Version: record.Version, ID: "web", Phase: record.Ready, Netns: s.Path()}))
	require.Empty(t, orphans())
}
