package ruleset

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckOnce: checks with the same context do not read a table again that one of them
// has found complete, but they look up elements. An incomplete table is read again.
func TestCheckOnce(t *testing.T) {
	r := open(t)
	once := CheckOnce(t.Context())
	require.ErrorIs(t, r.Check(once, everything()), ErrMissing)
	require.ErrorIs(t, r.CheckGuard(once, IPv4), ErrMissing)
	require.NoError(t, r.Add(t.Context(), everything()))
	require.NoError(t, r.Guard(t.Context(), IPv4))
	require.NoError(t, r.Check(once, everything()), "the tables were made in the meantime")
	require.NoError(t, r.CheckGuard(once, IPv4))

	nft(t, "flush", "table", "ip", "allocnet")
	nft(t, "flush", "table", "ip", "allocnet_guard")
	require.NoError(t, r.Check(once, everything()))
	require.NoError(t, r.CheckGuard(once, IPv4))
	for _, anew := range []func() error{
		func() error { return r.Check(t.Context(), everything()) },
		func() error { return r.CheckGuard(t.Context(), IPv4) },
		func() error { return r.Check(CheckOnce(once), everything()) },
	} {
		require.ErrorIs(t, anew(), ErrMissing)
	}
	require.NoError(t, r.Del(t.Context(), everything()))
	require.ErrorContains(t, r.Check(once, everything()), "open address")
}
