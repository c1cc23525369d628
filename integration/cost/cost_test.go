package cost

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

const (
	// measureVariable makes the test binary the process that is measured; it has a measurement.
	measureVariable = "ALLOCNET_TEST_COST"
	// writeVariable writes the numbers in place of comparing them.
	writeVariable = "ALLOCNET_WRITE_COSTS"
	goldenFile    = "testdata/costs.txt"
)

func TestMain(m *testing.M) {
	os.Exit(testbed.Main(m, testbed.Roles{measureVariable: func() {
		if err := measure(); err != nil {
			fmt.Fprintln(os.Stderr, "measure:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}}))
}

// present is how many allocations with bridge, and as many with ptp, the numbers must not depend on.
const present = 300

// rounds is how often a process repeats an operation: see usual.
const rounds = 7

// measurement is what a process measures.
type measurement struct {
	ConfDir, Network string
	Pooled           bool
	Ports            []portmap.Port
	Netns            string // of the allocation, unless it is Pooled
}

// cases are the networks. Those with firewall and portmap have the present allocations, too.
func cases(h *testbed.Host) map[string]measurement {
	list := map[string]measurement{}
	for i, main := range []string{"bridge", "ptp"} {
		plugin := map[string]any{"type": main, "ipam": testbed.Families{V4: fmt.Sprintf("10.9%d.0.0/24", i)}.IPAM()}
		if main == "bridge" {
			plugin["bridge"], plugin["isGateway"] = "br-bare", true
		}
		h.Network("bare-"+main, plugin)
		h.Network(main, testbed.Chain(main, testbed.Families{V4: fmt.Sprintf("10.%d.0.0/16", 70+i)}, "")...)
		ports := []portmap.Port{testbed.TCPPort(8080, 80)}
		list[main] = measurement{Network: "bare-" + main}
		list[main+" with firewall and portmap"] = measurement{Network: main, Ports: ports}
		list[main+" with firewall and portmap, from a pool"] = measurement{Network: main, Ports: ports, Pooled: true}
	}
	return list
}

// TestCosts: the operations cost what they did, whatever is present.
func TestCosts(t *testing.T) {
	h := testbed.New(t, configurator.EngineNative)
	list := cases(h)
	own := h.Alloc("own")
	for _, m := range list { // the process of the test holds the guards, with and without others present
		a := configurator.Allocation{ID: own.ID, Netns: own.Netns, Networks: []string{m.Network}, Wait: true}
		h.SetUp(a)
		h.TearDown(a)
	}
	awaitSettled(t, h.ConfDir)
	var lines []string
	for _, n := range []int{0, present} {
		fill(h, n)
		for name, m := range list {
			m.ConfDir, m.Netns = h.ConfDir, own.Netns
			for operation, c := range run(t, m) {
				lines = append(lines, fmt.Sprintf("%s, %s, %d present: %d system calls, %d netlink messages, %d transactions, %d files opened for writing",
					name, operation, n, c.calls, c.messages, c.transactions, c.files))
				t.Logf("%s, %s, %d present: %v", name, operation, n, c.byNumber)
			}
		}
	}
	_, err := h.GC(h.Context(), nil)
	require.NoError(t, err)
	slices.Sort(lines)
	compare(t, lines)
}

// awaitSettled waits until the configurations are so old that a process does not read them again: within one tick
// of the clock they could change twice.
func awaitSettled(t *testing.T, dir string) {
	t.Helper()
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return time.Since(info.ModTime()) > 2*time.Second }, 10*time.Second, 10*time.Millisecond)
}

// fill sets up allocations with bridge and with ptp, several at a time.
func fill(h *testbed.Host, n int) {
	h.T.Helper()
	var all []configurator.Allocation
	for i, id := range testbed.IDs("present", 2*n) {
		a := h.Alloc(id)
		a.Networks, a.Ports = []string{[]string{"bridge", "ptp"}[i%2]}, []portmap.Port{testbed.TCPPort(20000+i, 80)}
		all = append(all, a)
	}
	errs := make([]error, len(all))
	var group sync.WaitGroup
	next := make(chan int)
	for range 8 {
		group.Go(func() {
			for i := range next {
				_, errs[i] = h.Setup(h.Context(), all[i])
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	group.Wait()
	for _, err := range errs {
		require.NoError(h.T, err)
	}
}

// run measures in a process of its own, and returns the usual count of each operation.
func run(t *testing.T, m measurement) map[string]*count {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	text, err := json.Marshal(m)
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), measureVariable+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	counted, err := trace(cmd)
	require.NoError(t, err)
	of := map[string]*count{}
	for operation, list := range counted {
		require.Len(t, list, rounds, operation)
		of[operation] = least(list)
	}
	require.NotEmpty(t, of)
	return of
}

// measure is the process that is measured. It first does everything once, which makes what all
// allocations share.
func measure() error {
	debug.SetGCPercent(-1)
	var m measurement
	if err := json.Unmarshal([]byte(os.Getenv(measureVariable)), &m); err != nil {
		return err
	}
	cfg := configurator.Config{Engine: configurator.EngineNative, ConfDir: m.ConfDir}
	if m.Pooled {
		cfg.Pools = []configurator.Pool{{Network: m.Network, Size: 2 * rounds}}
	}
	c, err := configurator.New(cfg)
	if err != nil {
		return err
	}
	a := configurator.Allocation{ID: "measured", Netns: m.Netns, Networks: []string{m.Network}, Ports: m.Ports, Wait: true}
	add := "ADD"
	if m.Pooled {
		a.Netns, a.OwnNetns, add = filepath.Join(sandbox.DefaultDir, a.ID), true, "take"
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 1 + rounds {
		if m.Pooled {
			if err := awaitSlots(ctx, c); err != nil {
				return err
			}
		}
		if i > 0 {
			mark(add)
		}
		_, err := c.Setup(ctx, a)
		if mark(""); err != nil {
			return err
		}
		setUp := time.Now()
		before := runtime.NumGoroutine()
		if i > 0 && !m.Pooled { // the pool prepares another one during the DEL
			mark("DEL")
		}
		if err := c.Teardown(ctx, a); err != nil {
			return err
		}
		// The next ADD waits for what still unlocks something, and until it has to check again what it shares with this one.
		for !m.Pooled && (runtime.NumGoroutine() > before || time.Since(setUp) < sdk.CacheTTL) {
			if err := pause(ctx); err != nil {
				return err
			}
		}
		mark("")
	}
	return c.ClosePools()
}

// awaitSlots waits until the pool is full: then nothing is prepared in the background.
func awaitSlots(ctx context.Context, c *configurator.Configurator) error {
	for {
		if s := c.Pools()[0]; s.Ready == s.Size {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("fill the pool: %w", err)
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Millisecond):
		return nil
	}
}

// compare compares lines with the golden file.
func compare(t *testing.T, lines []string) {
	t.Helper()
	text := strings.Join(lines, "\n") + "\n"
	if os.Getenv(writeVariable) != "" {
		require.NoError(t, os.WriteFile(goldenFile, []byte(text), 0o644))
	}
	golden, err := os.ReadFile(goldenFile)
	require.NoError(t, err)
	require.Equal(t, string(golden), text, "an intended change: %s=1 go test ./integration/cost", writeVariable)
}
