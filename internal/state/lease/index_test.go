package lease

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFlatCost: no operation reads all leases, however many there are.
func TestFlatCost(t *testing.T) {
	s := newStore(t)
	wide := ranges("10.0.0.1-10.0.63.254")
	for i := range 1000 {
		write(t, s, fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), fmt.Sprintf("old%d\r\neth0", i))
	}
	require.NoError(t, os.WriteFile(s.lastPath(0), []byte("10.0.3.250"), 0o600))
	reserve(t, s, eth0("first"), anyOf(wide)...)

	done := steps(s)
	reserve(t, s, eth0("one"), anyOf(wide, fd00)...)
	_, err := s.Lookup(t.Context(), eth0("one"))
	require.NoError(t, err)
	require.NoError(t, s.Release(t.Context(), eth0("one")))
	require.NoError(t, s.Release(t.Context(), eth0("old77")))
	require.Equal(t, []string{
		"create lease", "write lease", "write last", "create lease", "write lease", "write last", "index", "sign",
		"remove lease", "remove lease", "index", "sign",
		"remove lease", "index", "sign",
	}, *done)
	require.Len(t, dump(t, s), 1000)
	requireTruth(t, s)
}

// TestDistrust: after any change by another program, all leases are read once.
func TestDistrust(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, s *Store){
		"a lease more":                 func(t *testing.T, s *Store) { write(t, s, "10.0.0.9", "other\r\neth0") },
		"a lease less":                 func(t *testing.T, s *Store) { require.NoError(t, os.Remove(s.path(one("10.0.0.2")))) },
		"another time":                 func(t *testing.T, s *Store) { require.NoError(t, os.Chtimes(s.dir, testTime, testTime)) },
		"no index":                     func(t *testing.T, s *Store) { require.NoError(t, os.RemoveAll(s.links)) },
		"no index of all networks":     func(t *testing.T, s *Store) { require.NoError(t, os.RemoveAll(filepath.Dir(s.links))) },
		"the directory anew and empty": func(t *testing.T, s *Store) { require.NoError(t, os.RemoveAll(s.dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			for _, id := range []string{"one", "two", "three"} {
				reserve(t, s, eth0(id), anyOf(ten)...)
			}
			change(t, s)
			done := steps(s)
			reserve(t, s, eth0("four"), anyOf(ten)...)
			require.Contains(t, *done, "rebuild")
			requireTruth(t, s)
			require.True(t, isSigned(t, s))
			*done = nil
			got, err := s.Lookup(t.Context(), eth0("other"))
			require.NoError(t, err)
			require.Equal(t, name == "a lease more", len(got) == 1)
			reserve(t, s, eth0("five"), anyOf(ten)...)
			require.NotContains(t, *done, "rebuild")
		})
	}
}

// TestEditedInPlace: Release finds the owner's lease in a file that another program
// wrote to, which leaves the directory's signature as it was.
func TestEditedInPlace(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		owner   Owner
		known   string
	}{
		"the old format":           {"one", eth0("one"), ""},
		"white space":              {" one\r\neth0 \r\n", eth0("one"), ""},
		"another holder":           {"other\r\neth0", eth0("other"), "10.0.0.2"},
		"another, in the old form": {"other", eth0("other"), "10.0.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			reserve(t, s, eth0("one"), anyOf(ten)...)
			reserve(t, s, eth0("two"), anyOf(ten)...)
			edit, err := os.OpenFile(s.path(one("10.0.0.2")), os.O_WRONLY|os.O_TRUNC, 0)
			require.NoError(t, err)
			_, err = edit.WriteString(c.content)
			require.NoError(t, errors.Join(err, edit.Close()))
			require.True(t, isSigned(t, s))
			if c.known == "" {
				held, err := s.Lookup(t.Context(), c.owner)
				require.NoError(t, err)
				require.Equal(t, addrs("10.0.0.2"), held)
			}
			require.NoError(t, s.Release(t.Context(), c.owner, addrs(c.known)...))
			require.Len(t, dump(t, s), 1)
			requireTruth(t, s)
			require.True(t, isSigned(t, s))
		})
	}
}

// TestReleaseByName: with known addresses, Release need not read all leases,
// even without a valid index.
func TestReleaseByName(t *testing.T) {
	for name, test := range map[string]struct {
		known string
		walks bool
	}{
		"all":                   {"10.0.0.2 fd00::2", false},
		"none":                  {"", true},
		"one that is another's": {"10.0.0.2 10.0.0.3", true},
		"one that nobody has":   {"10.0.0.2 10.0.0.4", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			reserve(t, s, eth0("one"), anyOf(ten, fd00)...)
			write(t, s, "10.0.0.3", "other\r\neth0")
			done := steps(s)
			require.NoError(t, s.Release(t.Context(), eth0("one"), addrs(test.known)...))
			require.Equal(t, map[string]string{"10.0.0.3": "other\r\neth0"}, dump(t, s))
			require.Equal(t, test.walks, len(*done) > 0 && contains(*done, "rebuild"))
			requireTruth(t, s)
		})
	}
}

// TestNoIndexPossible: everything works without the index, and the directory is
// never signed.
func TestNoIndexPossible(t *testing.T) {
	s := newStore(t)
	require.NoError(t, os.WriteFile(filepath.Dir(s.links), nil, 0o600))
	for i := range 3 {
		owner := eth0(fmt.Sprint("c", i))
		reserve(t, s, owner, anyOf(ten)...)
		require.False(t, isSigned(t, s))
		got, err := s.Lookup(t.Context(), owner)
		require.NoError(t, err)
		require.Len(t, got, 1)
		_, err = s.Reserve(t.Context(), owner, anyOf(ten))
		require.ErrorIs(t, err, ErrDuplicate)
	}
	require.NoError(t, s.Release(t.Context(), eth0("c1")))
	removed, err := s.Retain(t.Context(), []Owner{eth0("c0")}, nil)
	require.NoError(t, err)
	require.Equal(t, addrs("10.0.0.4"), removed)
	require.Len(t, dump(t, s), 1)
}

// TestManyAddresses: an owner has more addresses than a link of the index can
// contain.
func TestManyAddresses(t *testing.T) {
	s := newStore(t)
	for i := range 400 {
		write(t, s, fmt.Sprintf("fd00::aaaa:bbbb:%x", i+1), "one\r\neth0")
	}
	reserve(t, s, eth0("two"), anyOf(ten)...)
	require.False(t, isSigned(t, s))
	require.NoError(t, s.Release(t.Context(), eth0("one")))
	require.Equal(t, map[string]string{"10.0.0.2": "two\r\neth0"}, dump(t, s))
}

// TestStaleIndex: a link is used only if it agrees with the leases.
func TestStaleIndex(t *testing.T) {
	s := newStore(t)
	reserve(t, s, eth0("one"), anyOf(ten)...)
	require.NoError(t, os.WriteFile(s.path(one("10.0.0.2")), []byte("other\r\neth0"), 0o600))
	require.True(t, isSigned(t, s))
	got, err := s.Lookup(t.Context(), eth0("one"))
	require.NoError(t, err)
	require.Empty(t, got)
	require.NoError(t, s.Release(t.Context(), eth0("one")))
	require.Len(t, dump(t, s), 1)
	reserve(t, s, eth0("one"), anyOf(ten)...)
}

// TestOddDirectory: directories may have any name.
func TestOddDirectory(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "[a-"), network)
	require.NoError(t, err)
	write(t, s, "10.0.0.2", "one\r\neth0")
	reserve(t, s, eth0("two"), anyOf(ten)...)
	requireTruth(t, s)
	require.True(t, isSigned(t, s))
}

func TestReadlink(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, readlink(dir+"/none"))
	require.Empty(t, readlink(dir))
	for _, n := range []int{1, 127, 128, 129, 1024, 4095} {
		link := fmt.Sprint(dir, "/", n)
		require.NoError(t, os.Symlink(strings.Repeat("x", n), link))
		require.Len(t, readlink(link), n)
	}
}
