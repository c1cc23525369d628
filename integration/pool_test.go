package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// pooled gives the host a configurator with a pool of the network "net", which is full.
func (h *host) pooled(size int) {
	h.T.Helper()
	h.Config.Pools = []configurator.Pool{{Network: "net", Size: size}}
	var err error
	h.Configurator, err = configurator.New(h.Config)
	require.NoError(h.T, err)
	h.T.Cleanup(func() { require.NoError(h.T, h.Close()) })
	require.Eventually(h.T, func() bool { return h.Pools()[0].Ready == size }, 20*time.Second, time.Millisecond)
}

// TestPool: the same connections work of an allocation from a pool as of another one beside it.
// TestPoolSame compares what the host has for them.
func TestPool(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		for name, families := range map[string]testbed.Families{"v4": {V4: testbed.Dual.V4}, "v6": {V6: testbed.Dual.V6}, "dual": testbed.Dual} {
			t.Run(main+" "+name, func(t *testing.T) { testPool(t, main, families) })
		}
	}
}

func testPool(t *testing.T, main string, of testbed.Families) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", testbed.Chain(main, of, "")...)
	h.pooled(1)
	a := configurator.Allocation{ID: "pooled", Networks: []string{"net"}, OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80}}}
	b := a
	b.ID, b.Ports = "common", []portmap.Port{{Value: 8081, To: 80}}
	b.Args = map[string]string{"GATEWAY": ""} // read by no plugin of the chain, but by one of the library
	for _, one := range []configurator.Allocation{b, a} {
		s, err := h.Setup(h.Context(), one)
		require.NoError(t, err)
		require.True(t, s.Created)
		netns := filepath.Join(sandbox.DefaultDir, one.ID)
		testbed.Serve(t, netns, "tcp", 80, one.ID)
		testbed.Serve(t, netns, "udp", 80, one.ID)
		for _, protocol := range []string{"tcp", "udp"} {
			for _, from := range []string{"", h.Outside.Path(), netns} {
				if of.V4 != "" {
					testbed.RequireAnswer(t, from, protocol, testbed.HostPort(testhost.Host4, one.Ports[0].Value), one.ID)
				}
				if of.V6 != "" {
					testbed.RequireAnswer(t, from, protocol, testbed.HostPort(testhost.Host6, one.Ports[0].Value), one.ID)
				}
			}
		}
		require.NoError(t, h.Check(h.Context(), one))
	}
	require.Equal(t, uint64(1), h.Pools()[0].Taken)
	for _, one := range []configurator.Allocation{a, b} {
		require.NoError(t, h.Teardown(h.Context(), one))
	}
	h.Settle()
}

// TestPoolNeighbours: a neighbour on the bridge reaches a prepared network namespace that has the address
// of an allocation that it knew.
func TestPoolNeighbours(t *testing.T) {
	for name, more := range map[string][]map[string]any{"plain": nil, "policy": {{"type": "policy"}}} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			plugins := append(testbed.Chain("bridge", testbed.Dual, ""), more...)
			plugins[1]["ipam"] = map[string]any{"type": "host-local", "ranges": []any{
				[]any{map[string]any{"subnet": testbed.Dual.V4, "rangeStart": "10.99.0.2", "rangeEnd": "10.99.0.4"}},
				[]any{map[string]any{"subnet": testbed.Dual.V6, "rangeStart": "fd00:99::2", "rangeEnd": "fd00:99::4"}},
			}}
			h.Network("net", plugins...)
			h.pooled(1)
			allocation := func(i int) configurator.Allocation {
				return configurator.Allocation{ID: fmt.Sprint("a", i), Networks: []string{"net"}, OwnNetns: true, Wait: true}
			}
			_, err := h.Setup(h.Context(), allocation(0))
			require.NoError(t, err)
			other := filepath.Join(sandbox.DefaultDir, "a0")
			held := map[string]int{}
			for i := 1; i < 8; i++ {
				require.Eventually(t, func() bool { return h.Pools()[0].Ready == 1 }, 20*time.Second, time.Millisecond)
				s, err := h.Setup(h.Context(), allocation(i))
				require.NoError(t, err)
				testbed.Serve(t, filepath.Join(sandbox.DefaultDir, allocation(i).ID), "tcp", 80, allocation(i).ID)
				for _, at := range []string{s.Address, s.AddressIPv6} {
					testbed.RequireAnswer(t, other, "tcp", net.JoinHostPort(at, "80"), allocation(i).ID)
					held[at]++
				}
				require.NoError(t, h.Teardown(h.Context(), allocation(i)))
			}
			require.Len(t, held, 4, "each address has had several holders")
			require.Equal(t, uint64(8), h.Pools()[0].Taken)
			require.NoError(t, h.Teardown(h.Context(), allocation(0)))
			h.Settle()
		})
	}
}

// poolLoop sets allocations up from a pool and tears them down until it is killed.
func poolLoop(c *configurator.Configurator) {
	fmt.Println("ready")
	for i := 0; ; i++ {
		a := configurator.Allocation{ID: fmt.Sprint("killed", i%4), OwnNetns: true, Ports: []portmap.Port{{Value: 8080 + i%4, To: 80}}}
		if _, err := c.Setup(context.Background(), a); err != nil {
			panic(err)
		}
		fmt.Println(testbed.Acknowledged)
		if err := c.Teardown(context.Background(), a); err != nil {
			panic(err)
		}
	}
}

// requireNoSlotNotes requires that Recover has left no note about the network namespace of a slot.
func requireNoSlotNotes(t *testing.T) {
	notes, err := filepath.Glob(configurator.DefaultStateDir + "/sandboxes/pool-*")
	require.NoError(t, err)
	require.Empty(t, notes)
}

// TestPoolKilled kills a process with a pool at random moments. Recover and GC leave nothing.
func TestPoolKilled(t *testing.T) {
	testhost.EachElsewhere(t, []string{"bridge", "ptp"}, testPoolKilled)
}

func testPoolKilled(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
	a := h.Alloc("first")
	h.SetUp(a) // creates what the first use of a network leaves
	h.TearDown(a)
	require.NoError(t, sandbox.Destroy(a.Netns))
	before, err := hostsnap.Take(testbed.SnapshotOptions)
	require.NoError(t, err)
	rnd := rand.New(rand.NewPCG(testbed.CampaignSeed(t), 0))
	removed, taken, rounds := 0, 0, testbed.CampaignSize(15, 200)
	for i := 0; i < rounds || taken == 0 && i < 8*rounds; i++ {
		most := 80 * time.Millisecond << min(i/rounds, 5) // on a busy host, a Setup comes later
		if h.KillLoop(configurator.Allocation{ID: poolLoopID}, time.Duration(rnd.Int64N(int64(most)))) == testbed.Acknowledged {
			taken++
		}
		report, err := h.Recover(h.Context())
		require.NoError(t, err)
		removed += len(report.Removed)
		requireNoSlotNotes(t)
		collected, err := h.GCScope(h.Context(), configurator.Scope{DestroyNetns: true})
		require.NoError(t, err)
		removed += len(collected.Removed)
		after, err := hostsnap.Take(testbed.SnapshotOptions)
		require.NoError(t, err)
		require.Empty(t, hostsnap.Diff(before, after))
	}
	require.Positive(t, removed, "slots of the killed processes")
	require.Positive(t, taken, "at least one process got as far as a Setup")
}
