package ruleset

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestReplace: elements change from one state to another and back, whatever of them exists.
func TestReplace(t *testing.T) {
	r := open(t)
	before, after := attachment(0), attachment(0)
	after.Mappings[0].HostPort = 8081                                                                    // another port
	after.Mappings[2].To = netip.AddrPortFrom(after.Mappings[2].To.Addr(), 81)                           // another destination
	after.Mappings = append(after.Mappings, Mapping{Protocol: 6, HostPort: 9, To: after.Mappings[0].To}) // one more
	none := &Elements{Owner: before.Owner}

	require.NoError(t, r.Replace(t.Context(), none, none), "there are no tables")
	for range 2 {
		require.NoError(t, r.Replace(t.Context(), none, before))
		require.NoError(t, r.Check(t.Context(), before))
	}
	n := countElements(t)
	for range 2 {
		require.NoError(t, r.Replace(t.Context(), before, after))
		require.NoError(t, r.Check(t.Context(), after))
		require.Equal(t, n+1, countElements(t))
	}
	require.NoError(t, r.Replace(t.Context(), after, before))
	require.NoError(t, r.Check(t.Context(), before))
	require.Equal(t, n, countElements(t))

	other := attachment(0)
	other.Owner = owner("other")
	other.Mappings = []Mapping{{Protocol: 6, HostPort: 8081, To: other.Mappings[0].To}}
	require.NoError(t, r.Add(t.Context(), &Elements{Owner: other.Owner, Mappings: other.Mappings}))
	require.ErrorIs(t, r.Replace(t.Context(), before, after), ErrPortTaken)
	require.NoError(t, r.Check(t.Context(), before), "nothing has changed")
	require.NoError(t, r.Del(t.Context(), other))

	privhost.FlushRuleset(t)
	require.NoError(t, r.Replace(t.Context(), before, after))
	require.NoError(t, r.Check(t.Context(), after))
	require.NoError(t, r.Replace(t.Context(), after, none))
	require.Zero(t, countElements(t))
}

// TestReplaceFreesShared: a host port that is freed leads to the attachment that waits for it.
func TestReplaceFreesShared(t *testing.T) {
	r := open(t)
	require.NoError(t, r.Add(t.Context(), attachment(0)))
	require.NoError(t, r.Add(t.Context(), attachment(1)))
	requireActive(t, r, 0)
	require.NoError(t, r.Replace(t.Context(), attachment(0), &Elements{Owner: attachment(0).Owner}))
	requireActive(t, r, 1)
	require.NoError(t, r.Replace(t.Context(), &Elements{Owner: attachment(0).Owner}, attachment(0)))
	require.NoError(t, r.Check(t.Context(), attachment(0)), "it waits")
	requireActive(t, r, 1)
}
