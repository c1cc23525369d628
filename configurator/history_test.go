package configurator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/journal"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestHistory: retries, roll-backs and forced removals are in the history, and removals in
// the background are entries of their own.
func TestHistory(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`)
	cfg := h.cfg
	cfg.Network, cfg.Journal = "", DefaultJournal
	h.Configurator = newConfigurator(t, cfg)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), a))
	require.NoError(t, h.Teardown(t.Context(), a))
	h.backlog.settle(t.Context(), 0)
	b := h.alloc("b")
	b.Networks = []string{"nowhere"}
	_, err = h.Setup(t.Context(), b)
	require.ErrorIs(t, err, ErrUnknownNetwork)
	report, err := h.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, report.Removed)

	list, err := h.History(t.Context(), HistoryQuery{})
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.ID+" "+e.Operation+" "+e.Kind)
	}
	require.Equal(t, []string{"a setup ", "a teardown ", "a remove ", "b setup unknown-network"}, names)
	require.Equal(t, []string{"net"}, list[0].Networks)
	require.Equal(t, EngineNative, list[0].Engine)

	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	collected, err := h.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, collected.Removed)
	list, err = h.History(t.Context(), HistoryQuery{ID: "a", Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "gc", list[0].Operation)
	require.Contains(t, stepsOf(list[0]), StepDel)
}

func stepsOf(e HistoryEntry) (steps []string) {
	for _, s := range e.Steps {
		steps = append(steps, s.Step)
	}
	return steps
}

// TestHistoryOfRetries: every attempt is in the history.
func TestHistoryOfRetries(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Journal, c.Retry = DefaultJournal, RetryPolicy{Attempts: 2, Delay: -1, Jitter: -1} })
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 11, Msg: "later"}}))
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.Error(t, err)
	list, err := h.History(t.Context(), HistoryQuery{ID: "a"})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, []string{StepLock, StepPlan, StepReserve, StepAdd, StepDel, StepAudit, StepRollBack, StepWait, StepAdd, StepDel, StepAudit, StepRollBack}, stepsOf(list[0]))
	require.NotEmpty(t, list[0].Steps[3].Error)
}

// TestHistoryOfRestore: what was restored behind the back of the operator is in the history.
func TestHistoryOfRestore(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`)
	cfg := h.cfg
	cfg.Network, cfg.Journal = "", DefaultJournal
	h.Configurator = newConfigurator(t, cfg)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = h.Restore(t.Context())
	require.NoError(t, err)
	list, err := h.History(t.Context(), HistoryQuery{})
	require.NoError(t, err)
	require.Len(t, list, 1, "nothing was missing")
	privhost.FlushRuleset(t)
	report, err := h.Restore(journal.WithCause(t.Context(), "deletion of table ip allocnet"))
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Restored)
	privhost.FlushRuleset(t)
	repaired, err := h.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, repaired.Repaired)
	list, err = h.History(t.Context(), HistoryQuery{})
	require.NoError(t, err)
	require.Len(t, list, 3)
	for _, e := range list[1:] {
		require.Equal(t, "repair", e.Operation)
		require.Equal(t, list[0].Networks, e.Networks)
		require.Equal(t, EngineNative, e.Engine)
		require.Empty(t, e.Error)
	}
	require.Equal(t, "deletion of table ip allocnet", list[1].Cause)
	require.Contains(t, list[2].Cause, `allocation "a": `+ErrUnhealthy.Error())

	privhost.FlushRuleset(t)
	was, err := h.CheckAndRepair(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, was)
	list, err = h.History(t.Context(), HistoryQuery{Limit: 1})
	require.NoError(t, err)
	require.Contains(t, list[0].Cause, `allocation "a": `+ErrUnhealthy.Error())
	a.Wait = true
	require.NoError(t, h.Teardown(t.Context(), a))
}
