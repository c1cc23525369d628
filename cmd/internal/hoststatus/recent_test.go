package hoststatus

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
)

func TestRecentKeepsTheNewest(t *testing.T) {
	var r Recent
	errors, repairs := r.read()
	require.Empty(t, errors)
	require.NotNil(t, errors)
	require.Nil(t, repairs.Last)
	for i := range 2 * keptErrors {
		r.Failed("setup", fmt.Sprint(i), fmt.Errorf("no %d", i))
	}
	r.Healed(client.Heal{Unhealthy: "x", Error: "broken"})
	r.Healed(client.Heal{Restored: 2, Change: "a table was deleted"})
	errors, repairs = r.read()
	require.Len(t, errors, keptErrors)
	require.Equal(t, "heal x broken", errors[0].Operation+" "+errors[0].ID+" "+errors[0].Error)
	require.Equal(t, "setup 19 no 19", errors[1].Operation+" "+errors[1].ID+" "+errors[1].Error)
	require.Equal(t, 1, repairs.Count)
	require.Equal(t, "a table was deleted", repairs.Change)
	require.NotNil(t, repairs.Last)
}

func TestRecentIsOptional(t *testing.T) {
	errors, _ := (*Recent)(nil).read()
	require.Equal(t, []client.RecentError{}, errors)
}
