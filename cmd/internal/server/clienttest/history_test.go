package clienttest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/configurator"
)

// TestHistory: the client gets the same history as a program that reads it itself.
func TestHistory(t *testing.T) {
	h := newHost(t, func(c *configurator.Config) { c.Journal = configurator.DefaultJournal })
	c := h.serve(t)
	empty, err := c.History(t.Context(), configurator.HistoryQuery{})
	require.NoError(t, err)
	require.Empty(t, empty)
	for _, a := range []configurator.Allocation{{ID: "a"}, {ID: "b c", Networks: []string{apitest.Failing}}, {ID: "b", Networks: []string{apitest.Failing}}} {
		a.Netns = netns(t)("n" + a.ID[:1] + a.ID[len(a.ID)-1:])
		_, err = c.Setup(t.Context(), a)
		require.Equal(t, a.ID == "a", err == nil)
	}
	for _, q := range []configurator.HistoryQuery{{}, {ID: "a"}, {ID: "b", Limit: 1}, {Limit: 1}, {ID: "?&#"}} {
		want, err := h.History(t.Context(), q)
		require.NoError(t, err)
		got, err := c.History(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, len(want), len(got))
		for i := range want {
			require.True(t, want[i].Time.Equal(got[i].Time))
			want[i].Time = got[i].Time
		}
		require.Equal(t, want, got)
	}
	failed, err := c.History(t.Context(), configurator.HistoryQuery{ID: "b"})
	require.NoError(t, err)
	require.Equal(t, "plugin", failed[0].Kind)
	require.Contains(t, failed[0].Error, "no good")
}
