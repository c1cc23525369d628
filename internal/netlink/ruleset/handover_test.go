package ruleset

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestHandover: elements get another owner together with new ones, or nothing changes.
func TestHandover(t *testing.T) {
	r := open(t)
	slot, now, ports := example(7), example(7), example(7)
	slot.Mappings, slot.Published = nil, nil
	now.Mappings, now.Published, now.Owner = nil, nil, owner("a")
	ports.Masquerade, ports.Open, ports.Owner = nil, nil, owner("a")
	require.NoError(t, r.Add(t.Context(), slot))
	require.NoError(t, r.Handover(t.Context(), []*Elements{slot}, []*Elements{now, ports}))
	require.NoError(t, r.Check(t.Context(), now))
	require.NoError(t, r.Check(t.Context(), ports))
	require.ErrorIs(t, r.Check(t.Context(), slot), ErrMissing)

	want := nft(t, "list", "ruleset")
	require.ErrorIs(t, r.Handover(t.Context(), []*Elements{example(8)}, []*Elements{now}), unix.ENOENT, "nothing to hand over")
	require.Equal(t, want, nft(t, "list", "ruleset"))
	other := example(9)
	other.Mappings, other.Published = nil, nil
	require.NoError(t, r.Add(t.Context(), other))
	want = nft(t, "list", "ruleset")
	taken := example(7) // host ports of a
	taken.Masquerade, taken.Open, taken.Owner = nil, nil, owner("b")
	require.ErrorIs(t, r.Handover(t.Context(), []*Elements{other}, []*Elements{taken}), unix.EEXIST)
	require.Equal(t, want, nft(t, "list", "ruleset"))

	require.NoError(t, r.Del(t.Context(), now))
	require.NoError(t, r.Del(t.Context(), ports))
	require.ErrorIs(t, r.Handover(t.Context(), []*Elements{now}, []*Elements{slot}), unix.ENOENT, "after a flush")
}
