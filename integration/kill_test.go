package integration

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/portmap"
)

// loopVariable makes the test binary set up and tear down an allocation until
// it is killed: "<engine> <conf dir> <plugin dir> <ID>".
const loopVariable = "ALLOCNET_TEST_LOOP"

// poolLoopID is the ID that makes the loop use a pool.
const poolLoopID = "pool-loop"

func loop() {
	var engine, conf, plugins, id string
	if _, err := fmt.Sscan(os.Getenv(loopVariable), &engine, &conf, &plugins, &id); err != nil {
		panic(err)
	}
	libcni.CacheDir = "/var/lib/cni"
	cfg := configurator.Config{Engine: configurator.Engine(engine), ConfDir: conf, PluginDirs: []string{plugins}}
	if id == poolLoopID || id == policyPoolLoop {
		cfg.Networks, cfg.Pools = []string{"net"}, []configurator.Pool{{Network: "net", Size: 4}}
	}
	c, err := configurator.New(cfg)
	if err != nil {
		panic(err)
	}
	switch id {
	case poolLoopID:
		poolLoop(c)
	case policyUpdateLoop, policyLifeLoop, policyPoolLoop:
		policyLoop(c, id)
	}
	a := configurator.Allocation{ID: id, Netns: "/run/netns/" + id, Ports: []portmap.Port{{Value: 8080, To: 80}}}
	fmt.Println("ready")
	for {
		for range 2 { // the second Setup runs CHECK
			if _, err := c.Setup(context.Background(), a); err != nil {
				panic(err)
			}
			fmt.Println(acknowledged)
		}
		fmt.Println("removing")
		if err := c.Teardown(context.Background(), a); err != nil {
			panic(err)
		}
	}
}

// acknowledged is what the loop prints when the allocation is set up.
const acknowledged = "acknowledged"

// TestKilled kills a process at random moments. An acknowledged allocation
// answers, and GC leaves nothing.
func TestKilled(t *testing.T) {
	eachElsewhere(t, engines, func(t *testing.T, w way) {
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(main, func(t *testing.T) { testKilled(t, w, main) })
		}
	})
}

func testKilled(t *testing.T, w way, main string) {
	times, most := campaignSize(10, 250), 500*time.Millisecond
	if w == native { // operations are much shorter
		times, most = campaignSize(30, 500), 60*time.Millisecond
	}
	h := newHost(t, w.engine)
	h.network("net", append(chain(main, dual, w.backend), map[string]any{"type": "tuning", "mtu": 1400},
		map[string]any{"type": "bandwidth", "ingressRate": 1 << 30, "ingressBurst": 1 << 24, "egressRate": 1 << 30, "egressBurst": 1 << 24})...)
	a := h.alloc("killed")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	serve(t, a.Netns, "tcp", 80, "killed")
	h.setUp(a) // creates what the first use of a network leaves
	h.tearDown(a)
	before, err := hostsnap.Take(snapshotOptions)
	require.NoError(t, err)
	h.streamEvery(time.Millisecond, at(host4.Addr(), 8080)) // so that connections are always tracked
	h.streamEvery(time.Millisecond, at(host6.Addr(), 8080))
	rnd := rand.New(rand.NewPCG(campaignSeed(t), 0))
	found := 0
	for range times {
		said := h.killLoop(a, time.Duration(rnd.Int64N(int64(most))))
		if said == acknowledged {
			require.NoError(t, h.Check(h.ctx(), a))
			requireAnswer(t, h.outside.Path(), "tcp", hostPort(host4, 8080), "killed")
			requireAnswer(t, h.outside.Path(), "tcp", hostPort(host6, 8080), "killed")
		}
		report, err := h.GC(h.ctx(), nil)
		require.NoError(t, err)
		found += len(report.Removed)
		left, err := h.Audit(h.ctx(), a)
		require.NoError(t, err)
		require.Empty(t, left)
		requireTracked(t, false)
		after, err := hostsnap.Take(snapshotOptions)
		require.NoError(t, err)
		require.Empty(t, hostsnap.Diff(before, after))
	}
	require.Positive(t, found, "at least one kill hit an operation")
}

// killLoop starts a process that sets up and tears down an allocation, kills it
// after a while, and returns its last output.
func (h *host) killLoop(a configurator.Allocation, after time.Duration) (said string) {
	h.t.Helper()
	self, err := os.Executable()
	require.NoError(h.t, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %s", loopVariable, h.cfg.Engine, h.conf, pluginDir, a.ID))
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(h.t, err)
	require.NoError(h.t, c.Start())
	lines := bufio.NewScanner(out)
	require.True(h.t, lines.Scan())
	require.Equal(h.t, "ready", lines.Text())
	time.AfterFunc(after, func() { _ = c.Process.Kill() })
	for lines.Scan() {
		said = lines.Text()
	}
	require.ErrorContains(h.t, c.Wait(), "killed")
	return said
}
