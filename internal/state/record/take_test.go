package record

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// slotIn writes the record of a slot.
func slotIn(t *testing.T, s *Store) *Record {
	t.Helper()
	slot := sample("pool-1")
	slot.Phase, slot.Pool, slot.Ports, slot.Capabilities, slot.Netns = Pooled, "p", nil, nil, "/proc/1/fd/7"
	slot.Namespace = sandbox.Identity{Device: 4, Inode: 7}
	require.NoError(t, s.Reserve(t.Context(), slot, unwarned(t)))
	require.NoError(t, s.Update(slot))
	return slot
}

func openSlot(t *testing.T, s *Store) *Slot {
	t.Helper()
	file, err := s.OpenSlot("pool-1")
	require.NoError(t, err)
	t.Cleanup(file.Close)
	return file
}

// taker returns the record of an allocation that takes a slot.
func taker(id string, slot *Record) *Record {
	r := sample(id)
	r.Slot, r.Namespace, r.Attachments, r.Requested, r.Scope = slot.ID, slot.Namespace, slot.Attachments, nil, "cni"
	return r
}

// TestTake: the record of a slot becomes that of an allocation.
func TestTake(t *testing.T) {
	s := open(t)
	slot := slotIn(t, s)
	want := taker("a", slot)
	file := openSlot(t, s)
	require.NoError(t, file.Take(t.Context(), want, unwarned(t)))
	require.Equal(t, Adding, want.Phase)
	got, err := s.Get("a")
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, "pool-1", got.Container())
	_, err = s.Get("pool-1")
	require.ErrorIs(t, err, fs.ErrNotExist)

	want.Phase = Ready
	require.NoError(t, file.Update(want))
	got, err = s.Get("a")
	require.NoError(t, err)
	require.Equal(t, want, got)
	others, err := s.Residents("b", "/elsewhere", slot.Namespace)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, others)

	conflict := sample("b")
	require.ErrorIs(t, s.Reserve(t.Context(), conflict, unwarned(t)), portmap.ErrConflict)
	require.NoError(t, s.Delete("a"))
	require.Equal(t, []string{"claims/complete-3"}, stateFiles(t, s))
	require.NoError(t, s.Reserve(t.Context(), conflict, unwarned(t)))
}

// TestTakeRefused: the slot stays as it was.
func TestTakeRefused(t *testing.T) {
	s := open(t)
	slot := slotIn(t, s)
	before := stateFiles(t, s)
	text, err := os.ReadFile(s.file("pool-1"))
	require.NoError(t, err)
	b := sample("b")
	require.NoError(t, s.Put(b))
	a := taker("a", slot)
	file := openSlot(t, s)
	require.ErrorIs(t, file.Take(t.Context(), a, unwarned(t)), portmap.ErrConflict)

	a.Ports = nil
	require.NoError(t, os.WriteFile(s.file("a"), []byte("{"), 0o600)) // another program's
	require.ErrorIs(t, file.Take(t.Context(), a, unwarned(t)), fs.ErrExist)
	require.NoError(t, os.Remove(s.file("a")))
	got, err := s.Get("pool-1")
	require.NoError(t, err)
	require.Equal(t, slot, got)
	now, err := os.ReadFile(s.file("pool-1"))
	require.NoError(t, err)
	require.Equal(t, string(text), string(now), "nothing of a")
	require.NoError(t, appendFile(s.file("pool-1"), []byte("\n{\"taken\":{\"id\":\"a\",\"pool\":\"\"}}\n"))) // a crash before the rename
	got, err = s.Get("pool-1")
	require.NoError(t, err)
	require.Equal(t, slot, got, "the line for another allocation does not count")
	require.NoError(t, s.Delete("b"))
	require.Equal(t, before, stateFiles(t, s))

	c := taker("c", slot)
	require.NoError(t, file.Take(t.Context(), c, unwarned(t)))
	got, err = s.Get("c")
	require.NoError(t, err)
	require.Equal(t, c, got)
}

// TestTakenRecordReplaced: the outcome is in the record, also if another program has written
// the record anew.
func TestTakenRecordReplaced(t *testing.T) {
	s := open(t)
	want := taker("a", slotIn(t, s))
	file := openSlot(t, s)
	require.NoError(t, file.Take(t.Context(), want, unwarned(t)))
	text, err := os.ReadFile(s.file("a"))
	require.NoError(t, err)
	require.NoError(t, os.Remove(s.file("a")))
	require.NoError(t, os.WriteFile(s.file("a"), text, 0o600))
	want.Phase = Ready
	require.NoError(t, file.Update(want))
	got, err := s.Get("a")
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestMoveSandboxes: the namespace of a slot has the name of the allocation that takes it.
func TestMoveSandboxes(t *testing.T) {
	s := open(t)
	require.NoError(t, s.AddSandbox("pool-1", Sandbox{Path: "/run/netns/", Boot: "b", Container: "pool-1"}))
	require.NoError(t, s.MoveSandboxes("pool-1", "a"))
	list, err := s.Sandboxes("a")
	require.NoError(t, err)
	require.Equal(t, []Sandbox{{Path: "/run/netns/a", Boot: "b", Container: "pool-1"}}, list)
	require.NoFileExists(t, filepath.Join(s.state, "sandboxes", "pool-1.json"))

	require.NoError(t, s.AddSandbox("pool-2", Sandbox{Path: "/run/netns/", Boot: "b"}))
	require.ErrorIs(t, s.MoveSandboxes("pool-2", "a"), fs.ErrExist)
	again, err := s.Sandboxes("a")
	require.NoError(t, err)
	require.Equal(t, list, again)
}
