package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/record"
)

// requireNothing makes checks with records that were read before what has changed since.
func (r *rig) requireNothing(h *Host, message string) {
	r.Helper()
	for _, check := range []func(context.Context, *Host) ([]Finding, error){checkRecords, checkAllocations, checkNamespaces} {
		findings, err := check(r.Context(), h)
		require.NoError(r, err)
		require.Empty(r, describe(findings), message)
	}
}

// TestOldRecords: what has ended since the records were read is no damage.
func TestOldRecords(t *testing.T) {
	r := newRig(t)
	h := r.host()
	r.setup("web")
	for name, records := range map[string][]configurator.Record{
		"set up since":      nil,
		"in a setup":        {{ID: "web", Phase: configurator.PhaseAdding}},
		"in a teardown":     {{ID: "gone", Phase: configurator.PhaseDeleting}},
		"without namespace": {{ID: "gone", Phase: configurator.PhaseReady, NetnsGone: true}},
	} {
		h.records = records
		r.requireNothing(h, name)
	}
}

// TestUnreadSince: a record that cannot be read again is neither gone nor damaged.
func TestUnreadSince(t *testing.T) {
	r := newRig(t)
	a := r.setup("web")
	h := r.host()
	var broken *configurator.RecordError
	file := r.path("state/allocs/web.json")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = h.damaged(ended, "web")
	require.ErrorIs(t, err, context.Canceled)

	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	_, err = h.damaged(t.Context(), "web")
	require.ErrorAs(t, err, &broken)
	found, err := h.leftoversOf(t.Context(), &configurator.Record{ID: "web", Networks: []configurator.NetworkRecord{{Network: "web"}}})
	require.ErrorAs(t, err, &broken)
	require.Empty(t, found, "it has a record")
	h.records = []configurator.Record{{ID: "web", Phase: configurator.PhaseAdding}}
	findings, err := checkRecords(t.Context(), h)
	require.ErrorAs(t, err, &broken)
	require.Empty(t, describe(findings))
	require.NoError(t, os.WriteFile(file, text, 0o600))
	require.NoError(t, r.conf.Teardown(t.Context(), a))
}

// TestUnreported: of joined errors, only those of the records that Examine reports are left out.
func TestUnreported(t *testing.T) {
	broken := func(id string) error { return &configurator.RecordError{ID: id, Err: io.ErrUnexpectedEOF} }
	h := &Host{unread: errors.Join(broken("a"), unix.EMFILE)}
	err := h.unreported(errors.Join(&configurator.AllocationError{ID: "a", Err: broken("a")}, errors.Join(nil, broken("b")), unix.EMFILE))
	require.Equal(t, []error{broken("b"), unix.EMFILE}, single(err))
	require.NoError(t, h.unreported(broken("a")))
	require.NoError(t, h.unreported(nil))
}

// TestSetupThatRuns: a Setup makes the namespace and objects of an allocation before all is
// recorded. While it holds the lock, nothing is reported, nor waited for.
func TestSetupThatRuns(t *testing.T) {
	r := newRig(t)
	r.setup("web")
	file := r.path("state/allocs/web.json")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	unlock, err := record.Open(r.path("state")).Lock(t.Context(), "web")
	require.NoError(t, err)
	unlock = sync.OnceFunc(unlock)
	t.Cleanup(unlock)
	require.NoError(t, os.Remove(file))
	r.healthy()
	require.NoError(t, os.WriteFile(file, text, 0o600))
	unlock()
	r.healthy()
}

// TestPoolMeanwhile: what a prepared network namespace has is not left over if it is in use, or
// gone, when doctor looks.
func TestPoolMeanwhile(t *testing.T) {
	r := newRig(t)
	pooled, err := configurator.New(configurator.Config{ConfDir: r.path("conf"), StateDir: r.path("state"), PluginDirs: []string{r.path("bin")},
		Pools: []configurator.Pool{{Network: "web", Size: 1}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pooled.Close()) })
	require.Eventually(t, func() bool { return pooled.Pools()[0].Ready == 1 }, 20*time.Second, 10*time.Millisecond)
	ids, err := record.Open(r.path("state")).IDs()
	require.NoError(t, err)
	require.Len(t, ids, 1)
	requireNothing := func(id string) {
		t.Helper()
		found, err := r.host().leftoversOf(t.Context(), &configurator.Record{ID: id, Networks: []configurator.NetworkRecord{{Network: "web"}}})
		require.NoError(t, err)
		require.Empty(t, describe(found))
		require.False(t, r.host().isDeadSlot(id))
	}
	requireNothing("pool-gone")
	requireNothing(ids[0])
	a := configurator.Allocation{ID: "web", OwnNetns: true, Networks: []string{"web"}}
	_, err = pooled.Setup(t.Context(), a)
	require.NoError(t, err)
	taken, err := pooled.Get(t.Context(), "web")
	require.NoError(t, err)
	require.Equal(t, ids[0], taken.ContainerID)
	requireNothing(ids[0]) // it is the container of the allocation
	require.NoError(t, pooled.Teardown(t.Context(), a))
}

// TestDeadSlots: what a pool removes is left over if its process has ended; the repair removes it.
func TestDeadSlots(t *testing.T) {
	r := newRig(t)
	store := record.Open(r.path("state"))
	pool, end, err := store.LockPool()
	require.NoError(t, err)
	require.NoError(t, store.Put(&record.Record{Version: record.Version, ID: "pool-1", Pool: pool, Phase: record.Deleting}))
	r.healthy()
	end()
	f := r.finds("leftover", []string{"has left prepared network namespaces: 1"})
	require.Equal(t, "systemctl start allocnetd (it removes them), or: allocnet recover", f.Repair)
	_, err = r.conf.Recover(t.Context())
	require.NoError(t, err)
	r.healthy()
}

// TestLookTwice: of a check that compares lists, only findings count that are there each time.
func TestLookTwice(t *testing.T) {
	r := newRig(t)
	stays := find("clock", "a", "stays", "")
	looks := [][]Finding{{stays, find("clock", "a", "once", "")}, {find("clock", "a", "again", ""), stays}}
	var hosts []*Host
	c := check{how: twice, run: func(_ context.Context, h *Host) ([]Finding, error) {
		hosts = append(hosts, h)
		return looks[len(hosts)-1], nil
	}}
	h := r.host()
	r.setup("web")
	found, err := c.look(t.Context(), h)
	require.NoError(t, err)
	require.Equal(t, []Finding{stays}, found)
	require.Len(t, hosts, 2)
	require.Empty(t, hosts[0].records)
	require.Len(t, hosts[1].records, 1, "the records are read again")

	hosts, looks = nil, [][]Finding{nil}
	found, err = c.look(t.Context(), h)
	require.NoError(t, err)
	require.Empty(t, found)
	require.Len(t, hosts, 1, "once is enough")

	failures := []error{io.ErrUnexpectedEOF, nil}
	failing := check{how: twice, run: func(context.Context, *Host) ([]Finding, error) {
		err := failures[0]
		failures = failures[1:]
		return []Finding{stays}, err
	}}
	_, err = failing.look(t.Context(), h)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "not all was looked at twice")
	failures = []error{io.ErrUnexpectedEOF, io.ErrUnexpectedEOF}
	_, err = failing.look(t.Context(), h)
	require.EqualError(t, err, io.ErrUnexpectedEOF.Error())
}

// TestLookTwiceWithoutRecords: a finding that is missing because records cannot be read is not
// refuted.
func TestLookTwiceWithoutRecords(t *testing.T) {
	r := newRig(t)
	r.sh("mkdir -p -m 700 " + r.path("state/allocs") + "; echo '{' >" + r.path("state/allocs/broken.json") + "; chmod 600 " + r.path("state/allocs/broken.json"))
	finding := find("clock", "a", "what", "")
	var looks [][]Finding
	c := check{how: twice, run: func(context.Context, *Host) ([]Finding, error) {
		found := looks[0]
		looks = looks[1:]
		return found, nil
	}}
	looks = [][]Finding{{finding}, nil}
	found, err := c.look(t.Context(), r.host())
	var broken *configurator.RecordError
	require.ErrorAs(t, err, &broken)
	require.Empty(t, found)
	looks = [][]Finding{{finding}, {finding}}
	found, err = c.look(t.Context(), r.host())
	require.NoError(t, err, "Examine reports the record")
	require.Equal(t, []Finding{finding}, found)
}

// TestListenersTwice: a process may listen on the port of an allocation that was torn down since the
// records were read.
func TestListenersTwice(t *testing.T) {
	r := newRig(t)
	a := r.setup("web")
	h := r.host()
	var err error
	h.records, err = r.conf.List(t.Context())
	require.NoError(t, err)
	l := listen(t)
	defer l.Close()
	c := checks[slices.IndexFunc(checks, func(c check) bool { return c.name == "listeners" })]
	found, err := c.look(t.Context(), h)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, r.conf.Teardown(t.Context(), a))
	found, err = c.look(t.Context(), h)
	require.NoError(t, err)
	require.Empty(t, describe(found))
}

// TestChurn: a host on which allocations come and go is healthy.
func TestChurn(t *testing.T) {
	r := newRig(t)
	r.all = true
	r.network("10-web", r.chain("web", "web0", subnet, ""))
	conf, err := configurator.New(configurator.Config{ConfDir: r.path("conf"), StateDir: r.path("state"), PluginDirs: []string{r.path("bin")},
		Pools: []configurator.Pool{{Network: "web", Size: 2}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conf.Close()) })
	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for n := range 4 {
		workers.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				a := configurator.Allocation{ID: fmt.Sprintf("w%d-%d", n, k), OwnNetns: true, Networks: []string{"web"}}
				_, err := conf.Setup(context.WithoutCancel(ctx), a)
				require.NoError(t, err)
				require.NoError(t, conf.Teardown(context.WithoutCancel(ctx), a))
			}
		})
	}
	t.Cleanup(func() { stop(); workers.Wait() })
	for range 10 {
		r.healthy()
	}
}
