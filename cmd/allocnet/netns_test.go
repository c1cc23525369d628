package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// named returns the path of a namespace that is destroyed when the test ends.
func (w *workspace) named(name string) string {
	w.Helper()
	privhost.Require(w)
	path := filepath.Join(sandbox.DefaultDir, name)
	w.Cleanup(func() { require.NoError(w, sandbox.Destroy(path)) })
	return path
}

func TestSetupCreateCanBeRepeated(t *testing.T) {
	w := newWorkspace(t)
	path := w.named("made")
	w.run("setup", "made", "--create").ok(t)
	require.NoError(t, sandbox.Validate(path))
	w.run("setup", "made", "--create").ok(t)
	require.Equal(t, []string{"fake ADD", "fake CHECK"}, w.commands())

	w.run("gc", "--none").ok(t)
	require.NoError(t, sandbox.Validate(path))
	w.run("setup", "made", "--create").ok(t)
	w.run("teardown", "made", "--destroy").ok(t)
}

// TestSetupCreateAfterACrash: a killed process left the file of a namespace
// that it had not created yet.
func TestSetupCreateAfterACrash(t *testing.T) {
	w := newWorkspace(t)
	path := w.named("killed")
	other, err := sandbox.Create("other") // also creates the directory
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Destroy()) })
	require.NoError(t, os.WriteFile(path, nil, 0o444))
	w.run("setup", "killed", "--create").ok(t)
	require.NoError(t, sandbox.Validate(path))
	w.run("teardown", "killed", "--destroy").ok(t)
}

func TestFailedSetupDestroysOnlyWhatItMade(t *testing.T) {
	w := newWorkspace(t)
	path := w.named("made")
	report := w.run("setup", "made", "--create", "--network", "nope", "--json").failure(t, exitFailure)
	require.Contains(t, report.Error, `"front"`)
	require.Equal(t, "unknown-network", report.Kind)
	require.NoFileExists(t, path)

	s := w.sandbox("there")
	w.run("setup", "there", "--create", "--network", "nope", "--json").failure(t, exitFailure)
	require.NoError(t, sandbox.Validate(s.Path()), "what was there before stays")
}

// TestIncompleteSetupKeepsItsNamespace: a later DEL needs the namespace.
func TestIncompleteSetupKeepsItsNamespace(t *testing.T) {
	w := newWorkspace(t)
	path := w.named("made")
	refuse := fakeplugin.Behaviour{Code: 7, Msg: "no"}
	w.network("10-front", "front", map[string]fakeplugin.Behaviour{"ADD": refuse, "DEL": refuse})
	report := w.run("setup", "made", "--create", "--json", "--log-level", "off").failure(t, exitFailure)
	require.Equal(t, "incomplete", report.Kind)
	require.Equal(t, uint(7), report.Code)
	require.NoError(t, sandbox.Validate(path))
	cleaned := decode[cleanupReport](t, w.run("cleanup", "--force", "--destroy", "--json").ok(t))
	require.True(t, cleaned.Allocations[0].Destroyed)
	require.NoFileExists(t, path)
}

func TestTeardownTellsWhetherItDestroyed(t *testing.T) {
	w := newWorkspace(t)
	w.named("made")
	w.run("setup", "made", "--create").ok(t)
	want := teardownReport{ID: "made", Destroyed: true, Forced: []configurator.Leftover{}}
	require.Equal(t, want, decode[teardownReport](t, w.run("teardown", "made", "--destroy", "--json").ok(t)))
	want.Destroyed = false
	require.Equal(t, want, decode[teardownReport](t, w.run("teardown", "made", "--destroy", "--json").ok(t)))
	require.Equal(t, "ok: made has no record; nothing of it is left on the host\nno network namespace at /run/netns/made\n",
		w.run("teardown", "made", "--destroy").ok(t))
}

func TestTeardownSparesTheNamespaceOfAnother(t *testing.T) {
	w := newWorkspace(t)
	s := w.sandbox("web")
	w.run("setup", "web").ok(t)
	report := w.run("teardown", "wbe", "--destroy", "--netns", s.Path(), "--json").failure(t, exitUsage)
	require.Equal(t, "in-use", report.Kind)
	require.Contains(t, report.Error, `belongs to allocation "web"`)
	report = w.run("teardown", "a/b", "--destroy", "--netns", s.Path(), "--json").failure(t, exitUsage)
	require.Contains(t, report.Error, `ID "a/b"`, "that comes first")
	require.NoError(t, sandbox.Validate(s.Path()))
	w.run("check", "web").ok(t)
	w.run("teardown", "web", "--destroy").ok(t)
}

func TestGCDestroys(t *testing.T) {
	w := newWorkspace(t)
	for _, id := range []string{"a", "b", "c"} {
		w.named(id)
		w.run("setup", id, "--create").ok(t)
	}
	elsewhere := w.path("elsewhere")
	s, err := sandbox.CreateIn(elsewhere, "d")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()); unmount(t, elsewhere) })
	w.run("setup", "d", "--netns", s.Path()).ok(t)

	want := []string{"/run/netns/b", "/run/netns/c"}
	report := decode[gcReport](t, w.run("gc", "--live", "a", "--destroy", "--dry-run", "--json").ok(t))
	require.Equal(t, want, report.Destroyed)
	require.FileExists(t, want[0])
	report = decode[gcReport](t, w.run("gc", "--live", "a", "--destroy", "--json").ok(t))
	require.Equal(t, []string{"b", "c", "d"}, report.Removed)
	require.Equal(t, want, report.Destroyed)
	require.NoFileExists(t, want[0])
	require.NoError(t, sandbox.Validate("/run/netns/a"), "it lives")
	require.NoError(t, sandbox.Validate(s.Path()), "it is not in the directory of named ones")

	require.Equal(t, "removed 1 allocation, kept 0 allocations\n  - a\ndestroyed network namespace /run/netns/a\n",
		w.run("gc", "--none", "--destroy").ok(t))
}

func TestCleanupDestroysOnlyOnDemand(t *testing.T) {
	w := newWorkspace(t)
	path := w.named("web")
	w.run("setup", "web", "--create").ok(t)
	require.Equal(t, "set-up", w.run("cleanup", "--force", "--destroy", "web", "--json").failure(t, exitFailure).Kind)
	require.NoError(t, sandbox.Validate(path), "nothing happens to what is set up")
	w.interrupt("web")
	require.NotContains(t, w.run("cleanup", "--force", "web").ok(t), "destroyed")
	require.NoError(t, sandbox.Validate(path))

	path = w.named("db")
	w.run("setup", "db", "--create").ok(t)
	w.interrupt("db")
	require.Contains(t, w.run("cleanup", "--force", "--destroy", "db").ok(t), "  network namespace /run/netns/db destroyed\n")
	require.NoFileExists(t, path)
}

// TestCleanupSparesAnotherNamespaceAtThePath: cleanup destroys the allocation's own
// namespace, and no other that is mounted at its path.
func TestCleanupSparesAnotherNamespaceAtThePath(t *testing.T) {
	w := newWorkspace(t)
	path := w.named("web")
	w.run("setup", "web", "--create").ok(t)
	require.NoError(t, sandbox.Destroy(path))
	s, err := sandbox.Create("web")
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Contains(t, w.run("cleanup", "--audit").out, "web (netns gone): ")
	require.NotContains(t, w.run("cleanup", "--force", "--destroy").ok(t), "destroyed")
	require.NoError(t, sandbox.Validate(path))
}

// TestHintsForAnotherNamespace: if another namespace is at the path, the hint
// suggests a teardown.
func TestHintsForAnotherNamespace(t *testing.T) {
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	for name, run := range map[string]func(...string) outcome{"alone": w.run, "daemon": ask} {
		t.Run(name, func(t *testing.T) {
			path := w.named("web")
			run("setup", "web", "--create").ok(t)
			require.NoError(t, sandbox.Destroy(path))
			requireTeardownFirst(t, run("check", "web", "--json").failure(t, exitNo))
			requireTeardownFirst(t, run("setup", "web", "--new", "--json").failure(t, exitFailure))
			s, err := sandbox.Create("web")
			require.NoError(t, err)
			require.NoError(t, s.Close())
			requireTeardownFirst(t, run("check", "web", "--json").failure(t, exitNo))
			requireTeardownFirst(t, run("setup", "web", "--new", "--json").failure(t, exitFailure))
			run("teardown", "web").ok(t)
			run("setup", "web", "--new").ok(t)
			run("teardown", "web", "--destroy").ok(t)
		})
	}
}

func requireTeardownFirst(t *testing.T, e errorReport) {
	t.Helper()
	require.Regexp(t, "^[^`]*`allocnet teardown web`", e.Hint, e.Error)
	require.NotContains(t, e.Hint, "repair")
}

// interrupt changes the record as an interrupted teardown leaves it.
func (w *workspace) interrupt(id string) {
	w.Helper()
	store := record.Open(w.path("state"))
	r, err := store.Get(id)
	require.NoError(w, err)
	r.Phase = record.Deleting
	require.NoError(w, store.Put(r))
}

func unmount(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, unix.Unmount(dir, 0))
}

// TestGCDestroysWhatIsLeft: gc destroys a namespace that setup --create made, and keeps
// one that another program made.
func TestGCDestroysWhatIsLeft(t *testing.T) {
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	foreign := w.sandbox("foreign").Path()
	for _, run := range []func(...string) outcome{w.run, ask} {
		path := w.named("web")
		run("setup", "web", "--create").ok(t)
		run("teardown", "web").ok(t)
		require.Empty(t, decode[gcReport](t, run("gc", "--none", "--json").ok(t)).Destroyed)
		require.NoError(t, sandbox.Validate(path))
		require.Empty(t, decode[gcReport](t, run("gc", "--live", "web", "--destroy", "--json").ok(t)).Destroyed)
		require.Equal(t, "would remove 0 allocations, kept 0 allocations\nwould destroy network namespace "+path+"\n",
			run("gc", "--none", "--destroy", "--dry-run").ok(t))
		require.Equal(t, []string{path}, decode[gcReport](t, run("gc", "--none", "--destroy", "--json").ok(t)).Destroyed)
		require.NoFileExists(t, path)
		require.NoError(t, sandbox.Validate(foreign))
	}
}

// TestTeardownSparesForeignNamespaces: teardown destroys only the namespace
// that is in the record or that Setup made, whatever --netns says.
func TestTeardownSparesForeignNamespaces(t *testing.T) {
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	foreign := w.sandbox("foreign").Path()
	for name, run := range map[string]func(...string) outcome{"alone": w.run, "daemon": ask} {
		t.Run(name, func(t *testing.T) {
			path := w.named("web")
			run("setup", "web", "--create").ok(t)
			refused := run("teardown", "web", "--destroy", "--netns", foreign, "--json").failure(t, exitFailure)
			require.Equal(t, "different", refused.Kind)
			require.NoError(t, sandbox.Validate(foreign))
			require.NoError(t, sandbox.Validate(path))
			run("check", "web").ok(t)
			run("teardown", "web", "--destroy").ok(t)
			require.NoFileExists(t, path)

			other := w.sandbox("web") // a namespace of another program with the same name
			defer other.Destroy()
			for _, args := range [][]string{{"--netns", foreign}, nil} {
				args = append([]string{"teardown", "web", "--destroy", "--json"}, args...)
				require.False(t, decode[teardownReport](t, run(args...).ok(t)).Destroyed)
				require.NoError(t, sandbox.Validate(foreign))
				require.NoError(t, sandbox.Validate(path))
			}
			require.Equal(t, "ok: web has no record; nothing of it is left on the host\nnetwork namespace "+path+" is kept: it is not known to belong to the allocation\n",
				run("teardown", "web", "--destroy").ok(t))
		})
	}
}

// TestTeardownSparesANamespaceWithTheInode: a new namespace may have the
// recorded inode, because the kernel reuses inodes.
func TestTeardownSparesANamespaceWithTheInode(t *testing.T) {
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	for name, run := range map[string]func(...string) outcome{"alone": w.run, "daemon": ask} {
		t.Run(name, func(t *testing.T) {
			for _, remove := range []func() outcome{
				func() outcome { return run("teardown", "web", "--destroy", "--json") },
				func() outcome { return w.run("cleanup", "--force", "--destroy", "web", "--json") },
			} {
				s := w.sandbox("web")
				run("setup", "web").ok(t)
				w.forgeCookie("web")
				require.NotContains(t, remove().ok(t), `"destroyed": true`)
				require.NoError(t, sandbox.Validate(s.Path()))
				require.NoError(t, s.Destroy())
			}
		})
	}
}

// forgeCookie changes the record to another namespace with the same inode.
func (w *workspace) forgeCookie(id string) {
	w.Helper()
	store := record.Open(w.path("state"))
	r, err := store.Get(id)
	require.NoError(w, err)
	r.Namespace.Cookie++
	require.NoError(w, store.Put(r))
}

// TestOwnersByAnotherPath: a network namespace belongs to an allocation by whatever path.
func TestOwnersByAnotherPath(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Symlink(dir, dir+"/link"))
	o := owners{"other": dir + "/link/a", "gone": dir + "/gone"}
	require.ErrorIs(t, o.checkFree(file, "own"), configurator.ErrInUse)
	require.NoError(t, o.checkFree(file, "other"))
	require.NoError(t, o.checkFree(dir+"/b", "own"))
	require.ErrorIs(t, o.checkFree(dir+"/gone", "own"), configurator.ErrInUse)
}
