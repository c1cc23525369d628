package doctor

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/record"
)

// requireNothing makes two checks with records that were read before what has changed since.
func (r *rig) requireNothing(h *Host, message string) {
	r.Helper()
	for _, check := range []func(context.Context, *Host) ([]Finding, error){checkAllocations, checkNamespaces} {
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
	for _, id := range []string{"pool-gone", "pool-x"} {
		found, err := r.host().leftoversOf(t.Context(), &configurator.Record{ID: id, Networks: []configurator.NetworkRecord{{Network: "web"}}})
		require.NoError(t, err)
		require.Empty(t, found)
		require.False(t, r.host().isDeadSlot(id))
	}
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
}

// TestRoutesOfDeletedLinks: a route is left out if its link is deleted before the links are listed.
func TestRoutesOfDeletedLinks(t *testing.T) {
	r := newRig(t)
	r.sh("ip link add old0 type bridge; ip link set old0 up; ip route add 10.99.0.1/32 dev old0; ip route add unreachable 10.99.0.2/32")
	r.undo("ip route del unreachable 10.99.0.2/32")
	routes, err := allRoutes()
	require.NoError(t, err)
	r.sh("ip link del old0")
	list := appendRoutes(nil, routes, nil, func(r *netlink.Route) bool {
		return r.Dst.IP.String() != "10.99.0.1" && r.Dst.IP.String() != "10.99.0.2"
	})
	require.Len(t, list, 1)
	require.Equal(t, "route 10.99.0.2/32 without a link", list[0].what)
}

// TestChurn: a host on which allocations come and go is healthy.
func TestChurn(t *testing.T) {
	r := newRig(t)
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
