package record

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

// allFiles returns all files and directories below the state directory.
func allFiles(t *testing.T, s *Store) []string {
	t.Helper()
	files := []string{}
	require.NoError(t, filepath.WalkDir(s.state, func(path string, _ os.DirEntry, err error) error {
		files = append(files, path)
		return err
	}))
	return files
}

// TestSweepAfterKills: a sweep removes what killed operations left incomplete.
func TestSweepAfterKills(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Reserve(t.Context(), reserving("lives", "/n/lives", tcp(80, "")), unwarned(t)))
	require.NoError(t, s.Sweep(t.Context()))
	before := allFiles(t, s)
	for i := range 200 {
		id, port := fmt.Sprintf("killed-%d", i), tcp(1000+i, "")
		reservations := reservationsOf("/n/"+id, []portmap.Mapping{port})
		switch i % 5 {
		case 0: // a reservation was created
			require.NoError(t, s.index.makeDir(reservations[1].key))
		case 1: // half a record was written
			require.NoError(t, os.WriteFile(s.draft(id), []byte("half"), 0o600))
		case 2: // and its reservations before it
			for _, c := range reservations {
				require.NoError(t, s.index.add(id, c))
			}
			require.NoError(t, os.WriteFile(s.draft(id), nil, 0o600))
		case 3: // a reservation was to become a wider one
			require.NoError(t, os.Symlink(everything, s.index.draft(id)))
		case 4: // a reservation was given back, and its directory was not
			require.NoError(t, s.index.add(id, reservations[0]))
			require.NoError(t, os.Remove(s.index.link(reservations[0].key, id)))
		}
	}
	require.NoError(t, os.WriteFile(s.draft("busy"), nil, 0o600))
	unlock, err := Open(s.state).Lock(t.Context(), "busy")
	require.NoError(t, err)
	require.NoError(t, s.Sweep(t.Context()))
	require.ElementsMatch(t, append(before, s.draft("busy")), allFiles(t, s), "who works keeps his draft")
	unlock()
	require.NoError(t, s.Sweep(t.Context()))
	require.Equal(t, before, allFiles(t, s))
}

// TestSweepDuringReservations: Sweep does not remove reservations that are
// being made.
func TestSweepBesideReservations(t *testing.T) {
	s := open(t)
	other := Open(s.state)
	stop := make(chan struct{})
	swept := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				swept <- nil
				return
			default:
				if err := other.Sweep(t.Context()); err != nil {
					swept <- err
					return
				}
			}
		}
	}()
	for i := range 100 {
		id := fmt.Sprint("a", i%3)
		unlock, err := s.Lock(t.Context(), id)
		require.NoError(t, err)
		r := reserving(id, "/n/"+id, tcp(80+i%3, ""))
		require.NoError(t, s.Reserve(t.Context(), r, unwarned(t)))
		r.Ports = append(r.Ports, tcp(80+i%3, "192.0.2.1"))
		require.NoError(t, s.Put(r))
		require.Contains(t, stateFiles(t, s), fmt.Sprintf("claims/port-%d/%s", 80+i%3, id))
		require.NoError(t, s.Delete(id))
		unlock()
	}
	close(stop)
	require.NoError(t, <-swept)
}

// TestFirstUseMarkersAreBounded: allocations may bring their own networks with
// any names.
func TestFirstUseMarkersAreBounded(t *testing.T) {
	s := open(t)
	for i := range maxMarkers + 1 {
		s.markUsed([]string{fmt.Sprint("net", i)})
	}
	require.True(t, s.used([]string{"net1"}))
	require.NoError(t, s.Sweep(t.Context()))
	entries, err := os.ReadDir(s.markerDir())
	require.NoError(t, err)
	require.Empty(t, entries)
}
