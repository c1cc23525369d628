package configurator

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
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
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) {
	faultinject.Main()
	fakeplugin.Main()
	if request := os.Getenv(ownNetnsVariable); request != "" {
		operateOwnNetns(request)
	}
	if config := os.Getenv(mustBeNewVariable); config != "" {
		setUpNew(config)
	}
	os.Exit(privhost.Main(m))
}

// behaviours is what a fake plugin does, by CNI command.
type behaviours map[string]fakeplugin.Behaviour

// world is a host with fake plugins, and a configurator on it.
type world struct {
	*Configurator
	t                   *testing.T
	dir, conf, bin, log string
	seen                int // calls that commands has returned

	mu    sync.Mutex
	slept []time.Duration
}

func newWorld(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	privhost.Require(t)
	dir := t.TempDir()
	w := &world{t: t, dir: dir, conf: filepath.Join(dir, "conf"), bin: filepath.Join(dir, "bin"), log: filepath.Join(dir, "log")}
	require.NoError(t, os.Mkdir(w.conf, 0o755))
	require.NoError(t, fakeplugin.Install(w.bin, "one", "two", "three"))
	require.NoError(t, os.MkdirAll("/run/fake", 0o755))
	libcni.CacheDir = "/run/fake/cache"
	cfg := Config{ConfDir: w.conf, PluginDirs: []string{w.bin}, StateDir: filepath.Join(dir, "state"), Logger: hclog.New(&hclog.LoggerOptions{Output: testWriter{t}})}
	for _, f := range change {
		f(&cfg)
	}
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.StateDir, "allocs"), 0o700))
	w.Configurator = newConfigurator(t, cfg)
	w.sleep = w.recordSleep
	return w
}

func newConfigurator(t *testing.T, cfg Config) *Configurator {
	t.Helper()
	c, err := New(cfg)
	require.NoError(t, err)
	return c
}

// testWriter shows what the configurator logs where a test fails.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (w *world) recordSleep(ctx context.Context, d time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slept = append(w.slept, d)
	return ctx.Err()
}

// result is that of a plugin which claims the sandbox's loopback as its own, so
// that its interface is truly there.
const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"lo","sandbox":"/sandbox"}],"ips":[{"address":"127.0.0.1/8","interface":0}]}`

// adds is a plugin whose ADD succeeds; more changes what it does.
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

// network writes a conflist whose plugins are of type one, two, three.
func (w *world) network(name, version string, plugins ...behaviours) {
	w.t.Helper()
	w.file(name+".conflist", w.conflist(name, version, nil, plugins...))
}

func (w *world) conflist(name, version string, keys map[string]any, plugins ...behaviours) string {
	w.t.Helper()
	var list []map[string]any
	for i, b := range plugins {
		list = append(list, map[string]any{
			"type": []string{"one", "two", "three"}[i], "capabilities": map[string]bool{"portMappings": true, "mac": true},
			"fake": map[string]any{"log": w.log, "on": b},
		})
	}
	conf := map[string]any{"cniVersion": version, "name": name, "plugins": list}
	for k, v := range keys {
		conf[k] = v
	}
	data, err := json.Marshal(conf)
	require.NoError(w.t, err)
	return string(data)
}

func (w *world) file(name, content string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(filepath.Join(w.conf, name), []byte(content), 0o600))
}

// alloc is an allocation with a network namespace of its own.
func (w *world) alloc(id string) Allocation {
	w.t.Helper()
	s, err := sandbox.Create(id)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = s.Destroy() })
	return Allocation{ID: id, Netns: s.Path()}
}

// commands are what the plugins were asked since the last call.
func (w *world) commands() []string {
	w.t.Helper()
	commands, err := fakeplugin.Commands(w.log)
	require.NoError(w.t, err)
	from := w.seen
	w.seen = len(commands)
	return commands[from:]
}

func (w *world) calls() []fakeplugin.Call {
	w.t.Helper()
	calls, err := fakeplugin.Calls(w.log)
	require.NoError(w.t, err)
	return calls
}

// found is a status as a later Setup, or a record, has it.
func found(s *Status) *Status {
	later := *s
	later.Created = false
	return &later
}

func (w *world) requireNoRecords() {
	w.t.Helper()
	records, err := w.List(context.Background())
	require.NoError(w.t, err)
	require.Empty(w.t, records)
}

// waitForCommand waits until a plugin was called so.
func (w *world) waitForCommand(command string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		commands, err := fakeplugin.Commands(w.log)
		return err == nil && strings.Contains(strings.Join(commands, "\n"), command)
	}, 20*time.Second, 2*time.Millisecond)
}

// requireReport compares the report of a GC with one that has no records: those of the
// allocations that were removed have to be there.
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
