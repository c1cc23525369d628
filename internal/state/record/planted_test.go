package record

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/portmap"
)

// life is all that can be done with a record.
func life(t *testing.T, s *Store) error {
	r := reserving("a", "/n/a", tcp(80, ""))
	unlock, err := s.Lock(t.Context(), "a")
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.Reserve(t.Context(), r, func(error) {}); err != nil {
		return err
	}
	done, err := s.First(t.Context(), "net")
	if err != nil {
		return err
	}
	done(true)
	r.Ports = []portmap.Mapping{tcp(80, "192.0.2.1")} // another reservation of the same port
	r.Phase = Ready
	if err := errors.Join(s.Put(r), s.Update(r)); err != nil {
		return err
	}
	if _, err = s.Get("a"); err != nil {
		return err
	}
	_, err = s.List()
	return errors.Join(err, s.Sweep(t.Context()), s.Delete("a"))
}

// TestPlanted: a file that another user put into a state directory is replaced, or an
// error names it. It is neither followed nor waited for.
func TestPlanted(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	kinds := map[string]func(path string) error{
		"symbolic link": func(path string) error { return os.Symlink(victim, path) },
		"link to a pipe": func(path string) error {
			return errors.Join(unix.Mkfifo(victim+".pipe", 0o600), os.Symlink(victim+".pipe", path))
		},
		"named pipe":     func(path string) error { return unix.Mkfifo(path, 0o600) },
		"hard link":      func(path string) error { return os.Link(victim, path) },
		"directory link": func(path string) error { return os.Symlink(filepath.Dir(victim), path) },
		"writable file": func(path string) error {
			return errors.Join(os.WriteFile(path, []byte("{}"), 0o600), os.Chmod(path, 0o666))
		},
	}
	if os.Geteuid() == 0 {
		kinds["foreign file"] = func(path string) error {
			return errors.Join(os.WriteFile(path, []byte("{}"), 0o600), os.Chown(path, 4242, 4242))
		}
	}
	for kind, plant := range kinds {
		for _, place := range []string{
			"lock", "allocs", "claims", "warm", "leases", "allocs/a.json", "allocs/.a.json", "claims/complete-3",
			"claims/.a", "claims/port-80", "claims/port-80/a", "warm/net",
		} {
			t.Run(kind+" "+place, func(t *testing.T) {
				_ = os.Remove(victim + ".pipe")
				require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
				s := open(t)
				path := filepath.Join(s.state, place)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				if err := os.RemoveAll(path); err != nil {
					require.NoError(t, err)
				}
				err := plant(path)
				skip.Unless(t, !errors.Is(err, unix.EINVAL), "a user namespace has no such user")
				require.NoError(t, err)
				ended := make(chan error, 1)
				go func() { ended <- life(t, s) }()
				select {
				case err := <-ended:
					if err != nil {
						require.ErrorContains(t, err, path)
					}
				case <-time.After(time.Minute):
					t.Fatal("it is waited for")
				}
				data, err := os.ReadFile(victim)
				require.NoError(t, err)
				require.Equal(t, "precious", string(data))
				entries, err := os.ReadDir(filepath.Dir(victim))
				require.NoError(t, err)
				for _, e := range entries {
					require.Contains(t, []string{"victim", "victim.pipe"}, e.Name(), "nothing was made elsewhere")
				}
			})
		}
	}
}

// TestListNamesWhatIsNoRecord: what is in the place of a record is not overlooked.
func TestListNamesWhatIsNoRecord(t *testing.T) {
	for kind, plant := range map[string]func(path string) error{
		"symbolic link": func(path string) error { return os.Symlink("/nowhere", path) },
		"named pipe":    func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		s := open(t)
		require.NoError(t, life(t, s))
		path := filepath.Join(s.state, "allocs/b.json")
		require.NoError(t, plant(path))
		_, err := s.List()
		require.ErrorContains(t, err, path, kind)
	}
}

// TestStateDirectoryOfOthers is not used.
func TestStateDirectoryOfOthers(t *testing.T) {
	s := open(t)
	require.NoError(t, life(t, s))
	require.NoError(t, os.Chmod(s.state, 0o777))
	err := life(t, s)
	require.ErrorIs(t, err, statedir.ErrNotOurs)
	require.ErrorContains(t, err, s.state)
	require.ErrorContains(t, err, "chmod it go-w")
	_, err = s.List()
	require.ErrorIs(t, err, statedir.ErrNotOurs)
	require.ErrorIs(t, s.Sweep(t.Context()), statedir.ErrNotOurs)
	require.NoError(t, os.Chmod(s.state, 0o755))
	require.NoError(t, life(t, s))
}

// TestReservationsOfOtherUsers do not count: they are looked at when their directory is opened,
// whenever it became others'.
func TestReservationsOfOtherUsers(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Put(reserving("a", "/n/1", tcp(80, ""))))
	c := reservationsOf("/n/1", []portmap.Mapping{tcp(80, "")})[1]
	dir := s.index.dir(c.key)
	require.NoError(t, os.Chmod(dir, 0o777))
	_, err := s.index.holders(c)
	require.ErrorIs(t, err, statedir.ErrNotOurs)
	require.ErrorContains(t, err, dir)
	require.ErrorIs(t, s.Sweep(t.Context()), statedir.ErrNotOurs)
	require.NoError(t, os.Chmod(dir, 0o700))
	ids, err := s.index.holders(c)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, ids)
}

// TestPlantedDirectories: where the leases of the embedded network, policies, or results,
// would go elsewhere, nothing is created.
func TestPlantedDirectories(t *testing.T) {
	for _, place := range []string{"leases/allocnet", "leases/.allocnet", "leases/.allocnet/allocnet", "policies", "policies/members", "warm", "cni-cache", "cni-cache/results"} {
		t.Run(place, func(t *testing.T) {
			s := open(t)
			path := filepath.Join(s.state, place)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			require.NoError(t, os.Symlink(t.TempDir(), path))
			err := life(t, s)
			require.ErrorIs(t, err, statedir.ErrNotOurs)
			require.ErrorContains(t, err, path)
		})
	}
}
