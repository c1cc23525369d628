package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// TestTeardownGone: only an allocation without its network namespace is torn down.
func TestTeardownGone(t *testing.T) {
	w := newWorkspace(t)
	s := w.sandbox("web")
	w.run("setup", "web").ok(t)
	const kept = "ok: web is kept: its network namespace exists, or it has no record\n"
	require.Equal(t, kept, w.run("teardown", "--gone", "web").ok(t))
	require.Equal(t, teardownReport{ID: "web", Kept: true, Forced: []configurator.Leftover{}}, decode[teardownReport](t, w.run("teardown", "--gone", "web", "--json").ok(t)))
	w.run("check", "web").ok(t)
	require.NoError(t, sandbox.Destroy(s.Path()))
	require.Equal(t, "ok: web is torn down\n", w.run("teardown", "--gone", "web").ok(t))
	require.JSONEq(t, "[]", w.run("ls", "--json").ok(t))
	require.Equal(t, kept, w.run("teardown", "--gone", "web").ok(t))
}

// TestCleanupOrphans: what an allocation uses stays.
func TestCleanupOrphans(t *testing.T) {
	w := newWorkspace(t)
	path := w.named("made")
	w.run("setup", "made", "--create").ok(t)
	require.Equal(t, "destroyed 0 network namespaces\n", w.run("cleanup", "--orphans").ok(t))
	w.run("check", "made").ok(t)
	w.run("gc", "--none").ok(t)
	require.NoError(t, sandbox.Validate(path))
	require.Equal(t, "destroyed 1 network namespace\n  - "+path+"\n", w.run("cleanup", "--orphans").ok(t))
	require.NoFileExists(t, path)
	require.JSONEq(t, `{"destroyed": []}`, w.run("cleanup", "--orphans", "--json").ok(t))
	require.Contains(t, w.run("cleanup", "--orphans", "made", "--json").failure(t, exitUsage).Error, "takes no ID")
}

// TestCleanupOfEndedOperations: a target whose operation has ended since it was selected, is none
// any more, unless it was named.
func TestCleanupOfEndedOperations(t *testing.T) {
	privhost.Require(t)
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web").ok(t)
	conf, err := configurator.New(configurator.Config{ConfDir: w.path("conf"), StateDir: w.path("state"), PluginDirs: []string{w.path("plugins")}, OneShot: true})
	require.NoError(t, err)
	audit := func(id string, selected allocationState, how cleaning) (allocationState, bool) {
		t.Helper()
		target := cleanupResult{ID: id, State: selected}
		ended, err := target.clean(t.Context(), conf, how)
		require.NoError(t, err)
		return target.State, ended
	}
	for _, selected := range []allocationState{stateInterrupted, stateNetnsGone} {
		state, ended := audit("web", selected, cleaning{all: true})
		require.Equal(t, stateLive, state)
		require.True(t, ended)
		state, ended = audit("torn-down", selected, cleaning{all: true})
		require.Equal(t, stateNoRecord, state)
		require.True(t, ended)
		_, ended = audit("web", selected, cleaning{all: true, force: true})
		require.True(t, ended)
	}
	w.run("check", "web").ok(t)
	state, ended := audit("web", stateInterrupted, cleaning{})
	require.Equal(t, stateLive, state)
	require.False(t, ended, "it was named")
	target := cleanupResult{ID: "web", State: stateInterrupted}
	_, err = target.clean(t.Context(), conf, cleaning{force: true})
	require.ErrorIs(t, err, configurator.ErrSetUp)

	store := record.Open(w.path("state"))
	r, err := store.Get("web")
	require.NoError(t, err)
	require.NoError(t, store.Acknowledge(r))
	state, ended = audit("web", stateInterrupted, cleaning{all: true})
	require.Equal(t, stateInterrupted, state, "the removal does not end")
	require.False(t, ended)
	removed := make(chan error)
	go func() { removed <- os.Remove(w.path("state/allocs/web.json")) }()
	_, ended = audit("web", stateInterrupted, cleaning{all: true, until: time.Now().Add(time.Minute)})
	require.NoError(t, <-removed)
	require.True(t, ended, "the audit waits for the removal")
}
