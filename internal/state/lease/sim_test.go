package lease

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

var (
	simSets = []RangeSet{
		ranges("10.0.0.1-10.0.0.14@10.0.0.1 10.0.1.4-10.0.1.9@10.0.1.5"),
		ranges("fd00::1-fd00::30@fd00::1"),
	}
	simIPAM = `"ranges": [[{"subnet": "10.0.0.0/28"},
		{"subnet": "10.0.1.0/24", "rangeStart": "10.0.1.4", "rangeEnd": "10.0.1.9", "gateway": "10.0.1.5"}],
		[{"subnet": "fd00::/64", "rangeEnd": "fd00::30"}]]`
)

// model contains the expected leases.
type model struct {
	held map[netip.Addr]Owner
	last [2]netip.Addr
}

func (m *model) of(owner Owner) []netip.Addr {
	var addrs []netip.Addr
	for addr, o := range m.held {
		if o == owner {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// next returns the address that an owner gets from a set, or zero if it gets
// none.
func (m *model) next(i int, owner Owner) netip.Addr {
	for _, addr := range m.of(owner) {
		if simSets[i].Contains(addr) {
			return netip.Addr{}
		}
	}
	for addr := range simSets[i].after(m.last[i]) {
		if _, ok := m.held[addr]; !ok {
			return addr
		}
	}
	return netip.Addr{}
}

// add returns the expected result of Reserve, or nil if it should fail.
func (m *model) add(owner Owner) []netip.Addr {
	a, b := m.next(0, owner), m.next(1, owner)
	if a.IsValid() {
		m.last[0] = a
	}
	if !a.IsValid() || !b.IsValid() {
		return nil
	}
	m.last[1] = b
	m.held[a], m.held[b] = owner, owner
	return []netip.Addr{a, b}
}

func (m *model) remove(owner Owner) {
	for _, addr := range m.of(owner) {
		delete(m.held, addr)
	}
}

// simulation is a model and its store.
type simulation struct {
	t *testing.T
	*model
	s         *Store
	rand      *rand.Rand
	reference bool
}

// TestSimulation runs random operations and compares the store with the model
// after each. In one of the runs, the reference plugin executes some of them on
// the same directory.
func TestSimulation(t *testing.T) {
	for _, withReference := range []bool{false, true} {
		t.Run(fmt.Sprintf("reference=%t", withReference), func(t *testing.T) {
			if withReference {
				refplugins.Path(t, "host-local")
			}
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			m := &simulation{
				t:         t,
				model:     &model{held: map[netip.Addr]Owner{}},
				s:         newStore(t),
				rand:      rand.New(rand.NewPCG(seed, 0)),
				reference: withReference,
			}
			for range 500 {
				m.step()
				want := map[string]string{}
				for addr, owner := range m.held {
					want[addr.String()] = owner.text()
				}
				if len(want) > 0 {
					require.Equal(t, want, dump(t, m.s))
				}
				requireTruth(t, m.s)
			}
		})
	}
}

func (m *simulation) step() {
	owner := Owner{ID: fmt.Sprint("c", m.rand.IntN(25)), IfName: fmt.Sprint("eth", m.rand.IntN(2))}
	foreign := m.reference && m.rand.IntN(8) == 0
	switch n := m.rand.IntN(100); {
	case foreign && n < 60:
		m.referenceAdd(owner)
	case foreign:
		_, err := runReference(m.t, m.s, "DEL", owner, simIPAM)
		require.NoError(m.t, err)
		m.remove(owner)
	case n < 45:
		m.reserveAny(owner)
	case n < 55:
		m.reserveOne(owner)
	case n < 70:
		require.NoError(m.t, m.s.Release(m.t.Context(), owner, m.of(owner)...))
		m.remove(owner)
	case n < 85:
		require.NoError(m.t, m.s.Release(m.t.Context(), owner))
		m.remove(owner)
	case n < 95:
		got, err := m.s.Lookup(m.t.Context(), owner)
		require.NoError(m.t, err)
		slices.SortFunc(got, netip.Addr.Compare)
		require.Equal(m.t, m.of(owner), append([]netip.Addr(nil), got...))
	case n < 97:
		m.retain()
	default:
		var err error
		m.s, err = Open(filepath.Dir(m.s.dir), network)
		require.NoError(m.t, err)
	}
}

func (m *simulation) reserveAny(owner Owner) {
	want := m.add(owner)
	got, err := m.s.Reserve(m.t.Context(), owner, anyOf(simSets...))
	require.Equal(m.t, want, got)
	require.Equal(m.t, want == nil, err != nil)
}

func (m *simulation) reserveOne(owner Owner) {
	addr := netip.AddrFrom4([4]byte{10, 0, 1, byte(m.rand.IntN(12))})
	got, err := m.s.Reserve(m.t.Context(), owner, []Request{{Set: simSets[0], Address: addr}})
	_, taken := m.held[addr]
	switch {
	case !simSets[0].leasable(addr):
		require.ErrorIs(m.t, err, ErrNotInRange)
	case taken:
		require.ErrorIs(m.t, err, ErrTaken)
	default:
		require.NoError(m.t, err)
		require.Equal(m.t, []netip.Addr{addr}, got)
		m.held[addr], m.last[0] = owner, addr
	}
}

func (m *simulation) retain() {
	var valid []Owner
	keep := map[Owner]bool{}
	for range 12 {
		o := Owner{ID: fmt.Sprint("c", m.rand.IntN(25)), IfName: "eth0"}
		valid, keep[o] = append(valid, o), true
	}
	var want []netip.Addr
	for addr, owner := range m.held {
		if !keep[owner] {
			want = append(want, addr)
			delete(m.held, addr)
		}
	}
	slices.SortFunc(want, netip.Addr.Compare)
	got, err := m.s.Retain(m.t.Context(), valid, nil)
	require.NoError(m.t, err)
	require.Equal(m.t, want, got)
}

func (m *simulation) referenceAdd(owner Owner) {
	before := m.of(owner)
	want := m.add(owner)
	out, err := runReference(m.t, m.s, "ADD", owner, simIPAM)
	require.Equal(m.t, want == nil, err != nil, out)
	if want == nil {
		// If the reference fails at the second set, it also releases what the
		// owner had before.
		if len(dump(m.t, m.s)) < len(m.held) {
			require.NotEmpty(m.t, before)
			m.remove(owner)
		}
		return
	}
	var result types100.Result
	require.NoError(m.t, json.Unmarshal([]byte(out), &result))
	var got []netip.Addr
	for _, ip := range result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		got = append(got, addr.Unmap())
	}
	require.Equal(m.t, want, got)
}
