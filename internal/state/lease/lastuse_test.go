package lease

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLastUse: Reserve says when an address was released last, whatever has released it, and does not take one that
// another program may have released for one that was never in use.
func TestLastUse(t *testing.T) {
	released, later := time.Unix(2e9, 0), time.Unix(2e9+60, 0)
	never, addr, other := time.Time{}, one("10.0.0.2"), one("10.0.0.3")
	foreign := func(t *testing.T, s *Store) { write(t, s, "10.0.0.9", "foreign\r\neth0") }
	for name, c := range map[string]struct {
		release      func(t *testing.T, s *Store)
		want, others time.Time
	}{
		"Release":            {func(t *testing.T, s *Store) { require.NoError(t, s.Release(t.Context(), eth0("a"))) }, released, never},
		"Release by address": {func(t *testing.T, s *Store) { require.NoError(t, s.Release(t.Context(), eth0("a"), addr)) }, released, never},
		"Retain": {func(t *testing.T, s *Store) {
			_, err := s.Retain(t.Context(), nil, nil)
			require.NoError(t, err)
		}, released, never},
		"Remove": {func(t *testing.T, s *Store) {
			_, err := s.Remove(t.Context(), []Lease{{addr, eth0("a")}})
			require.NoError(t, err)
		}, released, never},
		"a reboot": {func(t *testing.T, s *Store) {
			newMarking(t)
			require.NoError(t, s.InBoot(boot2).Reclaim(t.Context()))
		}, time.Unix(formerly, 0), never},
		"Release in another network": {func(t *testing.T, s *Store) {
			green, err := Open(filepath.Dir(s.dir), "green")
			require.NoError(t, err)
			green.now = s.now
			require.Equal(t, never, reservedAt(t, green, "a", addr))
			require.NoError(t, green.Release(t.Context(), eth0("a")))
			require.NoError(t, os.Remove(s.path(addr)))
			require.NoError(t, os.Remove(s.link(eth0("a"))))
			s.touch(signature)
		}, released, never},
		"another program": {func(t *testing.T, s *Store) { require.NoError(t, os.Remove(s.path(addr))) }, later, later},
		"Release beside another program": {func(t *testing.T, s *Store) {
			foreign(t, s)
			require.NoError(t, s.Release(t.Context(), eth0("a"), addr))
		}, later, later},
		"a directory that is removed": {func(t *testing.T, s *Store) { require.NoError(t, os.RemoveAll(s.dir)) }, later, later},
		"an earlier version": {func(t *testing.T, s *Store) {
			require.NoError(t, os.Remove(s.path(addr)))
			require.NoError(t, os.Remove(s.link(eth0("a"))))
			s.touch(indexSignature)
		}, later, later},
		"a file that cannot be written": {func(t *testing.T, s *Store) {
			require.NoError(t, os.Mkdir(s.releasedPath(), 0o700))
			require.NoError(t, s.Release(t.Context(), eth0("a")))
			require.NoError(t, os.Remove(s.releasedPath()))
		}, released, released},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			now := released
			s.now = func() time.Time { return now }
			s = s.InBoot(boot1)
			require.Equal(t, never, reservedAt(t, s, "a", addr))
			c.release(t, s)
			now = later
			require.Equal(t, c.want, reservedAt(t, s, "b", addr))
			require.Equal(t, c.others, reservedAt(t, s, "c", other))
			require.NoError(t, s.Release(t.Context(), eth0("b")))
			now = later.Add(time.Hour)
			require.Equal(t, later, reservedAt(t, s, "d", addr))
		})
	}
}

// reservedAt reserves an address, and returns when it was in use before.
func reservedAt(t *testing.T, s *Store, id string, addr netip.Addr) (lastUse time.Time) {
	t.Helper()
	reserve(t, s, eth0(id), Request{Set: ten, Address: addr, LastUse: &lastUse})
	return lastUse
}

// TestLastUseOfAFailure: an address that was leased by a reservation that failed was not in use.
func TestLastUseOfAFailure(t *testing.T) {
	s := newStore(t)
	_, err := s.Reserve(t.Context(), eth0("a"), []Request{{Set: ten, Address: one("10.0.0.2")}, {Set: ten, Address: one("10.9.9.9")}})
	require.ErrorIs(t, err, ErrNotInRange)
	require.Zero(t, reservedAt(t, s, "a", one("10.0.0.2")))
}

// TestPlaces: the addresses of a range have places of their own.
func TestPlaces(t *testing.T) {
	seen := map[int64]netip.Addr{}
	for _, set := range []RangeSet{ranges("10.7.0.0-10.7.255.255"), ranges("fd00:1:2:3::-fd00:1:2:3::ffff")} {
		for addr := range set.after(netip.Addr{}) {
			other, shared := seen[placeOf(addr)]
			require.False(t, shared, "%s and %s", addr, other)
			seen[placeOf(addr)] = addr
		}
	}
	require.Len(t, seen, 2*familyPlaces)
}
