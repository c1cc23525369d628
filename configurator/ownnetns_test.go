package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/faultinject"
	"github.com/allocnet/allocnet/sandbox"
)

// ownNetnsVariable has the test binary do one operation on the allocation "a", which
// has its own network namespace, under fault injection.
const ownNetnsVariable = "ALLOCNET_TEST_OWN_NETNS"

// ownNetnsRequest is such an operation.
type ownNetnsRequest struct{ Operation, Conf, State, NetnsDir string }

func operateOwnNetns(text string) {
	var r ownNetnsRequest
	err := json.Unmarshal([]byte(text), &r)
	c, newErr := New(Config{ConfDir: r.Conf, StateDir: r.State, NetnsDir: r.NetnsDir})
	if err := errors.Join(err, newErr, faultinject.Enter()); err != nil {
		panic(err)
	}
	ctx, a := context.Background(), Allocation{ID: "a", OwnNetns: true}
	switch r.Operation {
	case "setup":
		_, err = c.Setup(ctx, a)
	case "teardown":
		err = c.Teardown(ctx, a)
	case "gc":
		_, err = c.GCScope(ctx, Scope{DestroyNetns: true})
	}
	if err != nil {
		panic(err)
	}
	os.Exit(0)
}

// ownWorld has a network that takes a moment to set up, and namespaces in a directory of
// its own, one of which another program made.
func ownWorld(t *testing.T) (w *world, foreign string) {
	t.Helper()
	w = newWorld(t, func(c *Config) {
		c.Engine = ""
		c.NetnsDir = "/run/own"
	})
	w.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"loopback"}]}`)
	s, err := sandbox.CreateIn("/run/own", "foreign")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	return w, s.Path()
}

// requireNoOwn requires that nothing is left but what is foreign.
func (w *world) requireNoOwn(foreign string) {
	w.t.Helper()
	require.NoError(w.t, sandbox.Validate(foreign))
	entries, err := os.ReadDir("/run/own")
	require.NoError(w.t, err)
	require.Len(w.t, entries, 1)
	ids, err := w.store.WithSandboxes()
	require.NoError(w.t, err)
	require.Empty(w.t, ids)
	w.requireNoRecords()
}

func TestOwnNetns(t *testing.T) {
	w, foreign := ownWorld(t)
	a := Allocation{ID: "a", OwnNetns: true}
	for range 2 {
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, sandbox.Validate("/run/own/a"))
		report, err := w.GCScope(t.Context(), Scope{Live: []string{"a"}, DestroyNetns: true})
		require.NoError(t, err)
		require.Empty(t, report.Destroyed)
	}
	r, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "/run/own/a", r.Netns)
	require.NoError(t, w.Teardown(t.Context(), a))
	w.requireNoOwn(foreign)
	require.NoError(t, w.Teardown(t.Context(), a), "there is nothing any more")

	for _, path := range []string{"/run/netns/a", "/run/own/../netns/a", "/run/own/x/a", "a"} {
		_, err := w.Setup(t.Context(), Allocation{ID: "a", OwnNetns: true, Netns: path})
		require.ErrorIs(t, err, ErrInvalidAllocation, path)
	}
	_, err = w.Setup(t.Context(), Allocation{ID: "a", OwnNetns: true, Networks: []string{"nope"}})
	require.ErrorIs(t, err, ErrUnknownNetwork)
	w.requireNoOwn(foreign)
	_, err = w.Setup(t.Context(), Allocation{ID: "a", OwnNetns: true, Netns: foreign, Networks: []string{"nope"}})
	require.ErrorIs(t, err, ErrUnknownNetwork)
	w.requireNoOwn(foreign)
}

// TestForeignNetnsStays, whatever was noted of its path.
func TestForeignNetnsStays(t *testing.T) {
	w, foreign := ownWorld(t)
	_, err := w.Setup(t.Context(), Allocation{ID: "b", Netns: foreign})
	require.NoError(t, err)
	err = w.Teardown(t.Context(), Allocation{ID: "a", Netns: foreign, OwnNetns: true})
	require.ErrorIs(t, err, ErrInUse)
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "b"}))

	s, err := sandbox.Open(foreign)
	require.NoError(t, err)
	defer s.Close()
	identity, err := s.Identity()
	require.NoError(t, err)
	boot, err := bootID()
	require.NoError(t, err)
	other := identity
	other.Inode++
	for name, noted := range map[string]record.Sandbox{
		"another one":     {Path: foreign, Identity: other, Boot: boot},
		"another boot":    {Path: foreign, Identity: identity, Boot: "before"},
		"no longer there": {Path: "/run/own/gone", Identity: identity, Boot: boot},
	} {
		require.NoError(t, w.store.PutSandboxes("a", []record.Sandbox{noted}))
		report, err := w.GCScope(t.Context(), Scope{DestroyNetns: true})
		require.NoError(t, err, name)
		require.Empty(t, report.Destroyed, name)
		w.requireNoOwn(foreign)
	}

	// What Setup has made, and another allocation lives in now.
	_, err = w.Setup(t.Context(), Allocation{ID: "a", OwnNetns: true})
	require.NoError(t, err)
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "a"}))
	_, err = w.Setup(t.Context(), Allocation{ID: "b", Netns: "/run/own/a"})
	require.NoError(t, err)
	report, err := w.GCScope(t.Context(), Scope{Live: []string{"b"}, DestroyNetns: true})
	require.NoError(t, err)
	require.Empty(t, report.Destroyed)
	require.NoError(t, w.Check(t.Context(), Allocation{ID: "b"}))
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "b"}))
	report, err = w.GCScope(t.Context(), Scope{})
	require.NoError(t, err)
	require.Empty(t, report.Destroyed, "it was not asked for")
	require.NoError(t, sandbox.Validate("/run/own/a"))
	planned, err := w.PlanGC(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	report, err = w.GCScope(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	require.Equal(t, []string{"/run/own/a"}, report.Destroyed)
	require.Equal(t, planned, report)
	w.requireNoOwn(foreign)
}

// TestTeardownDestroysItsOwnNetns and no other one, wherever Netns leads.
func TestTeardownDestroysItsOwnNetns(t *testing.T) {
	w, foreign := ownWorld(t)
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "a", Netns: foreign, OwnNetns: true}))
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "foreign", OwnNetns: true}))
	w.requireNoOwn(foreign)

	own := Allocation{ID: "a", OwnNetns: true}
	_, err := w.Setup(t.Context(), own)
	require.NoError(t, err)
	err = w.Teardown(t.Context(), Allocation{ID: "a", Netns: foreign, OwnNetns: true})
	require.ErrorIs(t, err, ErrDifferent)
	require.NoError(t, w.Check(t.Context(), own), "nothing was done")

	require.NoError(t, os.WriteFile(filepath.Join(w.cfg.StateDir, "allocs", "a.json"), []byte("{"), 0o600))
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "a", Netns: foreign, OwnNetns: true}), "Setup noted the path")
	w.requireNoOwn(foreign)

	_, err = w.Setup(t.Context(), Allocation{ID: "a", Netns: foreign})
	require.NoError(t, err)
	require.NoError(t, os.Symlink(foreign, filepath.Join(w.dir, "alias")))
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "a", Netns: filepath.Join(w.dir, "alias"), OwnNetns: true}))
	require.NoFileExists(t, foreign, "by its record it is the allocation's own")
}

// TestOwnNetnsThatCannotBeLookedAt is neither forgotten nor left behind without a word.
func TestOwnNetnsThatCannotBeLookedAt(t *testing.T) {
	w, foreign := ownWorld(t)
	a := Allocation{ID: "a", OwnNetns: true}
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	loop := func(path string) (undo func()) { // a mount cannot be renamed
		require.NoError(t, unix.Mount("/run/own/a", filepath.Join(w.dir, "aside"), "", unix.MS_BIND, ""))
		require.NoError(t, sandbox.Destroy(path))
		require.NoError(t, os.Symlink(path, path))
		return func() {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.WriteFile(path, nil, 0o444))
			require.NoError(t, unix.Mount(filepath.Join(w.dir, "aside"), path, "", unix.MS_BIND, ""))
			require.NoError(t, unix.Unmount(filepath.Join(w.dir, "aside"), unix.MNT_DETACH))
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "aside"), nil, 0o444))
	undo := loop("/run/own/a")
	require.ErrorIs(t, w.Teardown(t.Context(), a), unix.ELOOP)
	undo()
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "a"}))
	undo = loop("/run/own/a")
	for range 2 {
		_, err = w.GCScope(t.Context(), Scope{DestroyNetns: true})
		require.ErrorIs(t, err, unix.ELOOP)
	}
	_, err = w.PlanGC(t.Context(), Scope{DestroyNetns: true})
	require.ErrorIs(t, err, unix.ELOOP)
	undo()
	report, err := w.GCScope(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	require.Equal(t, []string{"/run/own/a"}, report.Destroyed)
	w.requireNoOwn(foreign)
}

// TestGCWaitsForASetup that is about to give a network namespace its allocation.
func TestGCWaitsForASetup(t *testing.T) {
	w, foreign := ownWorld(t)
	unlock, err := w.lock(t.Context(), "a") // as Setup has it
	require.NoError(t, err)
	made, err := w.makeNetns(&Allocation{ID: "a", Netns: "/run/own/a", OwnNetns: true})
	require.NoError(t, err)
	require.True(t, made)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	report, err := w.GCScope(ctx, Scope{DestroyNetns: true})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, report.Destroyed)
	require.NoError(t, sandbox.Validate("/run/own/a"))
	unlock() // as if its process were killed
	report, err = w.GCScope(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	require.Equal(t, []string{"/run/own/a"}, report.Destroyed)
	w.requireNoOwn(foreign)
}

// TestOwnNetnsAfterAKill kills the process of each operation before everything that it
// changes: whatever is there then, GC finds, or Setup and Teardown.
func TestOwnNetnsAfterAKill(t *testing.T) {
	w, foreign := ownWorld(t)
	a := Allocation{ID: "a", OwnNetns: true}
	for _, operation := range []string{"setup", "teardown", "gc"} {
		t.Run(operation, func(t *testing.T) {
			for at, killed := 1, true; killed; at++ {
				for _, recover := range []func() error{
					func() error { _, err := w.GCScope(t.Context(), Scope{DestroyNetns: true}); return err },
					func() error { return w.Teardown(t.Context(), a) },
				} {
					if operation != "setup" {
						_, err := w.Setup(t.Context(), a)
						require.NoError(t, err)
					}
					var last faultinject.Point
					killed, last = w.killOwnNetns(operation, at)
					planned, err := w.PlanGC(t.Context(), Scope{DestroyNetns: true})
					require.NoError(t, err)
					require.NoError(t, recover(), "%s, killed at %d: %v", operation, at, last)
					_, err = os.Lstat("/run/own/a")
					require.ErrorIs(t, err, os.ErrNotExist, "%s, killed at %d: %v; planned %v", operation, at, last, planned)
					_, err = w.GC(t.Context(), nil)
					require.NoError(t, err)
					w.requireNoOwn(foreign)
				}
			}
		})
	}
}

// killOwnNetns does an operation and kills it at one of its points, if there are as many.
func (w *world) killOwnNetns(operation string, at int) (killed bool, last faultinject.Point) {
	w.t.Helper()
	request, err := json.Marshal(ownNetnsRequest{operation, w.conf, w.cfg.StateDir, w.cfg.NetnsDir})
	require.NoError(w.t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ownNetnsVariable+"="+string(request))
	output, err := os.Create(filepath.Join(w.dir, "output"))
	require.NoError(w.t, err)
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	p, err := faultinject.Start(cmd, func(n int, _ faultinject.Point) faultinject.Verdict {
		return faultinject.Verdict{Kill: n == at}
	})
	require.NoError(w.t, err)
	err = p.Wait()
	if !p.Killed() {
		said, _ := os.ReadFile(output.Name())
		require.NoError(w.t, err, "%s", said)
	}
	<-p.Gone()
	require.NoError(w.t, p.Err())
	points := p.Points()
	return p.Killed(), points[len(points)-1]
}
