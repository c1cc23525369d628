package lease

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHandover(t *testing.T) {
	s := newStore(t)
	long := eth0("pool-0123456789abcdef")
	got := reserve(t, s, long, anyOf(ten, fd00)...)
	other := reserve(t, s, eth0("other"), anyOf(ten)...)
	require.NoError(t, s.Handover(t.Context(), long, eth0("a"), got))
	require.Equal(t, map[string]string{got[0].String(): "a\r\neth0", got[1].String(): "a\r\neth0", other[0].String(): "other\r\neth0"}, dump(t, s))
	held, err := s.Lookup(t.Context(), eth0("a"))
	require.NoError(t, err)
	require.ElementsMatch(t, got, held)
	held, err = s.Lookup(t.Context(), long)
	require.NoError(t, err)
	require.Empty(t, held)

	require.NoError(t, s.Handover(t.Context(), eth0("a"), long, got), "a longer name")
	before := dump(t, s)
	require.ErrorIs(t, s.Handover(t.Context(), long, eth0("b"), append(got, other...)), ErrNotHeld)
	require.Equal(t, before, dump(t, s))
	require.Error(t, s.Handover(t.Context(), long, Owner{ID: "b"}, got))
	require.NoError(t, s.Release(t.Context(), long))
	require.Equal(t, map[string]string{other[0].String(): "other\r\neth0"}, dump(t, s))
}
