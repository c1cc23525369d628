package configurator

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/sandbox"
)

// TestOrphans: the network namespace that a Teardown has kept is destroyed, unless the allocation
// is set up again.
func TestOrphans(t *testing.T) {
	h, foreign := ownHost(t)
	a := Allocation{ID: "a", OwnNetns: true}
	orphans := func() []string {
		t.Helper()
		list, err := h.Orphans(t.Context())
		require.NoError(t, err)
		return list
	}
	setup := func() {
		t.Helper()
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	setup()
	require.Empty(t, orphans())
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a", Wait: true}))
	require.Equal(t, []string{"/run/own/a"}, orphans())

	unlock, err := h.store.Lock(t.Context(), "a")
	require.NoError(t, err)
	require.Empty(t, orphans(), "an operation works on the allocation: a Setup has no record at first")
	unlock()

	lock := h.netns.Lock
	h.netns.Lock = func(ctx context.Context, id string) (func(), error) {
		setup() // between the search and the lock
		return lock(ctx, id)
	}
	destroyed, err := h.DestroyOrphans(t.Context())
	require.NoError(t, err)
	require.Empty(t, destroyed)
	require.NoError(t, h.CheckOnly(t.Context(), a))
	h.netns.Lock = lock

	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a", Wait: true}))
	destroyed, err = h.DestroyOrphans(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"/run/own/a"}, destroyed)
	require.Empty(t, orphans())
	h.requireNoOwn(foreign)
}

// TestOrphanOfAnother: the namespace of an orphan stays if another allocation uses it.
func TestOrphanOfAnother(t *testing.T) {
	h, _ := ownHost(t)
	_, err := h.Setup(t.Context(), Allocation{ID: "a", OwnNetns: true})
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a", Wait: true}))
	_, err = h.Setup(t.Context(), Allocation{ID: "b", Netns: "/run/own/a"})
	require.NoError(t, err)
	list, err := h.Orphans(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	list, err = h.DestroyOrphans(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	require.NoError(t, sandbox.Validate("/run/own/a"))
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "b", Wait: true}))
	_, err = h.DestroyOrphans(t.Context())
	require.NoError(t, err)
}

// TestOwnNetnsByAnotherName: the directory of namespaces is what it is, whatever a path to it says.
func TestOwnNetnsByAnotherName(t *testing.T) {
	h, foreign := ownHost(t)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink("/run/own", link))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.Symlink("/run/own/a", file))
	for name, remove := range map[string]func() error{
		"teardown": func() error { return h.Teardown(t.Context(), Allocation{ID: "a", OwnNetns: true, Wait: true}) },
		"gc": func() error {
			report, err := h.GCScope(t.Context(), Scope{DestroyNetns: true})
			require.Equal(t, []string{"/run/own/a"}, report.Destroyed)
			return err
		},
	} {
		for _, a := range []Allocation{{Netns: link + "/a", OwnNetns: true}, {Netns: link + "/a"}, {Netns: file}} {
			if !a.OwnNetns {
				_, err := sandbox.CreateIn("/run/own", "a")
				require.NoError(t, err)
			}
			a.ID = "a"
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err, name)
			require.NoError(t, remove(), name)
			require.NoFileExists(t, "/run/own/a", name)
		}
	}
	h.requireNoOwn(foreign)
}

// watchedContext is a context without an end that reports each look at its error. Get looks once,
// before it reads the record.
type watchedContext struct {
	context.Context
	look func() error
}

func (c watchedContext) Err() error { return c.look() }

// TestAuditWithRecord: an audit tells whether the objects are those of an allocation.
func TestAuditWithRecord(t *testing.T) {
	h, _ := interruptedHost(t)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	found, r, err := h.AuditWithRecord(t.Context(), Allocation{ID: "a"})
	require.NoError(t, err)
	require.NotEmpty(t, found)
	require.Equal(t, PhaseReady, r.Phase)

	looks, free := 0, false
	_, _, err = h.AuditWithRecord(watchedContext{t.Context(), func() error {
		locked, unlock, err := h.store.TryLocks([]string{"a"})
		require.NoError(t, err)
		looks, free = looks+1, len(locked) > 0
		unlock()
		return nil
	}}, Allocation{ID: "a"})
	require.NoError(t, err)
	require.False(t, free, "the record is read under the lock of the audit")
	for end := range looks {
		looks := 0
		_, r, err = h.AuditWithRecord(watchedContext{t.Context(), func() error {
			if looks++; looks > end {
				return context.DeadlineExceeded
			}
			return nil
		}}, Allocation{ID: "a"})
		require.ErrorIs(t, err, context.DeadlineExceeded, "look %d", end)
		require.Nil(t, r)
	}

	file := filepath.Join(h.cfg.StateDir, "allocs", "a.json")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, broken := range []bool{true, false} {
		require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
		if !broken {
			require.NoError(t, os.Remove(file))
		}
		lost := Allocation{ID: "a", Netns: a.Netns, Networks: []string{"net"}}
		found, r, err = h.AuditWithRecord(t.Context(), lost)
		require.NotEmpty(t, found)
		require.Nil(t, r)
		if broken {
			var unreadable *RecordError
			require.ErrorAs(t, err, &unreadable)
		} else {
			require.NoError(t, err)
		}
		list, err := h.Audit(t.Context(), lost)
		require.NoError(t, err)
		require.Equal(t, found, list)
	}
	require.NoError(t, os.WriteFile(file, text, 0o600))
	require.NoError(t, h.Teardown(t.Context(), a))
}
