package policystate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
)

// childVariable makes the test binary simulate members in a store: "DIR SEED".
const childVariable = "ALLOCNET_TEST_POLICYSTATE"

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		var dir string
		var seed uint64
		if _, err := fmt.Sscan(text, &dir, &seed); err != nil {
			panic(err)
		}
		if err := simulate(context.Background(), New(dir), seed, 60, nil); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// kernel has the policies that exist, as the kernel would.
type kernel struct {
	mu       sync.Mutex
	policies map[string]uint32 // their groups
}

// simulate joins and leaves with members of one process, whose keys begin with the seed. It
// returns an error if the store differs from what it has done.
func simulate(ctx context.Context, store *Store, seed uint64, steps int, k *kernel) error {
	r := rand.New(rand.NewPCG(seed, 0))
	own := map[string]*Member{}
	for range steps {
		key := fmt.Sprintf("m%d-%d", seed, r.IntN(5))
		var wanted *Member
		if r.IntN(3) > 0 {
			wanted = &Member{
				Key: key, Owner: names.Owner{Network: "net", ID: key, IfName: "eth0"}, Allocation: key,
				Labels: map[string]string{"app": fmt.Sprint(r.IntN(3))}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
				Policy: fmt.Sprint("p", r.IntN(4)),
			}
		}
		if err := replace(ctx, store, key, own[key], wanted, k); err != nil {
			return err
		}
		delete(own, key)
		if wanted != nil {
			own[key] = wanted
		}
		for key, want := range own {
			is, err := store.Member(key)
			if err != nil || is == nil || is.Policy != want.Policy || !maps.Equal(is.Labels, want.Labels) {
				return fmt.Errorf("member %s is %+v, not %+v: %w", key, is, want, err)
			}
		}
	}
	for key, m := range own {
		if err := replace(ctx, store, key, m, nil, k); err != nil {
			return err
		}
	}
	return nil
}

// replace makes a member what it should be, with the same steps as the plugin.
func replace(ctx context.Context, store *Store, key string, is, wanted *Member, k *kernel) error {
	s, err := store.Share(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if s != nil {
			s.Unlock()
		}
	}()
	if wanted != nil {
		found, err := s.Use(wanted.Policy, key)
		if err != nil {
			return err
		}
		if !found {
			s.Unlock()
			if s, err = store.Exclusive(ctx); err != nil {
				return err
			}
			if err := create(s, wanted.Policy, key, k); err != nil {
				return err
			}
		}
		p, err := s.Policy(wanted.Policy)
		if err != nil || p == nil {
			return fmt.Errorf("policy %s, which is used, does not exist: %w", wanted.Policy, err)
		}
		if err := errors.Join(s.PutMember(wanted, is), s.EndChange(wanted)); err != nil {
			return err
		}
		selections, err := s.SelectionsOf(wanted)
		if err != nil || len(selections) == 0 { // of its policy at least
			return fmt.Errorf("the selections of %s are %v: %w", key, selections, err)
		}
	} else if is != nil {
		if err := s.DeleteMember(is); err != nil {
			return err
		}
	}
	last := false
	if is != nil && (wanted == nil || wanted.Policy != is.Policy) {
		if last, err = s.Leave(is.Policy, key); err != nil {
			return err
		}
	}
	if !last {
		return nil
	}
	s.Unlock()
	if s, err = store.Exclusive(ctx); err != nil {
		return err
	}
	return sweep(s, k)
}

func examplePolicy(id string, group uint32) *Policy {
	return &Policy{ID: id, Group: group, Content: json.RawMessage(`{}`), Selections: []Selection{
		{Name: "all", Selector: json.RawMessage(`{}`)},
		{Name: "app" + id, Label: LabelKey("app", "1"), Selector: json.RawMessage(`{"app":1}`)},
	}}
}

func create(s *Session, id, key string, k *kernel) error {
	if found, err := s.Use(id, key); found || err != nil {
		return err
	}
	begun, err := s.Policy(id) // and not removed yet
	if err != nil {
		return err
	}
	group := uint32(0)
	if begun != nil {
		group = begun.Group
	} else if group, err = s.NewGroup(1, 20); err != nil {
		return err
	}
	if err := s.Begin(examplePolicy(id, group), nil); err != nil {
		return err
	}
	if k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if former, exists := k.policies[id]; exists && former != group {
			return fmt.Errorf("policy %s is made a second time, with group %d in place of %d", id, group, former)
		}
		for other, taken := range k.policies {
			if taken == group && other != id {
				return fmt.Errorf("policy %s gets group %d of policy %s", id, group, other)
			}
		}
		k.policies[id] = group
	}
	return s.Publish(id, key)
}

func sweep(s *Session, k *kernel) error {
	unused, err := s.Unused()
	if err != nil {
		return err
	}
	for _, p := range unused {
		if k != nil {
			k.mu.Lock()
			delete(k.policies, p.ID)
			k.mu.Unlock()
		}
		if err := s.Delete(p); err != nil {
			return err
		}
	}
	return nil
}

// requireEmpty requires that a store has no files.
func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "lock" {
			files = append(files, path)
		}
		return err
	}))
	require.Empty(t, files)
	for _, sub := range []string{"members/by", "selections/by", "policies"} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if !errors.Is(err, fs.ErrNotExist) { // of the first use
			require.NoError(t, err)
		}
		require.Empty(t, entries, sub)
	}
}

// TestConcurrentUse compares the store with maps, while members of several goroutines come and go
// and policies are made and removed.
func TestConcurrentUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policies")
	k := &kernel{policies: map[string]uint32{}}
	store := New(dir)
	require.False(t, store.Exists())
	errs := make(chan error, 8)
	for i := range cap(errs) {
		go func() { errs <- simulate(t.Context(), store, uint64(i), 60, k) }()
	}
	var all []error
	for range cap(errs) {
		all = append(all, <-errs)
	}
	require.NoError(t, errors.Join(all...))
	require.Empty(t, k.policies)
	requireEmpty(t, dir)
}

// TestSeveralProcesses does the same with processes.
func TestSeveralProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policies")
	var all []*exec.Cmd
	for i := range 4 {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", childVariable, dir, i))
		c.Stderr = os.Stderr
		require.NoError(t, c.Start())
		all = append(all, c)
	}
	for _, c := range all {
		require.NoError(t, c.Wait())
	}
	requireEmpty(t, dir)
}

// TestKilledProcesses kills processes that use a store. What is left is removed.
func TestKilledProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policies")
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", childVariable, dir, i))
		require.NoError(t, c.Start())
		time.AfterFunc(time.Duration(rnd.Int64N(int64(30*time.Millisecond))), func() { _ = c.Process.Kill() })
		_ = c.Wait() // killed, or done
		store := New(dir)
		s, err := store.Exclusive(t.Context())
		require.NoError(t, err)
		members, err := s.Members("")
		require.NoError(t, err)
		for _, m := range members {
			require.NoError(t, s.DeleteMember(m))
		}
		ids, err := s.Policies()
		require.NoError(t, err)
		for _, id := range ids {
			users, err := s.Users(id)
			require.NoError(t, err)
			for _, key := range users {
				_, err := s.Leave(id, key)
				require.NoError(t, err)
			}
		}
		require.NoError(t, sweep(s, nil))
		require.NoError(t, s.DropOrphans())
		s.Unlock()
		requireEmpty(t, dir)
	}
}

func exclusive(t *testing.T) *Session {
	t.Helper()
	s, err := New(filepath.Join(t.TempDir(), "policies")).Exclusive(t.Context())
	require.NoError(t, err)
	t.Cleanup(s.Unlock)
	return s
}

// TestSelectionOfManyPolicies: what a member reads of a selection does not grow with the policies that
// have it, and the last of them removes it.
func TestSelectionOfManyPolicies(t *testing.T) {
	s := exclusive(t)
	require.NoError(t, s.Begin(examplePolicy("p0", 1), nil))
	n := examplePolicy("p0", 1).Selections[0]
	before, err := os.ReadFile(s.selection(n.Name))
	require.NoError(t, err)
	for i := uint32(1); i < 20; i++ {
		require.NoError(t, s.Begin(examplePolicy(fmt.Sprint("p", i), i+1), nil))
	}
	for i := range uint32(20) {
		after, err := os.ReadFile(s.selection(n.Name))
		require.NoError(t, err)
		require.Equal(t, before, after)
		p := examplePolicy(fmt.Sprint("p", i), i+1)
		unused, err := s.UnusedWithout(p)
		require.NoError(t, err)
		require.Equal(t, i == 19, slices.Contains(unused, n.Name))
		require.NoError(t, s.Delete(p))
	}
	require.NoFileExists(t, s.selection(n.Name))
}

// TestSelectionsInMemory: a member gets the selections that exist, also those that were read before,
// and a bounded number of them stays in memory.
func TestSelectionsInMemory(t *testing.T) {
	s := exclusive(t)
	m := &Member{Key: "m", Allocation: "m", Labels: map[string]string{"app": "a"}}
	selection := func(i int) Selection {
		return Selection{Name: fmt.Sprint("n", i), Label: LabelKey("app", "a"), Selector: json.RawMessage(strconv.Itoa(i))}
	}
	for i := range maxKnown + 10 {
		p := &Policy{ID: fmt.Sprint("p", i), Group: uint32(i + 1), Content: json.RawMessage("{}"), Selections: []Selection{selection(i)}}
		require.NoError(t, s.Begin(p, nil))
		for range 2 {
			found, err := s.SelectionsOf(m)
			require.NoError(t, err)
			require.Equal(t, []Selection{selection(i)}, found)
		}
		require.NoError(t, s.Delete(p))
		found, err := s.SelectionsOf(m)
		require.NoError(t, err)
		require.Empty(t, found)
		require.LessOrEqual(t, len(s.known), maxKnown)
	}
	require.NotEmpty(t, s.known)
}

// TestSelectionOfAnOlderVersion: its file lists the policies that use it.
func TestSelectionOfAnOlderVersion(t *testing.T) {
	s := exclusive(t)
	first, second := examplePolicy("a", 1), examplePolicy("b", 2)
	require.NoError(t, s.Begin(first, nil))
	require.NoError(t, s.Begin(second, nil))
	n := first.Selections[0]
	older := func() {
		require.NoError(t, os.RemoveAll(s.selecting(n.Name)))
		require.NoError(t, write(s.selection(n.Name), struct {
			Selection
			Policies []string `json:"policies"`
		}{n, []string{"a", "b"}}))
	}
	older()
	unused, err := s.UnusedWithout(first)
	require.NoError(t, err)
	require.NotContains(t, unused, n.Name)
	older()
	third := examplePolicy("c", 3)
	require.NoError(t, s.Begin(third, nil))
	require.NoError(t, s.Delete(third))
	older()
	require.NoError(t, s.Delete(second))
	require.FileExists(t, s.selection(n.Name))
	require.NoError(t, s.Delete(first))
	require.NoFileExists(t, s.selection(n.Name))
}

// TestMarkAtTheSameTime: another process may remove the directory of a mark at any moment.
func TestMarkAtTheSameTime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "by", "label")
	done := make(chan error)
	const rivals, rounds = 4, 2000
	for i := range rivals {
		go func() {
			var err error
			for round := 0; round < rounds && err == nil; round++ {
				if err = mark(dir, fmt.Sprint(i)); err == nil {
					err = unmark(dir, fmt.Sprint(i))
				}
			}
			done <- err
		}()
	}
	for range rivals {
		require.NoError(t, <-done)
	}
}

// TestBeginAgain: a policy that was begun with one group can get another one, and a group that
// another policy has meanwhile stays that one's.
func TestBeginAgain(t *testing.T) {
	s := exclusive(t)
	begin := func(id string, group uint32) error {
		former, err := s.Policy(id)
		require.NoError(t, err)
		return s.Begin(examplePolicy(id, group), former)
	}
	require.NoError(t, begin("a", 1))
	require.NoError(t, begin("a", 1))
	require.NoError(t, begin("a", 2))
	require.NoError(t, begin("b", 1))
	require.ErrorIs(t, begin("a", 1), ErrGroupTaken)
	require.NoError(t, begin("a", 3))
	require.NoError(t, s.Publish("a", "x"))
	found, err := s.Use("b", "x")
	require.NoError(t, err)
	require.False(t, found, "it is not published")
	unused, err := s.Unused()
	require.NoError(t, err)
	require.Len(t, unused, 1)
	require.Equal(t, "b", unused[0].ID)
	unused, err = s.UnusedOf([]string{"a", "absent"})
	require.NoError(t, err)
	require.Empty(t, unused)
	unused, err = s.UnusedOf([]string{"a", "b"})
	require.NoError(t, err)
	require.Len(t, unused, 1)
	names, err := s.UnusedWithout(unused[0])
	require.NoError(t, err)
	require.Equal(t, []string{"appb"}, names, "the other one is that of both")
	require.NoError(t, s.Delete(unused[0]))
	require.NoError(t, s.Delete(unused[0]))
	groups, err := list(filepath.Join(s.dir, "groups"), "", 0)
	require.NoError(t, err)
	require.Equal(t, []string{"3"}, groups)
	for group, is := range map[uint32]bool{1: false, 2: false, 3: true, 4: false} {
		require.Equal(t, is, s.HasGroup("a", group), group)
		require.False(t, s.HasGroup("b", group), group)
	}
	last, err := s.Leave("a", "x")
	require.NoError(t, err)
	require.True(t, last)
	require.NoError(t, s.Delete(examplePolicy("a", 3)))
	requireEmpty(t, s.dir)
}

// TestGroupsAreBounded: NewGroup returns each group once, and then an error.
func TestGroupsAreBounded(t *testing.T) {
	s := exclusive(t)
	var groups []uint32
	for i := range 10 {
		group, err := s.NewGroup(5, 14)
		require.NoError(t, err)
		require.NoError(t, s.Begin(examplePolicy(strconv.Itoa(i), group), nil))
		groups = append(groups, group)
	}
	slices.Sort(groups)
	require.Equal(t, []uint32{5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, groups)
	_, err := s.NewGroup(5, 14)
	require.ErrorContains(t, err, "10 different policies are in use")
}

// TestMembersByLabel: members are found by their labels and IDs, also after a change.
func TestMembersByLabel(t *testing.T) {
	s := exclusive(t)
	m := &Member{Key: "k", Allocation: "id", Labels: map[string]string{"app": "x", "tier": "1"}}
	require.NoError(t, s.PutMember(m, nil))
	changed := *m
	changed.Labels = map[string]string{"app": "y", "tier": "1"}
	require.NoError(t, s.PutMember(&changed, m))
	found, err := s.Members(LabelKey("app", "x"))
	require.NoError(t, err)
	require.Len(t, found, 1, "until the change ends")
	again := changed
	require.NoError(t, s.PutMember(&again, &changed))
	require.True(t, again.Changing, "the change has not ended yet")
	require.NoError(t, s.EndChange(&again))
	for label, want := range map[string]int{
		LabelKey("app", "x"): 0, LabelKey("app", "y"): 1, LabelKey("tier", "1"): 1, AllocationKey("id"): 1, AllocationKey("other"): 0, "": 1,
	} {
		found, err := s.Members(label)
		require.NoError(t, err)
		require.Len(t, found, want, label)
	}
	require.NoError(t, s.DeleteMember(&changed))
	requireEmpty(t, s.dir)
}

// TestDropOrphans removes labels without a member, and drafts, and nothing else.
func TestDropOrphans(t *testing.T) {
	s := exclusive(t)
	m := &Member{Key: "k", Labels: map[string]string{"app": "x"}}
	require.NoError(t, s.PutMember(m, nil))
	require.NoError(t, s.Begin(examplePolicy("a", 1), nil))
	require.NoError(t, s.Publish("a", "k"))
	require.NoError(t, mark(s.by("members", LabelKey("app", "former")), "k"))
	require.NoError(t, mark(s.by("members", LabelKey("app", "x")), "killed"))
	require.NoError(t, mark(s.users("b")+draftSuffix, "k"))
	require.NoError(t, os.WriteFile(s.member("killed")+draftSuffix, []byte("{"), 0o600))
	require.NoError(t, s.DropOrphans())
	_, err := os.Lstat(s.by("members", LabelKey("app", "former")))
	require.ErrorIs(t, err, fs.ErrNotExist)
	found, err := s.Members(LabelKey("app", "x"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	users, err := s.Users("a")
	require.NoError(t, err)
	require.Equal(t, []string{"k"}, users)
	require.NoError(t, s.DeleteMember(m))
	_, err = s.Leave("a", "k")
	require.NoError(t, err)
	require.NoError(t, sweep(s, nil))
	requireEmpty(t, s.dir)
}

// TestLockEndsWithContext: a call that waits for the lock of the store returns when its context ends.
func TestLockEndsWithContext(t *testing.T) {
	s := exclusive(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := New(s.dir).Share(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestForeignFiles: a file that is too large, or no JSON, is an error that names it.
func TestForeignFiles(t *testing.T) {
	s := exclusive(t)
	require.NoError(t, s.PutMember(&Member{Key: "k"}, nil))
	require.NoError(t, os.WriteFile(s.member("k"), []byte("{"), 0o600))
	_, err := s.Member("k")
	require.ErrorContains(t, err, s.member("k"))
	require.NoError(t, os.Truncate(s.member("k"), maxFile+1))
	_, err = s.Member("k")
	require.ErrorContains(t, err, s.member("k"))
	require.NoError(t, os.Remove(s.member("k")))
	require.NoError(t, os.Symlink("/etc/hostname", s.member("k")))
	_, err = s.Member("k")
	require.Error(t, err)
}
