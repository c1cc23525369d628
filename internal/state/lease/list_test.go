package lease

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var blueRange = anyOf(ranges("10.0.0.2-10.0.0.9"))

// TestRemoveKeepsTheIndex: Remove keeps the index valid, also if the caller is
// not the owner's plugin.
func TestRemoveKeepsTheIndex(t *testing.T) {
	s := newStore(t)
	for _, id := range []string{"a", "b", "c"} {
		reserve(t, s, eth0(id), blueRange...)
	}
	require.True(t, isSigned(t, s))
	leases, err := s.List()
	require.NoError(t, err)
	require.Equal(t, []Lease{{one("10.0.0.2"), eth0("a")}, {one("10.0.0.3"), eth0("b")}, {one("10.0.0.4"), eth0("c")}}, leases)

	removed, err := s.Remove(t.Context(), leases[:2])
	require.NoError(t, err)
	require.Equal(t, leases[:2], removed)
	require.True(t, isSigned(t, s))
	requireTruth(t, s)
	held, err := s.Lookup(t.Context(), eth0("a"))
	require.NoError(t, err)
	require.Empty(t, held)

	again, err := s.Remove(t.Context(), leases)
	require.NoError(t, err, "two of them are gone")
	require.Equal(t, leases[2:], again)
	requireTruth(t, s)
}

// TestRemoveOfChangedLease: a lease that has another owner now stays.
func TestRemoveOfChangedLease(t *testing.T) {
	s := newStore(t)
	reserve(t, s, eth0("a"), blueRange...)
	leases, err := s.List()
	require.NoError(t, err)
	write(t, s, "10.0.0.2", eth0("b").text())
	removed, err := s.Remove(t.Context(), leases)
	require.NoError(t, err)
	require.Empty(t, removed)
	require.Equal(t, map[string]string{"10.0.0.2": eth0("b").text()}, dump(t, s))
}

// TestListWithoutDirectory: there are no leases, and listing creates no
// directory.
func TestListWithoutDirectory(t *testing.T) {
	s := newStore(t)
	leases, err := s.List()
	require.NoError(t, err)
	require.Empty(t, leases)
	removed, err := s.Remove(t.Context(), []Lease{{one("10.0.0.2"), eth0("a")}})
	require.NoError(t, err)
	require.Empty(t, removed)
	require.NoDirExists(t, s.Dir())
}

// TestListErrors: an unreadable lease is an error, and hides no other.
func TestListErrors(t *testing.T) {
	s := newStore(t)
	write(t, s, "10.0.0.2", eth0("a").text())
	listen, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(listen)
	require.NoError(t, unix.Bind(listen, &unix.SockaddrUnix{Name: filepath.Join(s.Dir(), "10.0.0.1")})) // open(2) fails
	leases, err := s.List()
	require.ErrorIs(t, err, unix.ENXIO)
	require.Equal(t, []Lease{{one("10.0.0.2"), eth0("a")}}, leases)
}

func TestNetworks(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"blue", "red", ".allocnet"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	networks, err := Networks(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"blue", "red"}, networks)
	networks, err = Networks(filepath.Join(dir, "none"))
	require.NoError(t, err)
	require.Empty(t, networks)
	_, err = Networks(filepath.Join(dir, "file"))
	require.ErrorIs(t, err, unix.ENOTDIR)
}

// TestAbandoned: Abandoned creates no lock file, and waits for an existing
// lock.
func TestAbandoned(t *testing.T) {
	s := newStore(t)
	write(t, s, "10.0.0.2", "")
	write(t, s, "10.0.0.3", "")
	leases, err := s.List()
	require.NoError(t, err)
	write(t, s, "10.0.0.3", eth0("a").text())
	empty, err := s.Abandoned(t.Context(), leases)
	require.NoError(t, err)
	require.Equal(t, []Lease{{Addr: one("10.0.0.2")}}, empty)
	require.NoFileExists(t, filepath.Join(s.Dir(), "lock"))

	lock, err := s.lock(t.Context())
	require.NoError(t, err)
	defer lock.unlock()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Abandoned(ended, leases)
	require.ErrorIs(t, err, context.Canceled)
}
