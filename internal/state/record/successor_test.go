package record

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

// waitingFor returns a record that waits for its ports.
func waitingFor(id string, ports ...portmap.Mapping) *Record {
	r := reserving(id, "/n/"+id, ports...)
	r.WaitForPorts = true
	return r
}

// TestWaitForPorts: a record may wait for host ports of others, which are named from the oldest on, also in
// another process; other records conflict with those that wait as well.
func TestWaitForPorts(t *testing.T) {
	s := open(t)
	reserve := func(r *Record) *Record {
		t.Helper()
		require.NoError(t, s.Reserve(t.Context(), r, unwarned(t)))
		stored, err := s.Get(r.ID)
		require.NoError(t, err)
		require.Equal(t, r.PortOrder, stored.PortOrder)
		return stored
	}
	holders := func(r *Record) []PortHolder {
		t.Helper()
		list, err := Open(s.state).PortHolders(r)
		require.NoError(t, err)
		return list
	}
	a := reserve(reserving("a", "/n/a", tcp(80, "192.0.2.1"), tcp(443, "")))
	b := reserve(waitingFor("b", tcp(80, ""), tcp(81, "")))
	c := reserve(waitingFor("c", tcp(81, ""), tcp(80, "192.0.2.1")))
	d := reserve(waitingFor("d", tcp(82, "")))
	require.Equal(t, []int{0, 1, 2, 0}, []int{a.PortOrder, b.PortOrder, c.PortOrder, d.PortOrder})
	require.Empty(t, holders(a))
	require.Empty(t, holders(d))
	require.Equal(t, []PortHolder{{ID: "a", Mapping: tcp(80, ""), Other: tcp(80, "192.0.2.1")}}, holders(b))
	require.Equal(t, []PortHolder{
		{ID: "b", Mapping: tcp(81, ""), Other: tcp(81, "")}, {ID: "a", Mapping: tcp(80, "192.0.2.1"), Other: tcp(80, "192.0.2.1")},
	}, holders(c))
	require.ErrorIs(t, s.Reserve(t.Context(), reserving("e", "/n/e", tcp(81, "")), unwarned(t)), portmap.ErrConflict)

	require.NoError(t, s.Delete("a"))
	require.Empty(t, holders(b))
	require.Equal(t, "b", holders(c)[1].ID)
	require.NoError(t, s.Delete("b"))
	require.Empty(t, holders(c))
	require.Equal(t, 3, reserve(waitingFor("f", tcp(80, ""))).PortOrder)
}

// TestWaitForManyPorts: the same for blocks of ports.
func TestWaitForManyPorts(t *testing.T) {
	s := open(t)
	var many []portmap.Mapping
	for port := range 2 * maxSingle {
		many = append(many, tcp(1000+port, ""))
	}
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a", many...), unwarned(t)))
	one := waitingFor("b", tcp(1000, ""))
	require.NoError(t, s.Reserve(t.Context(), one, unwarned(t)))
	list, err := s.PortHolders(one)
	require.NoError(t, err)
	require.Equal(t, []PortHolder{{ID: "a", Mapping: tcp(1000, ""), Other: tcp(1000, "")}}, list)
	all := waitingFor("c", many...)
	require.NoError(t, s.Reserve(t.Context(), all, unwarned(t)))
	require.Equal(t, 2, all.PortOrder)
	list, err = s.PortHolders(all)
	require.NoError(t, err)
	require.Len(t, list, len(many))
}

// TestUpdateDoesNotWait: a host port that an update adds must be free, also if the allocation waits for others.
func TestUpdateDoesNotWait(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a", tcp(80, ""), tcp(443, "")), unwarned(t)))
	b := waitingFor("b", tcp(80, ""))
	require.NoError(t, s.Reserve(t.Context(), b, unwarned(t)))
	update := func(ports ...portmap.Mapping) error {
		r := *b
		r.Update = &Aim{Ports: ports, Before: b.Ports}
		for _, m := range ports {
			if m != b.Ports[0] {
				r.Ports = append([]portmap.Mapping{m}, r.Ports...)
			}
		}
		err := s.Reserve(t.Context(), &r, unwarned(t))
		require.Equal(t, b.PortOrder, r.PortOrder)
		return err
	}
	require.ErrorIs(t, update(tcp(80, ""), tcp(443, "")), portmap.ErrConflict)
	require.NoError(t, update(tcp(80, ""), tcp(444, "")))
}
