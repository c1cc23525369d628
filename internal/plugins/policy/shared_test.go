package policy

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/policystate"
)

// TestStoredGroup: the group is that of the store, also after it has changed.
func TestStoredGroup(t *testing.T) {
	store := policystate.New(t.TempDir())
	a := &attachment{args: &sdk.CmdArgs{Host: &sdk.Host{Policies: store}}, policy: &compiled{Policy: policystate.Policy{ID: "p", Content: json.RawMessage("{}")}}}
	_, err := a.storedGroup()
	require.ErrorContains(t, err, "its file is missing")
	s, err := store.Exclusive(t.Context())
	require.NoError(t, err)
	defer s.Unlock()
	for _, group := range []uint32{7, 8} {
		former, err := s.Policy("p")
		require.NoError(t, err)
		p := a.policy.Policy
		p.Group = group
		require.NoError(t, s.Begin(&p, former))
		for range 2 {
			is, err := a.storedGroup()
			require.NoError(t, err)
			require.Equal(t, group, is)
		}
	}
	require.NoError(t, s.Delete(&policystate.Policy{ID: "p", Group: 8}))
	_, err = a.storedGroup()
	require.ErrorContains(t, err, "its file is missing")
}

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
