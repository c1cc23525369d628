package bridges

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func none() (map[string]int, error) { return nil, nil }

func with(dir string, present func() (map[string]int, error)) *Store {
	s := In(dir)
	s.usual, s.present = dir, present // no other
	return s
}

func requireCreated(t *testing.T, s *Store, want bool, names ...string) {
	t.Helper()
	for _, name := range names {
		created, err := s.Created(name, 7)
		require.NoError(t, err)
		require.Equal(t, want, created, name)
	}
}

func TestBridges(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := with(dir, none)
	requireCreated(t, s, true, "br0", "br1") // as before there was a record
	require.NoError(t, s.Begin())
	requireCreated(t, s, false, "br0", "br1")
	require.NoError(t, s.Add("br0", 7))
	require.NoError(t, s.Add("br0", 7))
	other := with(dir, func() (map[string]int, error) { return nil, errors.New("it was begun") }) // another process
	require.NoError(t, other.Begin())
	requireCreated(t, other, true, "br0")
	requireCreated(t, other, false, "br1")
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, s.Add("br1", 0))
	requireCreated(t, s, true, "br1")
}

// TestAtTheSameTime: several Setups find the bridge missing and create it, while others ask for the record.
func TestAtTheSameTime(t *testing.T) {
	for range 20 {
		dir := filepath.Join(t.TempDir(), "state")
		var working sync.WaitGroup
		var made atomic.Bool
		var errs [9]error
		for i := range 8 {
			s := with(dir, none)
			require.NoError(t, s.Begin())
			working.Go(func() {
				errs[i] = s.Create(t.Context(), "br0", func() (int, error) {
					if made.Swap(true) {
						return 0, nil
					}
					return 7, nil
				}, nil)
			})
		}
		reader := with(dir, none)
		working.Go(func() {
			for errs[8] == nil && !made.Load() {
				_, errs[8] = reader.Recorded("br0", 7)
			}
		})
		working.Wait()
		require.NoError(t, errors.Join(errs[:]...))
		index, err := reader.Index("br0")
		require.NoError(t, err)
		require.Equal(t, 7, index)
	}
}

// TestNotCreated: a bridge that another program has created meanwhile, or that cannot be created, stays as it was recorded.
func TestNotCreated(t *testing.T) {
	s := with(t.TempDir(), none)
	require.NoError(t, s.Begin())
	trouble := errors.New("trouble")
	require.NoError(t, s.Create(t.Context(), "br0", func() (int, error) { return 0, nil }, nil))
	require.ErrorIs(t, s.Create(t.Context(), "br0", func() (int, error) { return 0, trouble }, nil), trouble)
	requireCreated(t, s, false, "br0")
	require.NoError(t, s.Add("br0", 7))
	require.ErrorIs(t, s.Create(t.Context(), "br0", func() (int, error) {
		requireCreated(t, s, true, "br0") // a process that is killed here has created it
		return 0, trouble
	}, nil), trouble)
	index, err := s.Index("br0")
	require.NoError(t, err)
	require.Equal(t, 7, index)
}

// TestNotRecorded: no bridge stays that cannot be recorded, unless it cannot be deleted either.
func TestNotRecorded(t *testing.T) {
	for _, trouble := range []error{nil, errors.New("trouble")} {
		s := with(t.TempDir(), none)
		require.NoError(t, s.Begin())
		undone := 0
		obstacle := filepath.Join(s.dir, ":draft")
		err := s.Create(t.Context(), "br0", func() (int, error) {
			return 7, os.MkdirAll(filepath.Join(obstacle, "in"), 0o700)
		}, func() error {
			undone++
			return errors.Join(trouble, os.RemoveAll(obstacle))
		})
		require.ErrorContains(t, err, `record bridge "br0"`)
		require.Equal(t, 1, undone)
		if trouble != nil {
			require.ErrorIs(t, err, trouble)
		}
		requireCreated(t, s, trouble != nil, "br0")
	}
}

// TestAnotherBridge: a bridge that another program has created again under the name is not the recorded one.
func TestAnotherBridge(t *testing.T) {
	s := with(t.TempDir(), none)
	require.NoError(t, s.Begin())
	for _, c := range []struct {
		recorded, index int
		want            bool
	}{{7, 7, true}, {7, 8, false}, {7, 0, true}, {0, 8, true}} {
		require.NoError(t, s.Add("br0", c.recorded))
		created, err := s.Created("br0", c.index)
		require.NoError(t, err)
		require.Equal(t, c.want, created, c)
	}
}

// TestUpgrade: what an earlier version may have created counts.
func TestUpgrade(t *testing.T) {
	s := with(t.TempDir(), none)
	trouble := errors.New("trouble")
	s.present = func() (map[string]int, error) { return nil, trouble }
	require.ErrorIs(t, s.Begin(), trouble)
	s.present = func() (map[string]int, error) { return map[string]int{"br0": 7}, nil }
	require.NoError(t, s.Begin())
	requireCreated(t, s, true, "br0")
	requireCreated(t, s, false, "br1")
}

func TestWithoutRecord(t *testing.T) {
	var s *Store
	require.NoError(t, s.Begin())
	require.NoError(t, s.Add("br0", 7))
	requireCreated(t, s, true, "br0")
}

func TestIndex(t *testing.T) {
	s := with(t.TempDir(), none)
	require.NoError(t, s.Begin())
	for _, want := range []int{0, 7, 0} {
		if want != 0 {
			require.NoError(t, s.Add("br0", want))
		}
		index, err := s.Index("br0")
		require.NoError(t, err)
		require.Equal(t, want, index)
		if want != 0 { // as before the bridge is created
			require.NoError(t, s.Add("br0", 0))
		}
	}
	index, err := (*Store)(nil).Index("br0")
	require.NoError(t, err)
	require.Zero(t, index)
}

func TestNames(t *testing.T) {
	s := with(t.TempDir(), none)
	require.NoError(t, s.Begin())
	for _, name := range []string{"../br0", "a/b", "..", ".", ""} {
		require.ErrorContains(t, s.Add(name, 7), "not the name of an interface", name)
	}
}

func TestUnreadable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	s := with(dir, none)
	require.ErrorContains(t, s.Begin(), "record of created bridges")
	require.ErrorContains(t, s.Add("br0", 7), `record bridge "br0"`)
	_, err := s.Created("br0", 7)
	require.Error(t, err)
}
