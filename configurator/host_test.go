package configurator

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/faultinject"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/shard"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) {
	faultinject.Main()
	if request := os.Getenv(ownNetnsVariable); request != "" {
		operateOwnNetns(request)
	}
	if config := os.Getenv(mustBeNewVariable); config != "" {
		setUpNew(config)
	}
	os.Exit(shard.Main(m, 4, func() int { return privhost.Main(m) }))
}

// behaviours is what a fake plugin does, by CNI command.
type behaviours map[string]fakeplugin.Behaviour

// testHost is a host with fake plugins and a configurator.
type testHost struct {
	*Configurator
	t                   *testing.T
	dir, conf, bin, log string
	seen                int // number of calls that commands has returned

	mu    sync.Mutex
	slept []time.Duration
}

// enough returns a time in which fake plugins surely run that do not hang, on this machine with what else
// it does now.
func enough(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	require.NoError(t, exec.Command("/proc/self/exe", "-test.run=^$").Run())
	return max(300*time.Millisecond, 10*time.Since(began))
}

func newTestHost(t *testing.T, change ...func(*Config)) *testHost {
	t.Helper()
	privhost.Require(t)
	dir := t.TempDir()
	h := &testHost{t: t, dir: dir, conf: filepath.Join(dir, "conf"), bin: filepath.Join(dir, "bin"), log: filepath.Join(dir, "log")}
	require.NoError(t, os.Mkdir(h.conf, 0o755))
	require.NoError(t, fakeplugin.Install(h.bin, "one", "two", "three"))
	require.NoError(t, os.MkdirAll("/run/fake", 0o755))
	libcni.CacheDir = "/run/fake/cache"
	cfg := Config{ConfDir: h.conf, PluginDirs: []string{h.bin}, StateDir: filepath.Join(dir, "state"), Logger: hclog.New(&hclog.LoggerOptions{Output: testWriter{t}})}
	for _, f := range change {
		f(&cfg)
	}
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.StateDir, "allocs"), 0o700))
	h.Configurator = newConfigurator(t, cfg)
	h.sleep = h.recordSleep
	return h
}

func newConfigurator(t *testing.T, cfg Config) *Configurator {
	t.Helper()
	c, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { // or the background would write into the directories of the test while they are removed
		c.backlog.drainTime = min(c.backlog.drainTime, 3*time.Second)
		_ = c.backlog.close() // some tests make the removals fail
	})
	return c
}

// testWriter writes the configurator's log to the log of a test.
type testWriter struct{ t *testing.T }

func (h testWriter) Write(p []byte) (int, error) {
	h.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (h *testHost) recordSleep(ctx context.Context, d time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slept = append(h.slept, d)
	return ctx.Err()
}

// result is the result of a plugin that claims the sandbox's loopback as its
// own, so that the interface exists.
const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"lo","sandbox":"` + fakeplugin.Netns + `"}],"ips":[{"address":"127.0.0.1/8","interface":0}]}`

// adds returns a plugin whose ADD succeeds. more changes its behaviour.
func adds(more ...behaviours) behaviours {
	b := behaviours{"ADD": {Result: json.RawMessage(result)}}
	for _, m := range more {
		for command, behaviour := range m {
			if behaviour.Result == nil {
				behaviour.Result = b[command].Result
			}
			b[command] = behaviour
		}
	}
	return b
}

// network writes a conflist whose plugins have the types one, two, three.
func (h *testHost) network(name, version string, plugins ...behaviours) {
	h.t.Helper()
	h.file(name+".conflist", h.conflist(name, version, nil, plugins...))
}

func (h *testHost) conflist(name, version string, keys map[string]any, plugins ...behaviours) string {
	h.t.Helper()
	var list []map[string]any
	for i, b := range plugins {
		list = append(list, map[string]any{
			"type": []string{"one", "two", "three"}[i], "capabilities": map[string]bool{"portMappings": true, "mac": true},
			"fake": map[string]any{"log": h.log, "on": b},
		})
	}
	conf := map[string]any{"cniVersion": version, "name": name, "plugins": list}
	for k, v := range keys {
		conf[k] = v
	}
	data, err := json.Marshal(conf)
	require.NoError(h.t, err)
	return string(data)
}

func (h *testHost) file(name, content string) {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(filepath.Join(h.conf, name), []byte(content), 0o600))
}

// alloc returns an allocation with its own network namespace.
func (h *testHost) alloc(id string) Allocation {
	h.t.Helper()
	s, err := sandbox.Create(id)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = s.Destroy() })
	return Allocation{ID: id, Netns: s.Path()}
}

// commands returns the plugin calls since the last call of commands.
func (h *testHost) commands() []string {
	h.t.Helper()
	commands, err := fakeplugin.Commands(h.log)
	require.NoError(h.t, err)
	from := h.seen
	h.seen = len(commands)
	return commands[from:]
}

func (h *testHost) calls() []fakeplugin.Call {
	h.t.Helper()
	calls, err := fakeplugin.Calls(h.log)
	require.NoError(h.t, err)
	return calls
}

// changes returns the calls of the fake plugins but for CHECK, which Setup runs after some ADDs.
func (h *testHost) changes() []fakeplugin.Call {
	h.t.Helper()
	return slices.DeleteFunc(h.calls(), func(c fakeplugin.Call) bool { return c.Command == "CHECK" })
}

// found returns a status as a later Setup or a record returns it.
func found(s *Status) *Status {
	later := *s
	later.Created = false
	return &later
}

// settle waits until the background has deleted what Teardown left to it.
func (h *testHost) settle() {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		h.backlog.settle(context.Background(), 0)
		return h.Pending() == 0
	}, time.Minute, time.Millisecond)
}

func (h *testHost) requireNoRecords() {
	h.t.Helper()
	h.settle()
	records, err := h.List(context.Background())
	require.NoError(h.t, err)
	require.Empty(h.t, records)
}

// waitForCommand waits until a plugin is called with a command.
func (h *testHost) waitForCommand(command string) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		commands, err := fakeplugin.Commands(h.log)
		return err == nil && strings.Contains(strings.Join(commands, "\n"), command)
	}, 20*time.Second, 10*time.Millisecond)
}

// requireReport compares the report of a GC with one without records. The
// report must contain the records of the removed allocations.
func requireReport(t *testing.T, want, got *GCReport) {
	t.Helper()
	var ids []string
	for _, r := range got.Records {
		ids = append(ids, r.ID)
		require.NotEmpty(t, r.Networks)
		require.Nil(t, r.Status)
	}
	require.Equal(t, want.Removed, append([]string{}, ids...))
	without := *got
	without.Records = nil
	require.Equal(t, want, &without)
}
