package testbed

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
)

// LoopVariable is the variable of the role of the processes that KillLoop
// starts: "<engine> <conf dir> <plugin dir> <ID>".
const LoopVariable = "ALLOCNET_TEST_LOOP"

// Acknowledged is what a loop prints when the allocation is set up.
const Acknowledged = "acknowledged"

// Loop returns what a process that KillLoop started works with: a configurator,
// and the ID of an allocation. With an ID among pooled, the network "net" has a
// pool. The process prints "ready" before it begins.
func Loop(pooled ...string) (c *configurator.Configurator, id string) {
	var engine, conf, plugins string
	if _, err := fmt.Sscan(os.Getenv(LoopVariable), &engine, &conf, &plugins, &id); err != nil {
		panic(err)
	}
	libcni.CacheDir = "/var/lib/cni"
	cfg := configurator.Config{Engine: configurator.Engine(engine), ConfDir: conf, PluginDirs: []string{plugins}}
	if slices.Contains(pooled, id) {
		cfg.Networks, cfg.Pools = []string{"net"}, []configurator.Pool{{Network: "net", Size: 4}}
	}
	c, err := configurator.New(cfg)
	if err != nil {
		panic(err)
	}
	return c, id
}

// KillLoop starts a process of the test binary that works in a loop with an
// allocation, kills it after a while, and returns its last output.
func (h *Host) KillLoop(a configurator.Allocation, after time.Duration) (said string) {
	h.T.Helper()
	self, err := os.Executable()
	require.NoError(h.T, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %s", LoopVariable, h.Config.Engine, h.ConfDir, PluginDir, a.ID))
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(h.T, err)
	require.NoError(h.T, c.Start())
	lines := bufio.NewScanner(out)
	require.True(h.T, lines.Scan())
	require.Equal(h.T, "ready", lines.Text())
	time.AfterFunc(after, func() { _ = c.Process.Kill() })
	for lines.Scan() {
		said = lines.Text()
	}
	require.ErrorContains(h.T, c.Wait(), "killed")
	return said
}
