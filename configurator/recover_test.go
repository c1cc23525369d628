package configurator

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/record"
)

// TestRecover takes down what processes that died left, and nothing else.
func TestRecover(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	for _, id := range []string{"adding", "deleting", "ready"} {
		_, err := w.Setup(t.Context(), w.alloc(id))
		require.NoError(t, err)
	}
	w.setPhase("adding", record.Adding)
	w.setPhase("deleting", record.Deleting)
	report, err := w.Recover(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"adding", "deleting"}, report.Removed)
	require.Len(t, report.Records, 2)
	for i, r := range report.Records {
		require.Equal(t, report.Removed[i], r.ID)
		require.NotEmpty(t, r.Netns)
		require.Equal(t, []NetworkRecord{{Network: "net", Interface: "eth0"}}, r.Networks)
		require.Equal(t, Phase(r.ID), r.Phase)
	}
	records, err := w.List(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.Equal(t, "ready", records[0].ID)
	require.Equal(t, []string{"one ADD", "one ADD", "one ADD", "one DEL", "one DEL"}, w.commands())
}

// TestRecoverWaits for an operation, and leaves alone what came of it.
func TestRecoverWaits(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.NoError(t, err)
	w.setPhase("a", record.Adding)
	unlock, err := w.lock(t.Context(), "a")
	require.NoError(t, err)
	recovered := make(chan []string, 1)
	started := make(chan struct{})
	go func() {
		close(started)
		report, _ := w.Recover(t.Context())
		recovered <- report.Removed
	}()
	<-started
	w.setPhase("a", record.Ready)
	unlock()
	require.Empty(t, <-recovered)
	_, err = w.Get(t.Context(), "a")
	require.NoError(t, err)
}

// TestRecoverOfWhatCannotBeRead goes on with the others.
func TestRecoverOfWhatCannotBeRead(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	for _, id := range []string{"a", "b"} {
		_, err := w.Setup(t.Context(), w.alloc(id))
		require.NoError(t, err)
	}
	w.setPhase("b", record.Adding)
	require.NoError(t, os.WriteFile(filepath.Join(w.cfg.StateDir, "allocs", "a.json"), []byte("{"), 0o600))
	report, err := w.Recover(t.Context())
	require.Equal(t, []string{"b"}, report.Removed)
	var e *record.CorruptError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "a", e.ID)
}
