package policy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/policystate"
)

// TestSweepKeepsMembersOfANewSetup: between the removal of an attachment and the sweep, another
// process may have set it up again, with the same key.
func TestSweepKeepsMembersOfANewSetup(t *testing.T) {
	store := policystate.New(t.TempDir())
	for _, key := range []string{"removed", "again"} {
		s, err := store.Share(t.Context())
		require.NoError(t, err)
		m := &policystate.Member{Key: key, Allocation: key}
		require.NoError(t, s.PutMember(m, nil))
		require.NoError(t, s.Retire(m))
		if key == "again" {
			is, err := s.Member(key)
			require.NoError(t, err)
			require.NoError(t, s.PutMember(&policystate.Member{Key: key, Allocation: key}, is))
		}
		s.Unlock()
	}
	require.NoError(t, sweep(t.Context(), &sdk.Host{Policies: store}, "removed", "again"))
	left, err := store.Members("")
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "again", left[0].Allocation)
	require.False(t, left[0].Gone)
}
