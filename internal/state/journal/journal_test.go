package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/state/statedir"
)

// testJournal is a journal whose clock advances by a second with each reading.
func testJournal(t *testing.T, most int64) (j *Journal, dir string) {
	dir = t.TempDir()
	j = New(dir, most, nil, func(err error) { t.Error(err) })
	j.program = "test[1]"
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	j.now = func() time.Time { now = now.Add(time.Second); return now }
	return j, dir
}

// operate runs an operation with steps.
func operate(j *Journal, whole allocnet.Step, err error, steps ...allocnet.Step) {
	ctx := j.Begin(context.Background(), whole)
	for _, s := range steps {
		s.Operation = whole.Operation
		j.End(j.Begin(ctx, s), s, nil)
	}
	j.End(ctx, whole, err)
}

func history(t *testing.T, dir, id string, limit int) []allocnet.HistoryEntry {
	t.Helper()
	list, err := Read(dir, allocnet.HistoryQuery{ID: id, Limit: limit})
	require.NoError(t, err)
	return list
}

// TestEntries: one entry per changed allocation, with its steps and what was forced.
func TestEntries(t *testing.T) {
	j, dir := testJournal(t, 1<<20)
	require.Empty(t, history(t, dir, "", 0))
	add := allocnet.Step{Name: allocnet.StepAdd, ID: "a", Networks: []string{"net"}, Engine: allocnet.EngineNative}
	operate(j, allocnet.Step{Operation: "setup", ID: "a"}, nil, allocnet.Step{Name: allocnet.StepLock, ID: "a"}, add)
	operate(j, allocnet.Step{Operation: "check", ID: "a"}, nil, allocnet.Step{Name: allocnet.StepCheck, ID: "a"})
	operate(j, allocnet.Step{Operation: "check", ID: "a"}, fmt.Errorf("%w: no link", allocnet.ErrUnhealthy))
	forced := []allocnet.Leftover{{Kind: allocnet.KindLink, Object: "veth1"}}
	gc := allocnet.Step{Operation: "gc"}
	ctx := j.Begin(context.Background(), gc)
	lock, del := allocnet.Step{Operation: "gc", Name: allocnet.StepLock, ID: "a"}, allocnet.Step{Operation: "gc", Name: allocnet.StepDel, ID: "b"}
	j.End(j.Begin(ctx, lock), lock, nil)
	during := j.Begin(ctx, del)
	j.Forced(during, "b", forced)
	j.End(during, del, nil)
	j.End(ctx, gc, errors.New("of another allocation"))

	at := func(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, 5+second, 0, time.UTC) }
	require.Equal(t, []allocnet.HistoryEntry{
		{
			Time: at(6), Program: "test[1]", Operation: "setup", ID: "a", Networks: []string{"net"}, Engine: allocnet.EngineNative, Seconds: 5,
			Steps: []allocnet.HistoryStep{{Step: "lock", At: 1, Seconds: 1}, {Step: "add", At: 3, Seconds: 1}},
		},
		{Time: at(12), Program: "test[1]", Operation: "check", ID: "a", Seconds: 1, Error: "network is not as it was set up: no link", Kind: "unhealthy"},
	}, history(t, dir, "a", 0))
	require.Equal(t, []allocnet.HistoryEntry{{
		Time: at(18), Program: "test[1]", Operation: "gc", ID: "b", Seconds: 5,
		Steps: []allocnet.HistoryStep{{Step: "del", At: 3, Seconds: 2}}, Forced: forced,
	}}, history(t, dir, "b", 0))
	require.Len(t, history(t, dir, "", 2), 2)
	require.Equal(t, "check", history(t, dir, "", 2)[0].Operation, "the latest, oldest first")
}

// TestForcedOfAnother: leftovers of another allocation that an operation has removed are in an
// entry of that allocation, and in no later one.
func TestForcedOfAnother(t *testing.T) {
	j, dir := testJournal(t, 1<<20)
	setup := allocnet.Step{Operation: "setup", ID: "a"}
	ctx := j.Begin(context.Background(), setup)
	for _, id := range []string{"b", "c"} { // with nothing to force of the latter
		s := allocnet.Step{Operation: "setup", Name: allocnet.StepForce, ID: id}
		during := j.Begin(ctx, s)
		if id == "b" {
			j.Forced(during, id, []allocnet.Leftover{{Kind: allocnet.KindLink, Object: "veth1"}})
		}
		j.End(during, s, nil)
	}
	j.End(ctx, setup, nil)
	outside := allocnet.Step{Name: allocnet.StepForce, ID: "pool-1"} // a slot has no history
	ctx = j.Begin(context.Background(), outside)
	j.Forced(ctx, "pool-1", []allocnet.Leftover{{Kind: allocnet.KindLink, Object: "veth2"}})
	j.End(ctx, outside, nil)
	operate(j, allocnet.Step{Operation: "teardown", ID: "b"}, nil, allocnet.Step{Name: allocnet.StepDel, ID: "b"})
	of := history(t, dir, "b", 0)
	require.Len(t, of, 2)
	require.Equal(t, "setup", of[0].Operation)
	require.Len(t, of[0].Forced, 1)
	require.Empty(t, of[1].Forced)
	require.Empty(t, history(t, dir, "c", 0))
}

// TestSucceededLater: if a later step of an operation repairs what an earlier one found, the entry
// of the allocation has no error.
func TestSucceededLater(t *testing.T) {
	j, dir := testJournal(t, 1<<20)
	whole := allocnet.Step{Operation: "repair"}
	ctx := j.Begin(context.Background(), whole)
	for _, one := range []struct {
		id, step string
		err      error
	}{
		{"repaired", allocnet.StepCheck, allocnet.ErrUnhealthy}, {"broken", allocnet.StepCheck, allocnet.ErrUnhealthy},
		{"elsewhere", allocnet.StepCheck, allocnet.ErrUnhealthy}, {"repaired", allocnet.StepRepair, nil},
		{"repaired", allocnet.StepCheck, nil}, {"broken", allocnet.StepRepair, nil}, {"elsewhere", allocnet.StepCheck, nil},
	} {
		s := allocnet.Step{Operation: "repair", Name: one.step, ID: one.id}
		j.End(j.Begin(ctx, s), s, one.err)
	}
	j.End(ctx, whole, nil)
	list := history(t, dir, "", 0)
	require.Len(t, list, 2, "of the third one nothing was changed here")
	require.Equal(t, []string{"repaired", "broken"}, []string{list[0].ID, list[1].ID})
	require.Empty(t, list[0].Error)
	require.Equal(t, "unhealthy", list[1].Kind)
}

// TestBounded: the journal keeps the latest entries, in two files of bounded size.
func TestBounded(t *testing.T) {
	const most = 8 << 10
	j, dir := testJournal(t, most)
	for i := range 500 {
		operate(j, allocnet.Step{Operation: "setup", ID: fmt.Sprint("a", i)}, errors.New("x"))
	}
	size := int64(0)
	now, before := files(dir)
	for _, file := range []string{now, before} {
		if info, err := os.Stat(file); err == nil {
			size += info.Size()
		}
	}
	require.Greater(t, size, int64(most/4))
	require.LessOrEqual(t, size, int64(most+512))
	list := history(t, dir, "", 0)
	require.Greater(t, len(list), 15)
	for i, e := range list {
		require.Equal(t, fmt.Sprint("a", 500-len(list)+i), e.ID)
	}

	operate(j, allocnet.Step{Operation: "setup", ID: "long"}, errors.New(strings.Repeat("é", maxText)))
	require.LessOrEqual(t, len(history(t, dir, "long", 0)[0].Error), maxText+3)
}

// TestSeveralProcesses: no entry is lost or mixed with another one, except those of files
// that were replaced.
func TestSeveralProcesses(t *testing.T) {
	dir := t.TempDir()
	var wait sync.WaitGroup
	for n := range 8 {
		j := New(dir, 1<<20, nil, func(err error) { t.Error(err) })
		wait.Go(func() {
			for i := range 50 {
				operate(j, allocnet.Step{Operation: "setup", ID: fmt.Sprint("p", n)}, errors.New(fmt.Sprint(i)))
			}
		})
	}
	wait.Wait()
	for n := range 8 {
		list := history(t, dir, fmt.Sprint("p", n), 0)
		require.Len(t, list, 50)
		for i, e := range list {
			require.Equal(t, fmt.Sprint(i), e.Error)
		}
	}
}

// TestDamaged: what a crash left does not hide other entries, and no other object is used.
func TestDamaged(t *testing.T) {
	j, dir := testJournal(t, 1<<20)
	file, _ := files(dir)
	require.NoError(t, os.WriteFile(file, []byte("{}\n\x00\n[]\n{\"id\":\"cut\""), 0o600))
	operate(j, allocnet.Step{Operation: "setup", ID: "a"}, errors.New("x"))
	require.Len(t, history(t, dir, "", 0), 1)

	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Symlink(filepath.Join(dir, "elsewhere"), file))
	var failed error
	j.failed = func(err error) { failed = err }
	operate(j, allocnet.Step{Operation: "setup", ID: "a"}, errors.New("x"))
	require.ErrorContains(t, failed, file)
	require.NoFileExists(t, filepath.Join(dir, "elsewhere"))
	_, err := Read(dir, allocnet.HistoryQuery{})
	require.ErrorContains(t, err, file)

	gone := New(filepath.Join(dir, "gone"), 1<<20, nil, func(err error) { t.Error(err) })
	operate(gone, allocnet.Step{Operation: "setup", ID: "a"}, errors.New("x"))
	require.NoDirExists(t, filepath.Join(dir, "gone"))
}

// TestNotTrusted: nothing is written to a file, or read from one, that another user may have
// made or changed.
func TestNotTrusted(t *testing.T) {
	for name, change := range map[string]func(dir, file string) error{
		"directory": func(dir, _ string) error { return os.Chmod(dir, 0o777) },
		"mode":      func(_, file string) error { return os.Chmod(file, 0o666) },
		"hard link": func(dir, file string) error { return os.Link(file, filepath.Join(dir, "other")) },
	} {
		t.Run(name, func(t *testing.T) {
			j, dir := testJournal(t, 1<<20)
			operate(j, allocnet.Step{Operation: "setup", ID: "a"}, errors.New("x"))
			file, _ := files(dir)
			require.NoError(t, change(dir, file))
			before, err := os.ReadFile(file)
			require.NoError(t, err)

			var failed error
			j.failed = func(err error) { failed = err }
			operate(j, allocnet.Step{Operation: "teardown", ID: "a"}, errors.New("x"))
			require.ErrorIs(t, failed, statedir.ErrNotOurs)
			after, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(before), string(after))
			_, err = Read(dir, allocnet.HistoryQuery{})
			require.ErrorIs(t, err, statedir.ErrNotOurs)
		})
	}
}
