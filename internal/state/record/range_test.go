package record

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// ranged returns a record with a range of ports.
func ranged(t *testing.T, id string, first, n int, ip string, protocols ...string) *Record {
	t.Helper()
	m, err := portmap.Mappings([]portmap.Port{{Value: first, To: 1, Range: n, HostIP: ip, Protocols: protocols}}, portmap.Options{})
	require.NoError(t, err)
	return reserving(id, "/n/"+id, m...)
}

// TestRanges: whether ports are reserved one by one or in blocks, all conflicts are
// found, and no others.
func TestRanges(t *testing.T) {
	for _, test := range []struct {
		name        string
		first, next *Record
		conflict    bool
	}{
		{"in a block", ranged(t, "a", 1000, 3000, ""), reserving("b", "/n/b", tcp(3999, "")), true},
		{"before a block", ranged(t, "a", 1000, 3000, ""), reserving("b", "/n/b", tcp(999, "")), false},
		{"behind a block", ranged(t, "a", 1000, 3000, ""), reserving("b", "/n/b", tcp(4000, "")), false},
		{"a block over one", reserving("a", "/n/a", tcp(2000, "")), ranged(t, "b", 1000, 3000, ""), true},
		{"a block beside one", reserving("a", "/n/a", tcp(4000, "")), ranged(t, "b", 1000, 3000, ""), false},
		{"blocks that meet", ranged(t, "a", 1000, 1000, ""), ranged(t, "b", 1999, 1000, ""), true},
		{"blocks side by side", ranged(t, "a", 1000, 1000, ""), ranged(t, "b", 2000, 1000, ""), false},
		{"other protocols", ranged(t, "a", 1000, 1000, "", "udp"), ranged(t, "b", 1000, 1000, "", "tcp"), false},
		{"other addresses", ranged(t, "a", 1000, 1000, "192.0.2.1"), ranged(t, "b", 1000, 1000, "192.0.2.2"), false},
		{"just not blocks", ranged(t, "a", 1000, maxSingle, ""), ranged(t, "b", 1000+maxSingle-1, maxSingle+1, ""), true},
		{"everything", ranged(t, "a", 1, 65535, ""), reserving("b", "/n/b", tcp(65535, "192.0.2.1")), true},
	} {
		for _, order := range [][2]*Record{{test.first, test.next}, {test.next, test.first}} {
			s := open(t)
			require.NoError(t, s.Reserve(t.Context(), order[0], unwarned(t)))
			err := s.Reserve(t.Context(), order[1], unwarned(t))
			if !test.conflict {
				require.NoError(t, err, test.name)
				continue
			}
			require.ErrorIs(t, err, portmap.ErrConflict, test.name)
			require.NoError(t, s.Delete(order[0].ID), test.name)
			require.NoError(t, s.Reserve(t.Context(), order[1], unwarned(t)), test.name)
			require.NoError(t, s.Delete(order[1].ID), test.name)
			entries, err := os.ReadDir(string(s.index))
			require.NoError(t, err)
			require.Len(t, entries, 1, "the mark of a complete index")
		}
	}
}

// TestRangeIsCheap: a reservation of every port makes no more than a directory for each
// block.
func TestRangeIsCheap(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Reserve(t.Context(), ranged(t, "a", 1, 65535, ""), unwarned(t)))
	entries, err := os.ReadDir(string(s.index))
	require.NoError(t, err)
	require.LessOrEqual(t, len(entries), 64+2)
}

// TestSpans: spans that are too long for a value become everything.
func TestSpans(t *testing.T) {
	require.Equal(t, "=1-3,9-9", spansOf([]portmap.Mapping{tcp(9, ""), tcp(2, ""), tcp(1, ""), tcp(3, ""), tcp(2, "x")}).String())
	var scattered []portmap.Mapping
	for port := 2; port < 2000; port += 2 {
		scattered = append(scattered, tcp(port, ""))
	}
	require.Equal(t, everything, spansOf(scattered).String())
	s := open(t)
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a", scattered...), unwarned(t)))
	require.NoError(t, s.Reserve(t.Context(), reserving("b", "/n/b", tcp(501, "")), unwarned(t)))
	require.ErrorIs(t, s.Reserve(t.Context(), reserving("c", "/n/c", tcp(502, "")), unwarned(t)), portmap.ErrConflict)
	for _, value := range []string{"=", "=1", "=x-2", "tcp/"} {
		_, ok := parseSpans(value)
		require.False(t, ok, value)
	}
}

// TestIndexWithoutBlocks: an index that was completed before blocks existed is
// completed again.
func TestIndexWithoutBlocks(t *testing.T) {
	s := open(t)
	r := ranged(t, "a", 1000, 300, "")
	require.NoError(t, s.Put(r))
	require.NoError(t, os.RemoveAll(string(s.index)))
	for i := range 300 {
		require.NoError(t, s.index.add("a", reservationsOf("", r.Ports[2*i:2*i+2])[1]))
	}
	require.NoError(t, os.WriteFile(s.index.completeBefore(), nil, 0o600))
	require.ErrorIs(t, s.Reserve(t.Context(), reserving("b", "/n/b", tcp(1000, "")), unwarned(t)), portmap.ErrConflict)
	require.NoError(t, s.Sweep(t.Context()))
	require.NoDirExists(t, filepath.Join(string(s.index), fmt.Sprint(singlePrefix, 1000)))
	require.ErrorIs(t, s.Reserve(t.Context(), reserving("b", "/n/b", tcp(1299, "")), unwarned(t)), portmap.ErrConflict)
	require.NoFileExists(t, s.index.completeBefore())
}

// TestUpdateOfRanges: an update that takes an allocation above the number of ports that are reserved one by
// one, or below it, leaves the reservations of the ports that the allocation has then, and a removal none.
func TestUpdateOfRanges(t *testing.T) {
	few, many := ranged(t, "a", 3000, 2, "").Ports, ranged(t, "a", 1000, 300, "").Ports
	few = append(few, many[:2]...) // which it keeps
	for name, step := range map[string][2][]portmap.Mapping{"above": {few, many}, "below": {many, few}} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			r := reserving("a", "/n/a", step[0]...)
			r.Namespace = sandbox.Identity{Device: 4, Inode: 5}
			require.NoError(t, s.Reserve(t.Context(), r, unwarned(t)))
			require.NoError(t, s.Delete("a"))
			r.Ports = step[1]
			require.NoError(t, s.Reserve(t.Context(), r, unwarned(t)))
			want := stateFiles(t, s)
			require.NoError(t, s.Delete("a"))

			begin := func() {
				r.Ports, r.Update = step[0], nil
				require.NoError(t, s.Reserve(t.Context(), r, unwarned(t)))
				r.Update = &Aim{Ports: step[1]}
				require.NoError(t, s.BeginUpdate(r))
				require.NoError(t, s.Reserve(t.Context(), r, unwarned(t)))
			}
			begin()
			r.Ports, r.Update = step[1], nil
			require.NoError(t, s.EndUpdate(r, slices.Concat(step[0], step[1])))
			require.Equal(t, want, stateFiles(t, s))
			require.NoError(t, s.Delete("a"))
			begin()
			require.NoError(t, s.Delete("a"), "before the end of the update")
			require.Len(t, stateFiles(t, s), 1, "the mark of a complete index")
		})
	}
}
