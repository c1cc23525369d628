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
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// ownNetnsVariable makes the test binary run one operation on the allocation
// "a", which has its own network namespace, under fault injection.
const ownNetnsVariable = "ALLOCNET_TEST_OWN_NETNS"

// ownNetnsRequest describes that operation.
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

// ownHost returns a host with a network whose ADD takes a moment, and a
// directory of namespaces that contains a foreign one.
func ownHost(t *testing.T) (h *testHost, foreign string) {
	t.Helper()
	h = newTestHost(t, func(c *Config) {
		c.Engine = ""
		c.NetnsDir = "/run/own"
	})
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"loopback"}]}`)
	s, err := sandbox.CreateIn("/run/own", "foreign")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	return h, s.Path()
}

// requireNoOwn checks that only the foreign namespace is left.
func (h *testHost) requireNoOwn(foreign string) {
	h.t.Helper()
	require.NoError(h.t, sandbox.Validate(foreign))
	h.settle()
	entries, err := os.ReadDir("/run/own")
	require.NoError(h.t, err)
	require.Len(h.t, entries, 1)
	ids, err := h.store.WithSandboxes()
	require.NoError(h.t, err)
	require.Empty(h.t, ids)
	h.requireNoRecords()
}

func TestOwnNetns(t *testing.T) {
	h, foreign := ownHost(t)
	a := Allocation{ID: "a", OwnNetns: true}
	for range 2 {
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, sandbox.Validate("/run/own/a"))
		report, err := h.GCScope(t.Context(), Scope{Live: []string{"a"}, DestroyNetns: true})
		require.NoError(t, err)
		require.Empty(t, report.Destroyed)
	}
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "/run/own/a", r.Netns)
	require.NoError(t, h.Teardown(t.Context(), a))
	h.requireNoOwn(foreign)
	require.NoError(t, h.Teardown(t.Context(), a), "there is nothing any more")

	for _, path := range []string{"/run/netns/a", "/run/own/../netns/a", "/run/own/x/a", "a"} {
		_, err := h.Setup(t.Context(), Allocation{ID: "a", OwnNetns: true, Netns: path})
		require.ErrorIs(t, err, ErrInvalidAllocation, path)
	}
	for _, id := range []string{"../a", "a/b", ""} {
		_, err := h.Setup(t.Context(), Allocation{ID: id, OwnNetns: true})
		require.ErrorIs(t, err, ErrInvalidAllocation, id)
		require.NotContains(t, err.Error(), "/run/own", "the ID is invalid, not the path")
	}
	_, err = h.Setup(t.Context(), Allocation{ID: "a", OwnNetns: true, Networks: []string{"nope"}})
	require.ErrorIs(t, err, ErrUnknownNetwork)
	h.requireNoOwn(foreign)
	_, err = h.Setup(t.Context(), Allocation{ID: "a", OwnNetns: true, Netns: foreign, Networks: []string{"nope"}})
	require.ErrorIs(t, err, ErrUnknownNetwork)
	h.requireNoOwn(foreign)
}

// TestOwnNetnsOfAnInterruptedSetup: a Setup that removes an interrupted one, and fails, leaves no
// network namespace either.
func TestOwnNetnsOfAnInterruptedSetup(t *testing.T) {
	h, foreign := ownHost(t)
	a := Allocation{ID: "a", OwnNetns: true}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	a.Ports = []portmap.Port{{Value: 8080}} // which no plugin of the network serves
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrDifferent)
	require.NoError(t, sandbox.Validate("/run/own/a"), "it is that of a running allocation")
	h.setPhase("a", record.Adding)
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrUnserved)
	h.requireNoOwn(foreign)
}

// TestForeignNetnsStays: a foreign namespace stays, whatever is recorded about
// its path.
func TestForeignNetnsStays(t *testing.T) {
	h, foreign := ownHost(t)
	_, err := h.Setup(t.Context(), Allocation{ID: "b", Netns: foreign})
	require.NoError(t, err)
	err = h.Teardown(t.Context(), Allocation{ID: "a", Netns: foreign, OwnNetns: true})
	require.ErrorIs(t, err, ErrInUse)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "b"}))

	s, err := sandbox.Open(foreign)
	require.NoError(t, err)
	defer s.Close()
	identity, err := s.Identity()
	require.NoError(t, err)
	boot, err := h.boot()
	require.NoError(t, err)
	other := identity
	other.Inode++
	for name, noted := range map[string]record.Sandbox{
		"another one":     {Path: foreign, Identity: other, Boot: boot},
		"another boot":    {Path: foreign, Identity: identity, Boot: "before"},
		"no longer there": {Path: "/run/own/gone", Identity: identity, Boot: boot},
	} {
		require.NoError(t, h.store.PutSandboxes("a", []record.Sandbox{noted}))
		report, err := h.GCScope(t.Context(), Scope{DestroyNetns: true})
		require.NoError(t, err, name)
		require.Empty(t, report.Destroyed, name)
		h.requireNoOwn(foreign)
	}

	// The namespace that Setup made is used by another allocation now.
	_, err = h.Setup(t.Context(), Allocation{ID: "a", OwnNetns: true})
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
	_, err = h.Setup(t.Context(), Allocation{ID: "b", Netns: "/run/own/a"})
	require.NoError(t, err)
	report, err := h.GCScope(t.Context(), Scope{Live: []string{"b"}, DestroyNetns: true})
	require.NoError(t, err)
	require.Empty(t, report.Destroyed)
	require.NoError(t, h.Check(t.Context(), Allocation{ID: "b"}))
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "b"}))
	report, err = h.GCScope(t.Context(), Scope{})
	require.NoError(t, err)
	require.Empty(t, report.Destroyed, "it was not asked for")
	require.NoError(t, sandbox.Validate("/run/own/a"))
	planned, err := h.PlanGC(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	report, err = h.GCScope(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	require.Equal(t, []string{"/run/own/a"}, report.Destroyed)
	require.Equal(t, planned, report)
	h.requireNoOwn(foreign)
}

// TestTeardownDestroysItsOwnNetns: Teardown destroys no other namespace,
// wherever Netns leads.
func TestTeardownDestroysItsOwnNetns(t *testing.T) {
	h, foreign := ownHost(t)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a", Netns: foreign, OwnNetns: true}))
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "foreign", OwnNetns: true}))
	h.requireNoOwn(foreign)

	own := Allocation{ID: "a", OwnNetns: true}
	_, err := h.Setup(t.Context(), own)
	require.NoError(t, err)
	err = h.Teardown(t.Context(), Allocation{ID: "a", Netns: foreign, OwnNetns: true})
	require.ErrorIs(t, err, ErrDifferent)
	require.NoError(t, h.Check(t.Context(), own), "nothing was done")

	require.NoError(t, os.WriteFile(filepath.Join(h.cfg.StateDir, "allocs", "a.json"), []byte("{"), 0o600))
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a", Netns: foreign, OwnNetns: true}), "Setup noted the path")
	h.requireNoOwn(foreign)

	_, err = h.Setup(t.Context(), Allocation{ID: "a", Netns: foreign})
	require.NoError(t, err)
	require.NoError(t, os.Symlink(foreign, filepath.Join(h.dir, "alias")))
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a", Netns: filepath.Join(h.dir, "alias"), OwnNetns: true}))
	require.NoFileExists(t, foreign, "by its record it is the allocation's own")
}

// TestOwnNetnsThatCannotBeLookedAt: an inaccessible namespace is kept in the
// record, and the error reports it.
func TestOwnNetnsThatCannotBeLookedAt(t *testing.T) {
	h, foreign := ownHost(t)
	a := Allocation{ID: "a", OwnNetns: true}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	loop := func(path string) (undo func()) { // because a mount cannot be renamed
		require.NoError(t, unix.Mount("/run/own/a", filepath.Join(h.dir, "aside"), "", unix.MS_BIND, ""))
		require.NoError(t, sandbox.Destroy(path))
		require.NoError(t, os.Symlink(path, path))
		return func() {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.WriteFile(path, nil, 0o444))
			require.NoError(t, unix.Mount(filepath.Join(h.dir, "aside"), path, "", unix.MS_BIND, ""))
			require.NoError(t, unix.Unmount(filepath.Join(h.dir, "aside"), unix.MNT_DETACH))
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "aside"), nil, 0o444))
	undo := loop("/run/own/a")
	require.ErrorIs(t, h.Teardown(t.Context(), a), unix.ELOOP)
	undo()
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
	undo = loop("/run/own/a")
	h.backlog.settleTime = 100 * time.Millisecond // GC waits for the removal, which fails as well
	for range 2 {
		_, err = h.GCScope(t.Context(), Scope{DestroyNetns: true})
		require.ErrorIs(t, err, unix.ELOOP)
	}
	_, err = h.PlanGC(t.Context(), Scope{DestroyNetns: true})
	require.ErrorIs(t, err, unix.ELOOP)
	undo()
	report, err := h.GCScope(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	require.Equal(t, []string{"/run/own/a"}, report.Destroyed)
	h.requireNoOwn(foreign)
}

// TestGCWaitsForASetup: GC waits for a Setup that has made a network namespace
// but not yet written the record.
func TestGCWaitsForASetup(t *testing.T) {
	h, foreign := ownHost(t)
	unlock, err := h.lock(t.Context(), "a") // the lock that Setup holds
	require.NoError(t, err)
	made, err := h.netns.Make(t.Context(), &Allocation{ID: "a", Netns: "/run/own/a", OwnNetns: true})
	require.NoError(t, err)
	require.True(t, made)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	report, err := h.GCScope(ctx, Scope{DestroyNetns: true})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, report.Destroyed)
	require.NoError(t, sandbox.Validate("/run/own/a"))
	unlock() // as after a kill of its process
	report, err = h.GCScope(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	require.Equal(t, []string{"/run/own/a"}, report.Destroyed)
	h.requireNoOwn(foreign)
}

// TestOwnNetnsAfterAKill kills the process of each operation before every
// change. GC, or Setup and Teardown, then remove everything.
func TestOwnNetnsAfterAKill(t *testing.T) {
	h, foreign := ownHost(t)
	a := Allocation{ID: "a", OwnNetns: true}
	for _, operation := range []string{"setup", "teardown", "gc"} {
		t.Run(operation, func(t *testing.T) {
			for at, killed := 1, true; killed; at++ {
				for _, recover := range []func() error{
					func() error { _, err := h.GCScope(t.Context(), Scope{DestroyNetns: true}); return err },
					func() error { return h.Teardown(t.Context(), a) },
				} {
					if operation != "setup" {
						_, err := h.Setup(t.Context(), a)
						require.NoError(t, err)
					}
					var last faultinject.Point
					killed, last = h.killOwnNetns(operation, at)
					planned, err := h.PlanGC(t.Context(), Scope{DestroyNetns: true})
					require.NoError(t, err)
					require.NoError(t, recover(), "%s, killed at %d: %v", operation, at, last)
					_, err = os.Lstat("/run/own/a")
					require.ErrorIs(t, err, os.ErrNotExist, "%s, killed at %d: %v; planned %v", operation, at, last, planned)
					_, err = h.GC(t.Context(), nil)
					require.NoError(t, err)
					h.requireNoOwn(foreign)
				}
			}
		})
	}
}

// killOwnNetns runs an operation and kills it at one of its points. killed is
// false if it has fewer points.
func (h *testHost) killOwnNetns(operation string, at int) (killed bool, last faultinject.Point) {
	h.t.Helper()
	request, err := json.Marshal(ownNetnsRequest{operation, h.conf, h.cfg.StateDir, h.cfg.NetnsDir})
	require.NoError(h.t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ownNetnsVariable+"="+string(request))
	output, err := os.Create(filepath.Join(h.dir, "output"))
	require.NoError(h.t, err)
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	p, err := faultinject.Start(cmd, func(n int, _ faultinject.Point) faultinject.Verdict {
		return faultinject.Verdict{Kill: n == at}
	})
	require.NoError(h.t, err)
	err = p.Wait()
	if !p.Killed() {
		said, _ := os.ReadFile(output.Name())
		require.NoError(h.t, err, "%s", said)
	}
	<-p.Gone()
	require.NoError(h.t, p.Err())
	points := p.Points()
	return p.Killed(), points[len(points)-1]
}
