package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// poolLoopID is the ID that makes the loop use a pool.
const poolLoopID = "pool-loop"

// loop sets up and tears down an allocation until it is killed.
func loop() {
	c, id := testbed.Loop(poolLoopID)
	if id == poolLoopID {
		poolLoop(c)
	}
	a := configurator.Allocation{ID: id, Netns: "/run/netns/" + id, Ports: []portmap.Port{{Value: 8080, To: 80}}}
	fmt.Println("ready")
	for {
		for range 2 { // the second Setup runs CHECK
			if _, err := c.Setup(context.Background(), a); err != nil {
				panic(err)
			}
			fmt.Println(testbed.Acknowledged)
		}
		fmt.Println("removing")
		if err := c.Teardown(context.Background(), a); err != nil {
			panic(err)
		}
	}
}

// TestKilled kills a process at random moments. An acknowledged allocation
// answers, and GC leaves nothing.
func TestKilled(t *testing.T) {
	testbed.EachElsewhere(t, testbed.Engines, func(t *testing.T, w testbed.Way) {
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(main, func(t *testing.T) { testKilled(t, w, main) })
		}
	})
}

func testKilled(t *testing.T, w testbed.Way, main string) {
	times, most := testbed.CampaignSize(10, 250), 500*time.Millisecond
	if w == testbed.Native { // operations are much shorter
		times, most = testbed.CampaignSize(30, 500), 60*time.Millisecond
		if testing.Short() {
			times = 8 // integration/crash kills the operations at chosen points
		}
	}
	h := newHost(t, w.Engine)
	h.Network("net", append(testbed.Chain(main, testbed.Dual, w.Backend), map[string]any{"type": "tuning", "mtu": 1400},
		map[string]any{"type": "bandwidth", "ingressRate": 1 << 30, "ingressBurst": 1 << 24, "egressRate": 1 << 30, "egressBurst": 1 << 24})...)
	a := h.Alloc("killed")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	testbed.Serve(t, a.Netns, "tcp", 80, "killed")
	h.SetUp(a) // creates what the first use of a network leaves
	h.TearDown(a)
	before, err := hostsnap.Take(testbed.SnapshotOptions)
	require.NoError(t, err)
	h.streamEvery(time.Millisecond, testbed.At(testhost.Host4.Addr(), 8080)) // so that connections are always tracked
	h.streamEvery(time.Millisecond, testbed.At(testhost.Host6.Addr(), 8080))
	rnd := rand.New(rand.NewPCG(testbed.CampaignSeed(t), 0))
	found := 0
	for round := 0; round < times || found == 0 && round < 20*times; round++ {
		slower := int64(1 + round/times) // until a kill has hit: a machine under load begins late
		said := h.KillLoop(a, time.Duration(rnd.Int64N(slower*int64(most))))
		if said == testbed.Acknowledged {
			require.NoError(t, h.Check(h.Context(), a))
			testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "killed")
			testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, 8080), "killed")
		}
		report, err := h.GC(h.Context(), nil)
		require.NoError(t, err)
		found += len(report.Removed)
		left, err := h.Audit(h.Context(), a)
		require.NoError(t, err)
		require.Empty(t, left)
		requireTracked(t, false)
		after, err := hostsnap.Take(testbed.SnapshotOptions)
		require.NoError(t, err)
		require.Empty(t, hostsnap.Diff(before, after))
	}
	require.Positive(t, found, "at least one kill hit an operation")
}
