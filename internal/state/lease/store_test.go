package lease

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var (
	ten  = ranges("10.0.0.1-10.0.0.10@10.0.0.1")
	fd00 = ranges("fd00::1-fd00::ffff@fd00::1")
)

// TestInUse: addresses that others have without a lease are not leased.
func TestInUse(t *testing.T) {
	s := newStore(t)
	used := map[netip.Addr]string{addrs("10.0.0.2")[0]: "other", addrs("10.0.0.4")[0]: "other"}
	inUse := func(addr netip.Addr) (string, error) { return used[addr], nil }
	next := func(id string, want netip.Addr) ([]netip.Addr, error) {
		return s.Reserve(t.Context(), eth0(id), []Request{{Set: ten, Address: want, InUse: inUse}})
	}
	got, err := next("one", netip.Addr{})
	require.NoError(t, err)
	require.Equal(t, addrs("10.0.0.3"), got)
	_, err = next("two", addrs("10.0.0.4")[0])
	require.ErrorIs(t, err, ErrTaken)
	require.ErrorContains(t, err, "other has it")
	for i := range 7 {
		got, err := next(fmt.Sprint("more", i), netip.Addr{})
		if i == 6 {
			require.ErrorIs(t, err, ErrExhausted)
			break
		}
		require.NoError(t, err)
		require.Empty(t, used[got[0]])
	}
	require.Len(t, dump(t, s), 7)

	failed := errors.New("the kernel did not answer")
	_, err = s.Reserve(t.Context(), eth0("three"), []Request{{Set: fd00, InUse: func(netip.Addr) (string, error) { return "", failed }}})
	require.ErrorIs(t, err, failed)
	require.Len(t, dump(t, s), 7)
}

// TestOnDisk: the files are those that host-local writes.
func TestOnDisk(t *testing.T) {
	s := newStore(t)
	require.Equal(t, addrs("10.0.0.2 fd00::2"), reserve(t, s, eth0("one"), anyOf(ten, fd00)...))
	require.Equal(t, map[string]string{"10.0.0.2": "one\r\neth0", "fd00::2": "one\r\neth0"}, dump(t, s))
	for name, want := range map[string]string{
		"10.0.0.2": "one\r\neth0", "fd00::2": "one\r\neth0",
		"last_reserved_ip.0": "10.0.0.2", "last_reserved_ip.1": "fd00::2", "lock": "",
	} {
		path := filepath.Join(s.dir, name)
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, string(content), name)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode(), name)
	}
	target, err := os.Readlink(s.link(eth0("one")))
	require.NoError(t, err)
	require.Equal(t, "10.0.0.2 fd00::2", target)
	require.True(t, isSigned(t, s))
}

// TestRoundRobin: a released address is assigned again only after all others.
func TestRoundRobin(t *testing.T) {
	s := newStore(t)
	for turn := range 2 {
		for i := 2; i <= 10; i++ {
			owner := eth0(fmt.Sprintf("c%d-%d", turn, i))
			require.Equal(t, addrs(fmt.Sprint("10.0.0.", i)), reserve(t, s, owner, anyOf(ten)...))
			require.NoError(t, s.Release(t.Context(), owner))
			requireTruth(t, s)
		}
	}
	require.Empty(t, dump(t, s))
}

// TestRestore: lost leases come back to their owner, all or none, and new owners get the
// addresses that they would have got.
func TestRestore(t *testing.T) {
	s := newStore(t)
	reserve(t, s, eth0("one"), anyOf(ten, fd00)...)
	reserve(t, s, eth0("two"), anyOf(ten)...)
	require.NoError(t, os.Remove(s.path(one("10.0.0.2"))))
	require.NoError(t, s.Restore(t.Context(), eth0("one"), one("10.0.0.2")))
	requireTruth(t, s)
	require.Equal(t, map[string]string{"10.0.0.2": "one\r\neth0", "fd00::2": "one\r\neth0", "10.0.0.3": "two\r\neth0"}, dump(t, s))
	require.Equal(t, addrs("10.0.0.4"), reserve(t, s, eth0("three"), anyOf(ten)...))

	require.NoError(t, os.Remove(s.path(one("fd00::2"))))
	before := dump(t, s)
	require.ErrorIs(t, s.Restore(t.Context(), eth0("one"), addrs("fd00::2 10.0.0.3")...), ErrTaken)
	require.Equal(t, before, dump(t, s))
	requireTruth(t, s)
	require.NoError(t, os.RemoveAll(s.dir))
	require.NoError(t, s.Restore(t.Context(), eth0("one"), addrs("10.0.0.2 fd00::2")...))
	require.Len(t, dump(t, s), 2)
}

func TestReserveRefuses(t *testing.T) {
	all := ranges("10.0.0.2-10.0.0.2")
	for name, test := range map[string]struct {
		requests []Request
		is       error
		text     string
	}{
		"a second one": {anyOf(ten), ErrDuplicate,
			"allocate from range set 0: 10.0.0.2 has been allocated to one, duplicate allocation is not allowed"},
		"a second one, the second set": {append(anyOf(fd00), Request{Set: ten}), ErrDuplicate,
			"allocate from range set 1: 10.0.0.2 has been allocated to one, duplicate allocation is not allowed"},
		"one that is taken": {[]Request{{Set: ten, Address: one("10.0.0.2")}}, ErrTaken,
			"requested IP address 10.0.0.2 is not available in range set 10.0.0.1-10.0.0.10"},
		"the gateway": {[]Request{{Set: ten, Address: one("10.0.0.1")}}, ErrNotInRange,
			"requested ip 10.0.0.1 is subnet's gateway"},
		"one of another range": {[]Request{{Set: ten, Address: one("10.0.9.1")}}, ErrNotInRange,
			"requested IP address 10.0.9.1 is not in range set 10.0.0.1-10.0.0.10"},
		"when nothing is left": {[]Request{{Set: fd00, Address: one("fd00::9")}, {Set: all}}, ErrDuplicate, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			reserve(t, s, eth0("one"), anyOf(ten)...)
			before := dump(t, s)
			_, err := s.Reserve(t.Context(), eth0("one"), test.requests)
			require.ErrorIs(t, err, test.is)
			require.ErrorContains(t, err, test.text)
			require.Equal(t, before, dump(t, s), "all was given back")
			require.True(t, isSigned(t, s), "a refusal does not cost the index")
			requireTruth(t, s)
		})
	}
}

func TestExhausted(t *testing.T) {
	s := newStore(t)
	wide := ranges("10.0.0.1-10.0.0.40@10.0.0.20 10.0.1.1-10.0.1.2")
	for i := range 41 {
		reserve(t, s, eth0(fmt.Sprint("c", i)), anyOf(wide)...)
	}
	_, err := s.Reserve(t.Context(), eth0("late"), append(anyOf(fd00), Request{Set: wide}))
	require.ErrorIs(t, err, ErrExhausted)
	require.ErrorContains(t, err, `network "blue": no IP addresses available in range set: `+wide.String())
	require.Len(t, dump(t, s), 41, "the address of the first set was given back")
	requireTruth(t, s)
	require.ErrorIs(t, s.Available([]RangeSet{fd00, wide}), ErrExhausted)

	require.NoError(t, s.Release(t.Context(), eth0("c30")))
	require.NoError(t, s.Available([]RangeSet{fd00, wide}))
	done := steps(s)
	require.Equal(t, addrs("10.0.0.32"), reserve(t, s, eth0("late"), anyOf(wide)...), "the only one left")
	require.Contains(t, *done, "list leases", "not every address was tried")
	require.NotContains(t, *done, "rebuild")
}

// TestEmptyLeases: a crash between creating and writing a lease does not lose
// the address.
func TestEmptyLeases(t *testing.T) {
	wide := ranges("10.0.0.1-10.0.0.20")
	t.Run("in a directory that is not signed", func(t *testing.T) {
		s := newStore(t)
		write(t, s, "10.0.0.3", "")
		reserve(t, s, eth0("one"), anyOf(ten)...)
		require.Equal(t, map[string]string{"10.0.0.2": "one\r\neth0"}, dump(t, s))
	})
	t.Run("the next one", func(t *testing.T) {
		s := newStore(t)
		reserve(t, s, eth0("one"), anyOf(wide)...)
		reserve(t, s, eth0("two"), anyOf(wide)...)
		require.NoError(t, os.Truncate(s.path(one("10.0.0.2")), 0))
		require.Equal(t, addrs("10.0.0.2"), reserve(t, s, eth0("three"), Request{Set: wide, Address: one("10.0.0.2")}))
	})
	t.Run("the last one", func(t *testing.T) {
		s := newStore(t)
		for i := range 20 {
			reserve(t, s, eth0(fmt.Sprint("c", i)), anyOf(wide)...)
		}
		require.ErrorIs(t, s.Available([]RangeSet{wide}), ErrExhausted)
		require.NoError(t, os.Truncate(s.path(one("10.0.0.15")), 0))
		require.True(t, isSigned(t, s))
		require.NoError(t, s.Available([]RangeSet{wide}))
		require.Equal(t, addrs("10.0.0.15"), reserve(t, s, eth0("late"), anyOf(wide)...))
	})
}

// TestOldFormat: a lease that names only the container applies to every
// interface, but with lower precedence.
func TestOldFormat(t *testing.T) {
	s := newStore(t)
	write(t, s, "10.0.0.7", "one")
	_, err := s.Reserve(t.Context(), eth0("one"), anyOf(ten))
	require.ErrorIs(t, err, ErrDuplicate)
	got, err := s.Lookup(t.Context(), eth0("one"))
	require.NoError(t, err)
	require.Equal(t, addrs("10.0.0.7"), got)
	ok, err := s.Holds(eth0("one"), one("10.0.0.7"))
	require.NoError(t, err)
	require.True(t, ok)

	write(t, s, "10.0.0.8", "one\r\neth0")
	require.NoError(t, s.Release(t.Context(), eth0("one")))
	require.Equal(t, map[string]string{"10.0.0.7": "one"}, dump(t, s))
	require.NoError(t, s.Release(t.Context(), eth0("two")))
	require.Len(t, dump(t, s), 1)
	require.NoError(t, s.Release(t.Context(), eth0("one")))
	require.Empty(t, dump(t, s))
	requireTruth(t, s)
}

func TestRetain(t *testing.T) {
	s := newStore(t)
	for _, id := range []string{"one", "two", "three"} {
		reserve(t, s, eth0(id), anyOf(ten, fd00)...)
	}
	reserve(t, s, Owner{"one", "eth1"}, anyOf(ten)...)
	write(t, s, "10.0.0.7", "two")
	write(t, s, "10.0.0.8", "four")
	write(t, s, "10.0.0.9", "")
	removed, err := s.Retain(t.Context(), []Owner{eth0("one"), {"two", "eth7"}}, nil)
	require.NoError(t, err)
	require.Equal(t, addrs("10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.8 fd00::3 fd00::4"), removed)
	require.Equal(t, map[string]string{"10.0.0.2": "one\r\neth0", "fd00::2": "one\r\neth0", "10.0.0.7": "two"}, dump(t, s))
	requireTruth(t, s)

	removed, err = s.Retain(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Len(t, removed, 3)
	require.Empty(t, dump(t, s))
	require.True(t, isSigned(t, s))
	requireTruth(t, s)
}

// TestNothingThere: only Reserve creates a directory.
func TestNothingThere(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.Release(t.Context(), eth0("one"), addrs("10.0.0.2")...))
	got, err := s.Lookup(t.Context(), eth0("one"))
	require.NoError(t, err)
	require.Empty(t, got)
	removed, err := s.Retain(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Empty(t, removed)
	require.NoError(t, s.Available([]RangeSet{ten}))
	ok, err := s.Holds(eth0("one"), one("10.0.0.2"))
	require.NoError(t, err)
	require.False(t, ok)
	_, err = os.Stat(s.dir)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestNotADirectory: another file is at the path of the leases.
func TestNotADirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	s, err := Open(filepath.Join(file, "sub"), network)
	require.NoError(t, err)
	require.Error(t, s.Available([]RangeSet{ten}))
	_, err = s.Reserve(t.Context(), eth0("one"), anyOf(ten))
	require.Error(t, err)
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", ".allocnet", "a/b", "/", "a\x00"} {
		_, err := Open("/data", name)
		require.Error(t, err, "%q", name)
	}
	s, err := Open("", network)
	require.NoError(t, err)
	require.Equal(t, "/var/lib/cni/networks/blue", s.dir)

	s = newStore(t)
	for _, owner := range []Owner{{}, {ID: "one"}, {IfName: "eth0"}, {"one\r\neth1", "eth0"}, {" one", "eth0"}} {
		_, err := s.Reserve(t.Context(), owner, anyOf(ten))
		require.Error(t, err, "%q", owner)
	}
	_, err = os.Stat(s.dir)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestForeignFiles: files that are not leases are ignored and kept.
func TestForeignFiles(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{"README", "10.0.0.300", "fd00:0::5", "::ffff:10.0.0.9", "last_reserved_ip.7"} {
		write(t, s, name, "one\r\neth0")
	}
	require.NoError(t, os.Mkdir(s.dir+"/10.0.0.4", 0o700))
	require.NoError(t, os.Symlink("10.0.0.5", s.dir+"/10.0.0.3"))
	require.Equal(t, addrs("10.0.0.2"), reserve(t, s, eth0("one"), anyOf(ten)...))
	require.Equal(t, addrs("10.0.0.5"), reserve(t, s, eth0("two"), anyOf(ten)...))
	removed, err := s.Retain(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{one("10.0.0.2"), one("10.0.0.5")}, removed)
}

// TestFilesThatAreNone: whatever is in place of a file, no operation waits for
// it, reads it endlessly, or follows it elsewhere.
func TestFilesThatAreNone(t *testing.T) {
	set := ranges("10.0.0.1-10.0.0.2")
	victim := filepath.Join(t.TempDir(), "victim")
	for name, put := range map[string]func(path string) error{
		"pipe":  func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":  func(path string) error { return os.Symlink(victim, path) },
		"large": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
	} {
		for _, file := range []string{"lock", "last_reserved_ip.0", "10.0.0.1"} {
			s := newStore(t)
			require.NoError(t, os.MkdirAll(s.dir, 0o755))
			require.NoError(t, put(filepath.Join(s.dir, file)))
			ended := make(chan error, 1)
			go func() {
				_, err := s.Reserve(t.Context(), eth0("a"), anyOf(set))
				if err == nil {
					err = s.Release(t.Context(), eth0("a"))
				}
				ended <- errors.Join(s.Available([]RangeSet{set}), err)
			}()
			select {
			case err := <-ended:
				if name == "link" && file != "10.0.0.1" {
					require.ErrorIs(t, err, unix.ELOOP, "%s %s", name, file)
					require.ErrorContains(t, err, file)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("%s in the place of %s is waited for", name, file)
			}
			require.NoFileExists(t, victim)
		}
	}
	s := newStore(t)
	require.NoError(t, unix.Mkfifo(s.dir, 0o755))
	_, err := s.names()
	require.ErrorIs(t, err, unix.ENOTDIR)
}

// TestHardLink: neither a lease nor the last reserved address is written
// through a hard link into another file.
func TestHardLink(t *testing.T) {
	for _, content := range []string{"", "precious"} {
		for _, file := range []string{"last_reserved_ip.0", "10.0.0.1"} {
			s := newStore(t)
			victim := filepath.Join(t.TempDir(), "victim")
			require.NoError(t, os.MkdirAll(s.dir, 0o755))
			require.NoError(t, os.WriteFile(victim, []byte(content), 0o600))
			require.NoError(t, os.Link(victim, filepath.Join(s.dir, file)))
			got, err := s.Reserve(t.Context(), eth0("a"), anyOf(ranges("10.0.0.1-10.0.0.2")))
			if file == "10.0.0.1" {
				require.NoError(t, err)
				require.Len(t, got, 1)
			} else {
				require.ErrorIs(t, err, errHardLink)
				require.ErrorContains(t, err, file)
				require.NoFileExists(t, s.path(one("10.0.0.1")))
			}
			is, err := os.ReadFile(victim)
			require.NoError(t, err)
			require.Equal(t, content, string(is))
		}
	}
}
