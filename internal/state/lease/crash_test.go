package lease

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var testTime = time.Unix(1e9, 0)

func contains(steps []string, step string) bool { return slices.Contains(steps, step) }

// crash runs an operation that dies at its n-th step, and reports whether it
// reached that step.
func crash(s *Store, n int, run func()) (died bool) {
	type death struct{}
	s.hook = func(string) {
		if n--; n == 0 {
			panic(death{})
		}
	}
	defer func() {
		s.hook = nil
		if _, ok := recover().(death); ok {
			died = true
		}
	}()
	run()
	return false
}

// TestCrash: after a crash at any step, later operations find all leases,
// assign no address twice, and leave nothing.
func TestCrash(t *testing.T) {
	one, two := eth0("one"), eth0("two")
	foreign := func(t *testing.T, s *Store) { write(t, s, "10.0.0.9", "three\r\neth0") }
	noIndex := func(t *testing.T, s *Store) {
		reserve(t, s, eth0("three"), anyOf(ten)...)
		require.NoError(t, os.RemoveAll(s.links))
	}
	for name, test := range map[string]struct {
		before func(t *testing.T, s *Store)
		run    func(t *testing.T, s *Store)
		steps  int // at least this many
	}{
		"reserve": {nil, func(t *testing.T, s *Store) { _, _ = s.Reserve(t.Context(), one, anyOf(ten, fd00)) }, 8},
		"reserve without index": {foreign, func(t *testing.T, s *Store) {
			_, _ = s.Reserve(t.Context(), one, anyOf(ten, fd00))
		}, 10},
		"a reservation that fails": {nil, func(t *testing.T, s *Store) {
			_, _ = s.Reserve(t.Context(), one, anyOf(ten, fd00, ranges("10.9.0.1-10.9.0.1@10.9.0.1")))
		}, 8},
		"restore": {nil, func(t *testing.T, s *Store) { _ = s.Restore(t.Context(), one, addrs("10.0.0.7 fd00::7")...) }, 6},
		"release": {nil, func(t *testing.T, s *Store) { _ = s.Release(t.Context(), two) }, 4},
		"release by name": {foreign, func(t *testing.T, s *Store) {
			_ = s.Release(t.Context(), two, addrs("10.0.0.2 fd00::2")...)
		}, 2},
		"release without index":  {foreign, func(t *testing.T, s *Store) { _ = s.Release(t.Context(), two) }, 6},
		"retain":                 {foreign, func(t *testing.T, s *Store) { _, _ = s.Retain(t.Context(), nil, nil) }, 6},
		"lookup of a lost index": {noIndex, func(t *testing.T, s *Store) { _, _ = s.Lookup(t.Context(), two) }, 4},
		"lookup without index":   {foreign, func(t *testing.T, s *Store) { _, _ = s.Lookup(t.Context(), two) }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				s := newStore(t)
				reserve(t, s, two, anyOf(ten, fd00)...)
				if test.before != nil {
					test.before(t, s)
				}
				if !crash(s, n, func() { test.run(t, s) }) {
					require.Greater(t, n, test.steps)
					return
				}
				requireHealed(t, s, fmt.Sprintf("died at step %d", n))
			}
		})
	}
}

// requireHealed continues after a crash like a runtime.
func requireHealed(t *testing.T, s *Store, message string) {
	t.Helper()
	requireTruth(t, s)
	fresh := &Store{network: s.network, dir: s.dir, links: s.links}
	held := map[string]bool{}
	for addr := range dump(t, fresh) {
		held[addr] = true
	}
	for i := range 3 {
		for _, addr := range reserve(t, fresh, eth0(fmt.Sprint("after", i)), anyOf(ten, fd00)...) {
			content := dump(t, fresh)[addr.String()]
			require.Equal(t, fmt.Sprintf("after%d\r\neth0", i), content, message)
		}
		requireTruth(t, fresh)
	}
	for _, id := range []string{"one", "two", "three", "after0", "after1", "after2"} {
		require.NoError(t, fresh.Release(t.Context(), eth0(id)), message)
		requireTruth(t, fresh)
		got, err := fresh.Lookup(t.Context(), eth0(id))
		require.NoError(t, err, message)
		require.Empty(t, got, message)
	}
	require.Empty(t, dump(t, fresh), message)
}
