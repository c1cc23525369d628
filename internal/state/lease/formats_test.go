package lease

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/filetree"
)

// TestFormats reads leases of each format that versions, and host-local, have written. The
// samples stay as they are: a change of the format adds one.
func TestFormats(t *testing.T) {
	samples, err := filepath.Glob("testdata/formats/*.tree")
	require.NoError(t, err)
	require.Len(t, samples, 4)
	for _, sample := range samples {
		t.Run(filepath.Base(sample), func(t *testing.T) {
			dir := t.TempDir()
			filetree.Make(t, dir, sample)
			s, err := Open(dir, network)
			require.NoError(t, err)
			all, err := s.List()
			require.NoError(t, err)
			require.ElementsMatch(t, []Lease{{one("10.1.0.5"), eth0("web")}, {one("fd00:1::5"), eth0("web")}, {one("10.1.0.6"), Owner{ID: "old"}}}, all)

			done := steps(s)
			for owner, want := range map[Owner][]netip.Addr{eth0("web"): addrs("10.1.0.5 fd00:1::5"), eth0("old"): addrs("10.1.0.6")} {
				got, err := s.Lookup(t.Context(), owner)
				require.NoError(t, err)
				require.ElementsMatch(t, want, got, owner)
			}
			if !strings.Contains(sample, "host-local") {
				require.NotContains(t, *done, "list leases", "the index is valid")
			}
			var lastUse time.Time
			require.Equal(t, addrs("10.1.0.7"), reserve(t, s, eth0("new"), Request{Set: ranges("10.1.0.5-10.1.0.7"), LastUse: &lastUse}))
			if strings.Contains(sample, "lastuse") {
				require.Equal(t, time.Unix(3000000000, 0), lastUse)
			} else {
				require.Less(t, time.Since(lastUse), time.Hour, "it is not known, and may be lately")
			}
			require.NoError(t, s.Release(t.Context(), eth0("old")))
			require.NoError(t, s.Release(t.Context(), eth0("new")))

			// In the next boot, only leases that name an earlier one are reclaimed.
			require.NoError(t, s.InBoot("36c932a4-a74a-4b61-88bc-e42de74c9856").Reclaim(t.Context()))
			held, err := s.Holds(eth0("web"), one("10.1.0.5"))
			require.NoError(t, err)
			require.Equal(t, strings.Contains(sample, "index") || strings.Contains(sample, "host-local"), held)
			require.NoError(t, s.Release(t.Context(), eth0("web")))
			all, err = s.List()
			require.NoError(t, err)
			require.Empty(t, all)
		})
	}
}
