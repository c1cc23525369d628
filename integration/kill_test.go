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
	"github.com/allocnet/allocnet/portmap"
)

// loopVariable makes the test binary set up and tear down an allocation until
// it is killed: "<engine> <conf dir> <plugin dir> <ID>".
const loopVariable = "ALLOCNET_TEST_LOOP"

func loop() {
	var engine, conf, plugins, id string
	if _, err := fmt.Sscan(os.Getenv(loopVariable), &engine, &conf, &plugins, &id); err != nil {
		panic(err)
	}
	libcni.CacheDir = "/var/lib/cni"
	c, err := configurator.New(configurator.Config{Engine: configurator.Engine(engine), ConfDir: conf, PluginDirs: []string{plugins}})
	if err != nil {
		panic(err)
	}
	a := configurator.Allocation{ID: id, Netns: "/run/netns/" + id, Ports: []portmap.Port{{Value: 8080, To: 80}}}
	fmt.Println("ready")
	for {
		if _, err := c.Setup(context.Background(), a); err != nil {
			panic(err)
		}
		if err := c.Teardown(context.Background(), a); err != nil {
			panic(err)
		}
	}
}

// TestKilled kills a process at random moments of its work; GC leaves nothing.
func TestKilled(t *testing.T) { each(t, engines, testKilled) }

func testKilled(t *testing.T, w way) {
	times, most := 50, 500*time.Millisecond
	if w == native { // an operation is much shorter
		times, most = 200, 60*time.Millisecond
	}
	h := newHost(t, w.engine)
	h.network("net", chain("bridge", dual, w.backend)...)
	a := h.alloc("killed")
	h.streamEvery(time.Millisecond, at(host4.Addr(), 8080)) // so that connections are tracked at every moment
	h.streamEvery(time.Millisecond, at(host6.Addr(), 8080))
	self, err := os.Executable()
	require.NoError(t, err)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	found := 0
	for range times {
		c := exec.Command(self)
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %s", loopVariable, w.engine, h.conf, pluginDir, a.ID))
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "ready\n", line)
		moment := time.NewTimer(time.Duration(rnd.Int64N(int64(most))))
		<-moment.C
		require.NoError(t, c.Process.Kill())
		require.ErrorContains(t, c.Wait(), "killed")

		report, err := h.GC(h.ctx(), nil)
		require.NoError(t, err)
		found += len(report.Removed)
		left, err := h.Audit(h.ctx(), a)
		require.NoError(t, err)
		require.Empty(t, left)
		requireTracked(t, false)
	}
	require.Positive(t, found, "at least one kill hit an operation")
}
