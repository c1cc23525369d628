package lease

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

const (
	boot1 = "11111111-0000-4000-8000-000000000000"
	boot2 = "22222222-0000-4000-8000-000000000000"
	boot3 = "33333333-0000-4000-8000-000000000000"
)

// newMarking returns a store on a file system with extended attributes.
func newMarking(t testing.TB) *Store {
	t.Helper()
	s := newStore(t)
	require.NoError(t, os.MkdirAll(s.dir, 0o755))
	err := unix.Lsetxattr(s.dir, "user.allocnet.test", nil, 0)
	skip.Unless(t, !isUnsupported(err), "the file system of %s has no extended attributes, so leases name no boot; set TMPDIR to one that has", s.dir)
	return s
}

func TestReclaim(t *testing.T) {
	s := newMarking(t)
	in1, in2 := s.InBoot(boot1), s.InBoot(boot2)
	a := reserve(t, in1, eth0("a"), anyOf(ten, fd00)...)
	b := reserve(t, in1, eth0("b"), anyOf(ten, fd00)...)
	unmarked := reserve(t, s, eth0("without"), anyOf(ten)...)
	write(t, s, "10.0.0.8", "podman\r\neth0")
	write(t, s, "10.0.0.9", "") // a crash of its writer
	foreign := map[string]string{unmarked[0].String(): "without\r\neth0", "10.0.0.8": "podman\r\neth0", "10.0.0.9": ""}

	require.NoError(t, in1.Reclaim(t.Context()))
	require.Len(t, dump(t, s), 7, "nothing is reclaimed in the boot of the leases")
	require.NoError(t, in2.Reclaim(t.Context()))
	require.Equal(t, foreign, dump(t, s), "leases of other programs stay")
	for _, owner := range []Owner{eth0("a"), eth0("b")} {
		got, err := s.Lookup(t.Context(), owner)
		require.NoError(t, err)
		require.Empty(t, got)
	}
	require.ElementsMatch(t, a, in2.Former(eth0("a")))
	require.ElementsMatch(t, b, in2.Former(eth0("b")))
	requireTruth(t, s)

	// The new boot has leases of its own, which another Reclaim keeps.
	c := reserve(t, in2, eth0("c"), anyOf(ten, fd00)...)
	require.NotContains(t, slices.Concat(a, b), c[0])
	require.NoError(t, in2.Reclaim(t.Context()))
	require.Contains(t, dump(t, s), c[0].String())
}

// TestReclaimAtFirstUse: whatever is done first after a reboot reclaims the leases.
func TestReclaimAtFirstUse(t *testing.T) {
	for name, use := range map[string]func(*Store) error{
		"reserve": func(s *Store) error {
			_, err := s.Reserve(context.Background(), eth0("new"), anyOf(ten))
			return err
		},
		"release": func(s *Store) error { return s.Release(context.Background(), eth0("other")) },
		"retain": func(s *Store) error {
			_, err := s.Retain(context.Background(), []Owner{eth0("old")}, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newMarking(t)
			old := reserve(t, s.InBoot(boot1), eth0("old"), anyOf(ten)...)
			require.NoError(t, use(s.InBoot(boot2)))
			require.NotContains(t, dump(t, s), old[0].String())
			requireTruth(t, s)
		})
	}
}

// TestSameAddressAfterReboot: an owner that requests any address gets its former one, although
// others came first. Others get that address if they request it, or if no other is free.
func TestSameAddressAfterReboot(t *testing.T) {
	s := newMarking(t)
	small := ranges("10.0.0.1-10.0.0.6@10.0.0.1")
	in1, in2, in3 := s.InBoot(boot1), s.InBoot(boot2), s.InBoot(boot3)
	a := reserve(t, in1, eth0("a"), anyOf(small)...)[0]
	b := reserve(t, in1, eth0("b"), anyOf(small)...)[0]
	c := reserve(t, in1, eth0("c"), anyOf(small)...)[0]
	for _, id := range []string{"d", "e"} { // so that the search begins at the first address
		reserve(t, in1, eth0(id), anyOf(small)...)
	}
	require.NoError(t, in1.Release(t.Context(), eth0("d")))
	require.NoError(t, in1.Release(t.Context(), eth0("e")))
	var others []string
	for i := range 2 {
		others = append(others, reserve(t, in2, eth0(fmt.Sprint("other", i)), anyOf(small)...)[0].String())
	}
	require.ElementsMatch(t, []string{"10.0.0.5", "10.0.0.6"}, others, "those that nobody had")
	require.Equal(t, b, reserve(t, in2, eth0("b"), anyOf(small)...)[0])
	require.NoError(t, in2.Release(t.Context(), eth0("b")))
	require.Equal(t, b, reserve(t, in2, eth0("b"), anyOf(small)...)[0], "a second attempt")
	require.Equal(t, a, reserve(t, in2, eth0("thief"), Request{Set: small, Address: a})[0])
	require.Empty(t, in2.Former(eth0("a")))
	require.Equal(t, c, reserve(t, in2, eth0("late"), anyOf(small)...)[0], "the last free address")
	_, err := in2.Reserve(t.Context(), eth0("c"), anyOf(small))
	require.ErrorIs(t, err, ErrExhausted)
	require.NoError(t, in2.Release(t.Context(), eth0("thief")))
	require.Equal(t, a, reserve(t, in2, eth0("c"), anyOf(small)...)[0])

	// The next boot knows only the leases of this one.
	require.Equal(t, a, reserve(t, in3, eth0("c"), anyOf(small)...)[0])
	require.NoDirExists(t, in2.formerDir())
	require.Empty(t, in3.Former(eth0("a")))
}

// TestManyHeld: an owner that gets its former address does not make the search for others
// begin among the addresses that are held.
func TestManyHeld(t *testing.T) {
	s := newMarking(t)
	set := ranges("10.0.0.1-10.0.0.200")
	in2 := s.InBoot(boot2)
	for i := range 100 {
		reserve(t, s.InBoot(boot1), eth0(fmt.Sprint(i)), anyOf(set)...)
	}
	require.Equal(t, "10.0.0.8", reserve(t, in2, eth0("7"), anyOf(set)...)[0].String())
	last, err := os.ReadFile(s.lastPath(0))
	require.NoError(t, err)
	require.Equal(t, "10.0.0.100", string(last))
	done := steps(in2)
	require.Equal(t, "10.0.0.101", reserve(t, in2, eth0("new"), anyOf(set)...)[0].String())
	require.NotContains(t, *done, "list leases")
}

// TestRequestedAddressAfterReboot: a lease of an earlier boot does not keep anyone from
// getting the address that it requests.
func TestRequestedAddressAfterReboot(t *testing.T) {
	s := newMarking(t)
	wanted := Request{Set: ten, Address: one("10.0.0.7")}
	reserve(t, s.InBoot(boot1), eth0("db"), wanted)
	_, err := s.InBoot(boot1).Reserve(t.Context(), eth0("db2"), []Request{wanted})
	require.ErrorIs(t, err, ErrTaken)
	require.Equal(t, "10.0.0.7", reserve(t, s.InBoot(boot2), eth0("db2"), wanted)[0].String())
}

// TestAvailableAfterReboot: leases of an earlier boot do not count before they are reclaimed.
func TestAvailableAfterReboot(t *testing.T) {
	s := newMarking(t)
	set := ranges("10.0.0.1-10.0.0.20")
	for i := range 20 {
		reserve(t, s.InBoot(boot1), eth0(fmt.Sprint(i)), anyOf(set)...)
	}
	require.ErrorIs(t, s.InBoot(boot1).Available([]RangeSet{set}), ErrExhausted)
	require.ErrorIs(t, s.Available([]RangeSet{set}), ErrExhausted, "a network that did not opt in")
	before := dump(t, s)
	require.NoError(t, s.InBoot(boot2).Available([]RangeSet{set}))
	require.Equal(t, before, dump(t, s))
}

// TestHoldFor: the address of a slot is held for the allocation that has taken the slot.
func TestHoldFor(t *testing.T) {
	s := newMarking(t)
	slot, in1, in2 := eth0("pool-0123456789abcdef"), s.InBoot(boot1), s.InBoot(boot2)
	got := reserve(t, in1, slot, anyOf(ten)...)
	require.ErrorIs(t, in1.HoldFor(eth0("other"), got[0], "a"), ErrNotHeld)
	require.NoError(t, in1.HoldFor(slot, got[0], "a"))
	require.NoError(t, in2.Reclaim(t.Context()))
	require.Empty(t, in2.Former(slot))
	require.NotEqual(t, got, reserve(t, in2, eth0("b"), anyOf(ten)...))
	require.Equal(t, got, reserve(t, in2, eth0("a"), anyOf(ten)...))
	require.NoError(t, in2.Release(t.Context(), eth0("a")))
	require.Equal(t, got, reserve(t, in2, eth0("a"), anyOf(ten)...))
}

// TestReferenceAfterReboot: host-local goes on to work in the directory. It gets reclaimed
// addresses, and leases that it made in place of reclaimed or released ones stay.
func TestReferenceAfterReboot(t *testing.T) {
	s := newMarking(t)
	in1, in2 := s.InBoot(boot1), s.InBoot(boot2)
	ipam := `"ranges": [[{"subnet": "10.0.0.0/29"}]]` // .1 is the gateway's
	set := ranges("10.0.0.1-10.0.0.6@10.0.0.1")
	_, err := runReference(t, s, "ADD", eth0("podman"), ipam)
	require.NoError(t, err)
	for i := range 4 {
		reserve(t, in1, eth0(fmt.Sprint(i)), anyOf(set)...)
	}
	_, err = runReference(t, s, "ADD", eth0("podman2"), ipam)
	require.Error(t, err, "no address is free")

	// After the reboot, podman removes and adds a container of allocnet's name.
	_, err = runReference(t, s, "DEL", eth0("3"), ipam)
	require.NoError(t, err)
	_, err = runReference(t, s, "ADD", eth0("3"), ipam)
	require.NoError(t, err)
	require.NoError(t, in2.Reclaim(t.Context()))
	held := slices.Sorted(maps.Values(dump(t, s)))
	require.Equal(t, []string{"3\r\neth0", "podman\r\neth0"}, held)
	for i := range 3 {
		_, err = runReference(t, s, "ADD", eth0(fmt.Sprint("more", i)), ipam)
		require.NoError(t, err)
	}
	require.NoError(t, in2.Reclaim(t.Context()))
	require.Len(t, dump(t, s), 5)
	_, err = in2.Reserve(t.Context(), eth0("0"), anyOf(set))
	require.ErrorIs(t, err, ErrExhausted, "another program has its former address")
	requireTruth(t, s)
}

func TestMark(t *testing.T) {
	s := newMarking(t)
	in1, in2 := s.InBoot(boot1), s.InBoot(boot2)
	_, err := runReference(t, s, "ADD", eth0("mine"), `"ranges": [[{"subnet": "10.0.0.0/24"}]]`)
	require.NoError(t, err)
	_, err = runReference(t, s, "ADD", eth0("theirs"), `"ranges": [[{"subnet": "10.0.0.0/24"}]]`)
	require.NoError(t, err)
	require.NoError(t, in1.Mark(t.Context(), eth0("mine"), addrs("10.0.0.2 10.0.0.3 10.0.0.4")))
	require.NoError(t, in2.Reclaim(t.Context()))
	require.Equal(t, map[string]string{"10.0.0.3": "theirs\r\neth0"}, dump(t, s))
	require.Equal(t, addrs("10.0.0.2"), in2.Former(eth0("mine")))
}

// TestCrashAfterReboot: a crash at any step of the first operation after a reboot loses no
// lease of another program, and the next operation reclaims what is left of the earlier boot.
func TestCrashAfterReboot(t *testing.T) {
	for name, run := range map[string]func(t *testing.T, s *Store){
		"reclaim": func(t *testing.T, s *Store) { _ = s.Reclaim(t.Context()) },
		"reserve": func(t *testing.T, s *Store) { _, _ = s.Reserve(t.Context(), eth0("b"), anyOf(ten, fd00)) },
		"another takes it": func(t *testing.T, s *Store) {
			_, _ = s.Reserve(t.Context(), eth0("c"), []Request{{Set: ten, Address: one("10.0.0.3")}})
		},
		"release": func(t *testing.T, s *Store) { _ = s.Release(t.Context(), eth0("b")) },
		"retain":  func(t *testing.T, s *Store) { _, _ = s.Retain(t.Context(), []Owner{eth0("podman")}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				s := newMarking(t)
				for i, boot := range []string{boot1, boot2} { // boot1 leaves former leases in boot2
					for _, id := range []string{"a", "b"}[i:] {
						reserve(t, s.InBoot(boot), eth0(id), anyOf(ten, fd00)...)
					}
				}
				write(t, s, "10.0.0.9", "podman\r\neth0")
				message := fmt.Sprintf("died at step %d", n)
				in3 := s.InBoot(boot3)
				if !crash(in3, n, func() { run(t, in3) }) {
					require.Greater(t, n, 5)
					return
				}
				requireTruth(t, s)
				require.Equal(t, "podman\r\neth0", dump(t, s)["10.0.0.9"], message)
				fresh := s.InBoot(boot3)
				require.NoError(t, fresh.Release(t.Context(), eth0("c")), message)
				b := reserveAgain(t, fresh, eth0("b"), message)
				if name != "another takes it" {
					require.Equal(t, "10.0.0.3", b, message)
				}
				require.NoError(t, fresh.Release(t.Context(), eth0("b")), message)
				requireTruth(t, fresh)
				require.Equal(t, map[string]string{"10.0.0.9": "podman\r\neth0"}, dump(t, fresh), message)
				entries, err := os.ReadDir(fresh.formerNetwork())
				require.NoError(t, err)
				require.Len(t, entries, 1, "%s: former leases of one boot", message)
			}
		})
	}
}

// reserveAgain returns the IPv4 address that an owner gets, or has if it was the one that
// died.
func reserveAgain(t *testing.T, s *Store, owner Owner, message string) string {
	t.Helper()
	held, err := s.Lookup(t.Context(), owner)
	require.NoError(t, err, message)
	if len(held) > 0 {
		require.NoError(t, s.Release(t.Context(), owner), message)
	}
	return reserve(t, s, owner, anyOf(ten, fd00)...)[0].String()
}

// TestReclaimTogether: many users at once, each with its own address of the earlier boot.
func TestReclaimTogether(t *testing.T) {
	s := newMarking(t)
	set := ranges("10.0.0.1-10.0.0.40")
	want := map[string]string{}
	for i := range 30 {
		owner := eth0(fmt.Sprint(i))
		want[reserve(t, s.InBoot(boot1), owner, anyOf(set)...)[0].String()] = owner.text()
	}
	var running sync.WaitGroup
	for i := range 30 {
		running.Go(func() {
			_, err := s.InBoot(boot2).Reserve(context.Background(), eth0(fmt.Sprint(i)), anyOf(set))
			if err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	require.Equal(t, want, dump(t, s))
	requireTruth(t, s)
}

// TestReclaimWithoutDirectory creates nothing.
func TestReclaimWithoutDirectory(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.InBoot(boot1).Reclaim(t.Context()))
	require.NoError(t, s.InBoot(boot1).Mark(t.Context(), eth0("a"), addrs("10.0.0.2")))
	require.NoDirExists(t, s.dir)
	require.NoDirExists(t, filepath.Dir(s.links))
}
