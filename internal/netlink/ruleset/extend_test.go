package ruleset

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestExtend: an attachment gets further elements, and those that it has lost, or nothing
// changes.
func TestExtend(t *testing.T) {
	r := open(t)
	has, more := example(7), example(7)
	has.Mappings, has.Published = nil, nil
	more.Masquerade, more.Open = nil, nil
	require.ErrorIs(t, r.Extend(t.Context(), []*Elements{has}, more), unix.ENOENT, "there is no table")
	require.NoError(t, r.Add(t.Context(), has))
	require.NoError(t, r.Extend(t.Context(), []*Elements{has}, more))
	require.NoError(t, r.Check(t.Context(), has))
	require.NoError(t, r.Check(t.Context(), more))

	want := nft(t, "list", "ruleset")
	taken := example(7) // host ports that more has
	taken.Masquerade, taken.Open, taken.Owner = nil, nil, owner("b")
	require.ErrorIs(t, r.Extend(t.Context(), []*Elements{has}, taken), unix.EEXIST)
	require.Equal(t, want, nft(t, "list", "ruleset"))

	require.NoError(t, r.Del(t.Context(), has))
	require.NoError(t, r.Del(t.Context(), more))
	require.NoError(t, r.Extend(t.Context(), []*Elements{has}, more), "the elements were lost")
	require.NoError(t, r.Check(t.Context(), has))
	require.NoError(t, r.Check(t.Context(), more))
}
