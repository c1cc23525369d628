package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/testing/filetree"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
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

// TestFormatsOfReservations: reservations of each format hold against new allocations.
func TestFormatsOfReservations(t *testing.T) {
	samples, err := filepath.Glob("testdata/formats/*.tree")
	require.NoError(t, err)
	require.Len(t, samples, 2)
	for _, sample := range samples {
		state := t.TempDir()
		require.NoError(t, os.Chmod(state, 0o700))
		filetree.Make(t, state, sample)
		s := Open(state)
		blocks := strings.Contains(sample, "blocks")
		for _, test := range []struct {
			port   portmap.Mapping
			holder string
		}{
			{tcp(8080, ""), "web"},
			{tcp(8080, "192.0.2.9"), "web"},
			{tcp(5353, "192.0.2.1"), ""},
			{portmap.Mapping{HostPort: 5353, Protocol: "udp", HostIP: "192.0.2.1"}, "web"},
			{portmap.Mapping{HostPort: 5353, Protocol: "udp", HostIP: "192.0.2.2"}, ""},
			{tcp(20128, ""), map[bool]string{true: "many"}[blocks]},
			{tcp(20129, ""), ""},
		} {
			err := s.Reserve(t.Context(), reserving("new", "/run/netns/new", test.port), unwarned(t))
			if test.holder == "" {
				require.NoError(t, err, "%s: %+v", sample, test)
				continue
			}
			var conflict *portmap.ConflictError
			require.ErrorAs(t, err, &conflict, "%s: %+v", sample, test)
			require.Contains(t, err.Error(), test.holder)
		}
		var taken *NetnsError
		require.ErrorAs(t, s.Reserve(t.Context(), reserving("other", "/run/netns/web"), unwarned(t)), &taken)
		require.Equal(t, "web", taken.OtherID)

		list, err := s.Sandboxes("web")
		require.NoError(t, err)
		require.Equal(t, []Sandbox{{
			Path: "/run/netns/web", Identity: sandbox.Identity{Device: 4, Inode: 4026532317, Cookie: 184001}, Boot: "36c932a4-a74a-4b61-88bc-e42de74c9856",
		}}, list)
	}
}
