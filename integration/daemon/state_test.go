package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// smallState gives a daemon a state directory on a small file system of its
// own.
func (d *daemonProcess) smallState() (dir string) {
	t := d.h.T
	t.Helper()
	dir = filepath.Join(d.dir, "state")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,nr_inodes=64,mode=755"))
	t.Cleanup(func() {
		d.end()
		require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH))
	})
	d.configure(fmt.Sprintf("state_dir = %q\nretry {\n attempts = 1\n}", dir))
	return dir
}

// fill leaves the given number of free pages in a directory.
func fill(t testing.TB, dir string, pages int) (empty func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	require.NoError(t, err)
	defer f.Close()
	size := int64(0)
	for ; err == nil; size += int64(os.Getpagesize()) {
		_, err = f.WriteAt(make([]byte, os.Getpagesize()), size)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Truncate(max(0, size-int64((pages+1)*os.Getpagesize()))))
	return func() { require.NoError(t, os.Remove(f.Name())) }
}

// exhaust leaves the given number of free inodes in a directory.
func exhaust(t testing.TB, dir string, inodes int) (empty func()) {
	t.Helper()
	crowd := filepath.Join(dir, "crowd")
	require.NoError(t, os.Mkdir(crowd, 0o700))
	var err error
	name := func(i int) string { return filepath.Join(crowd, fmt.Sprint(i)) }
	n := 0
	for ; err == nil; n++ {
		err = os.WriteFile(name(n), nil, 0o600)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	for i := range min(inodes, n-1) {
		require.NoError(t, os.Remove(name(i)))
	}
	return func() { require.NoError(t, os.RemoveAll(crowd)) }
}

// TestDaemonStateFillsUp: however little space is free, an ADD succeeds or
// leaves nothing, whether or not it is the first on the host.
func TestDaemonStateFillsUp(t *testing.T) {
	for name, fill := range map[string]func(testing.TB, string, int) func(){"pages": fill, "inodes": exhaust} {
		t.Run(name, func(t *testing.T) {
			r := newCNI(t)
			dir := r.smallState()
			r.turn(false, nil)
			a := r.h.netns("a")
			config := r.pluginConfig(map[string]any{"delegate": "net"})
			for _, first := range []bool{true, false} {
				refused := 0
				for done := false; !done; {
					empty := fill(t, dir, refused)
					r.h.unchanged(func() {
						_, err := r.plugin("ADD", "a", a, config)
						if done = err == nil; done {
							_, err = r.plugin("DEL", "a", a, config)
							require.NoError(t, err)
							testbed.Settle(t, r.client())
							return
						}
						require.ErrorContains(t, err, "no space left on device")
						records, err := r.client().List(t.Context())
						require.NoError(t, err)
						require.Empty(t, records)
						refused++
					})
					empty()
				}
				require.NotZero(t, refused, first)
			}
		})
	}
}

// unchanged runs a function that must not change the host.
func (h *host) unchanged(what func()) {
	h.T.Helper()
	before, err := hostsnap.Take(testbed.SnapshotOptions)
	require.NoError(h.T, err)
	what()
	after, err := hostsnap.Take(testbed.SnapshotOptions)
	require.NoError(h.T, err)
	require.Empty(h.T, hostsnap.Diff(before, after))
}

// TestDaemonStateUnwritable: no operation begins that could not be recorded,
// and existing allocations work. On a full disk, CHECK and DEL work as well.
func TestDaemonStateUnwritable(t *testing.T) {
	for _, test := range []struct {
		name, says string
		spoil      func(t *testing.T, dir string) (mend func())
		works      bool // whether CHECK and DEL work
	}{
		{"full", "no space left on device", func(t *testing.T, dir string) func() {
			return fill(t, dir, 0)
		}, true},
		{"read-only", "read-only file system", func(t *testing.T, dir string) func() {
			flags := uintptr(syscall.MS_REMOUNT | syscall.MS_RDONLY)
			// Descriptors of the lock file are kept for a second after an operation.
			require.Eventually(t, func() bool { return syscall.Mount("tmpfs", dir, "tmpfs", flags, "mode=755") == nil }, 20*time.Second, 10*time.Millisecond)
			return func() { require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "")) }
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newCNI(t)
			dir := r.smallState()
			r.turn(false, nil)
			a, b, c := r.h.netns("a"), r.h.netns("b"), r.h.netns("c")
			r.result("runtime", a)
			r.result("runtime", b)
			testbed.Serve(t, a, "tcp", 80, "a")
			mend := test.spoil(t, dir)
			says := func(t testing.TB, err error) {
				t.Helper()
				if test.works {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, test.says)
				}
			}
			r.h.unchanged(func() {
				for _, mode := range []int{0, 1, 0} { // also for a daemon that starts in this state
					modes[mode].turn(r)
					_, err := r.plugin("ADD", "c", c, r.pluginConfig(map[string]any{"delegate": "net"}))
					require.ErrorContains(t, err, test.says)
					require.ErrorContains(t, err, dir)
					_, err = r.tool("check", "runtime", a)
					says(t, err)
				}
				require.ErrorContains(t, r.client().Ready(t.Context()), test.says)
				records, err := r.client().List(t.Context())
				require.NoError(t, err)
				require.Len(t, records, 2)
			})
			testbed.RequireAnswer(t, "", "tcp", "10.99.0.2:80", "a")
			_, err := r.tool("del", "runtime", b)
			says(t, err)
			mend()
			require.NoError(t, r.client().Ready(t.Context()))
			_, err = r.plugin("ADD", "c", c, r.pluginConfig(map[string]any{"delegate": "net"}))
			require.NoError(t, err)
			r.ok("del", "runtime", a)
			r.ok("del", "runtime", b)
			_, err = r.plugin("DEL", "c", c, r.pluginConfig(map[string]any{"delegate": "net"}))
			require.NoError(t, err)
			testbed.Settle(t, r.client())
			records, err := r.client().List(t.Context())
			require.NoError(t, err)
			require.Empty(t, records)
		})
	}
}

// editRecord changes keys in the first line of a record.
func editRecord(t testing.TB, id string, keys map[string]any) {
	t.Helper()
	path := filepath.Join(configurator.DefaultStateDir, "allocs", id+".json")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var record map[string]any
	first, more, _ := bytes.Cut(data, []byte("\n"))
	require.NoError(t, json.Unmarshal(first, &record))
	for key, value := range keys {
		require.Contains(t, record, key)
		record[key] = value
	}
	first, err = json.Marshal(record)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(append(first, '\n'), more...), 0o600))
}

// TestDaemonNewerRecord: no operation changes the record of a newer version,
// and the record does not prevent other operations.
func TestDaemonNewerRecord(t *testing.T) {
	r := newCNI(t)
	r.turn(false, nil)
	a, b := r.h.netns("a"), r.h.netns("b")
	r.result("runtime", a, portMapping(8080, 80))
	id := r.allocation(a)
	editRecord(t, id, map[string]any{"version": 99})
	r.h.unchanged(func() {
		for _, mode := range []int{0, 1, 2} {
			modes[mode].turn(r)
			for _, command := range []string{"add", "check", "del"} {
				_, err := r.tool(command, "runtime", a, portMapping(8080, 80))
				require.ErrorContains(t, err, "newer version of allocnet", command)
			}
			_ = r.gc("runtime")
		}
		_, err := r.client().List(t.Context())
		require.ErrorContains(t, err, id)
		require.NoError(t, r.client().Ready(t.Context()))
	})
	r.result("runtime", b, portMapping(8081, 80))
	r.ok("check", "runtime", b)
	r.ok("del", "runtime", b)
	editRecord(t, id, map[string]any{"version": 1})
	r.ok("check", "runtime", a)
	r.ok("del", "runtime", a)
}

// TestDaemonClockSetBack uses records with times in the future.
func TestDaemonClockSetBack(t *testing.T) {
	r := newCNI(t)
	r.turn(false, nil)
	config := r.pluginConfig(map[string]any{"delegate": "net"})
	future := time.Now().Add(24 * time.Hour)
	for _, id := range []string{"a", "b"} {
		_, err := r.plugin("ADD", id, r.h.netns(id), config)
		require.NoError(t, err)
		editRecord(t, id+".eth0", map[string]any{"created": future, "updated": future})
	}
	r.restart()
	records, err := r.client().List(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 2)
	require.True(t, future.Equal(records[0].Created))
	for _, record := range records {
		require.NoError(t, r.client().Check(t.Context(), configurator.Allocation{ID: record.ID}))
	}
	for _, args := range [][]string{{"ls"}, {"inspect", "a.eth0"}} {
		said := r.allocnet(args...)
		require.Zero(t, said.exit, said.err)
		require.Contains(t, said.out, "a.eth0")
	}
	_, err = r.plugin("DEL", "a", records[0].Netns, config)
	require.NoError(t, err)
	r.list("runtime", "1.1.0", r.ours("delegate", "net"))
	require.NoError(t, r.gc("runtime"))
	require.Empty(t, r.h.phases(), "it was there before GC")
}
