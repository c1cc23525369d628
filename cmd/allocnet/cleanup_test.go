package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
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

// TestCleanupOfLostRecords: objects that an audit finds are reported, also if the record has been
// lost or damaged since the target was selected.
func TestCleanupOfLostRecords(t *testing.T) {
	privhost.Require(t)
	w := newWorkspace(t)
	conf, err := configurator.New(configurator.Config{StateDir: w.path("state"), OneShot: true})
	require.NoError(t, err)
	_, err = conf.Setup(t.Context(), configurator.Allocation{ID: "own", OwnNetns: true, Networks: []string{"allocnet"}})
	require.NoError(t, err)
	file := w.path("state/allocs/own.json")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for state, change := range map[allocationState]func() error{
		stateNoRecord:   func() error { return os.Remove(file) },
		stateUnreadable: func() error { return os.WriteFile(file, []byte("{"), 0o600) },
	} {
		require.NoError(t, change())
		target := cleanupResult{ID: "own", State: stateInterrupted}
		ended, err := target.clean(t.Context(), conf, cleaning{all: true})
		require.NoError(t, err)
		require.False(t, ended)
		require.Equal(t, state, target.State)
		require.NotEmpty(t, target.Found)
		require.ErrorIs(t, verdict([]cleanupResult{target}), errLeftovers)
		require.NoError(t, os.WriteFile(file, text, 0o600))
	}
	require.NoError(t, conf.Teardown(t.Context(), configurator.Allocation{ID: "own", OwnNetns: true, Wait: true}))
}

// TestIsDamaged: only an allocation that is set up, or has no record and no objects, is left out.
func TestIsDamaged(t *testing.T) {
	found := []configurator.Leftover{{Kind: allocnet.KindLink}}
	for _, state := range []allocationState{stateLive, stateNoRecord, stateUnreadable, stateInterrupted, stateNetnsGone} {
		for _, list := range [][]configurator.Leftover{nil, found} {
			fine := state == stateLive || state == stateNoRecord && len(list) == 0
			require.Equal(t, !fine, (&cleanupResult{State: state, Found: list}).isDamaged(), "%s with %d objects", state, len(list))
		}
	}
}

// TestStateOf: a record that could not be looked at is not missing.
func TestStateOf(t *testing.T) {
	broken := &configurator.RecordError{ID: "web", Err: io.ErrUnexpectedEOF}
	for name, c := range map[string]struct {
		record *configurator.Record
		err    error
		want   allocationState
		fails  bool
	}{
		"no record":                  {want: stateNoRecord},
		"unfinished":                 {record: &configurator.Record{Phase: configurator.PhaseAdding}, want: stateInterrupted},
		"without its namespace":      {record: &configurator.Record{Phase: configurator.PhaseReady, NetnsGone: true}, want: stateNetnsGone},
		"unreadable results":         {record: &configurator.Record{Phase: configurator.PhaseDeleting}, err: io.ErrUnexpectedEOF, want: stateInterrupted},
		"unreadable":                 {err: fmt.Errorf("audit: %w", broken), want: stateUnreadable},
		"unreadable, of another one": {err: &configurator.RecordError{ID: "db", Err: io.ErrUnexpectedEOF}, fails: true},
		"no descriptors":             {err: unix.EMFILE, fails: true},
		"no time":                    {err: context.DeadlineExceeded, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			state, err := stateOf("web", c.record, c.err)
			require.Equal(t, c.want, state)
			if c.fails {
				require.ErrorIs(t, err, c.err)
			} else {
				require.NoError(t, err)
			}
		})
	}
}
