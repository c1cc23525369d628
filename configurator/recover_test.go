package configurator

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/record"
)

// TestRecover: Recover removes what dead processes left, and nothing else.
func TestRecover(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	for _, id := range []string{"adding", "deleting", "ready"} {
		_, err := h.Setup(t.Context(), h.alloc(id))
		require.NoError(t, err)
	}
	h.setPhase("adding", record.Adding)
	h.setPhase("deleting", record.Deleting)
	report, err := h.Recover(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"adding", "deleting"}, report.Removed)
	require.Len(t, report.Records, 2)
	for i, r := range report.Records {
		require.Equal(t, report.Removed[i], r.ID)
		require.NotEmpty(t, r.Netns)
		require.Equal(t, []NetworkRecord{{Network: "net", Interface: "eth0"}}, r.Networks)
		require.Equal(t, Phase(r.ID), r.Phase)
	}
	records, err := h.List(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.Equal(t, "ready", records[0].ID)
	require.Equal(t, []string{"one ADD", "one ADD", "one ADD", "one DEL", "one DEL"}, h.commands())
}

// TestRecoverWaits: Recover waits for a running operation and keeps its result.
func TestRecoverWaits(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	h.setPhase("a", record.Adding)
	unlock, err := h.lock(t.Context(), "a")
	require.NoError(t, err)
	recovered := make(chan []string, 1)
	started := make(chan struct{})
	go func() {
		close(started)
		report, _ := h.Recover(t.Context())
		recovered <- report.Removed
	}()
	<-started
	h.setPhase("a", record.Ready)
	unlock()
	require.Empty(t, <-recovered)
	_, err = h.Get(t.Context(), "a")
	require.NoError(t, err)
}

// TestRecoverOfWhatCannotBeRead: Recover continues with the other records.
func TestRecoverOfWhatCannotBeRead(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	for _, id := range []string{"a", "b"} {
		_, err := h.Setup(t.Context(), h.alloc(id))
		require.NoError(t, err)
	}
	h.setPhase("b", record.Adding)
	require.NoError(t, os.WriteFile(filepath.Join(h.cfg.StateDir, "allocs", "a.json"), []byte("{"), 0o600))
	report, err := h.Recover(t.Context())
	require.Equal(t, []string{"b"}, report.Removed)
	var e *record.CorruptError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "a", e.ID)
}
