package clienttest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) {
	os.Exit(privhost.Main(m))
}

// host is a configurator with fake plugins on a private host.
type host struct {
	*configurator.Configurator
	dir string
}

func newHost(t *testing.T, change ...func(*configurator.Config)) *host {
	t.Helper()
	privhost.Require(t)
	h := &host{dir: t.TempDir()}
	require.NoError(t, os.Mkdir(h.path("conf"), 0o755))
	require.NoError(t, fakeplugin.Install(h.path("bin"), "fake"))
	libcni.CacheDir = h.path("cache")
	h.network(t, "10-"+apitest.Net, apitest.Net, map[string]fakeplugin.Behaviour{"ADD": {Result: json.RawMessage(
		`{"cniVersion":"1.0.0","interfaces":[{"name":"lo","sandbox":"/sandbox"}],"ips":[{"address":"127.0.0.1/8","interface":0}]}`)}})
	h.network(t, "20-"+apitest.Failing, apitest.Failing, map[string]fakeplugin.Behaviour{"ADD": {Code: 7, Msg: "no good"}})
	require.NoError(t, os.WriteFile(h.path("conf", apitest.Broken), []byte("{"), 0o600))
	cfg := configurator.Config{
		ConfDir: h.path("conf"), PluginDirs: []string{h.path("bin")}, StateDir: h.path("state"),
		Retry: configurator.RetryPolicy{Delay: -1, Jitter: -1},
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := configurator.New(cfg)
	require.NoError(t, err)
	h.Configurator = c
	return h
}

func (h *host) path(elements ...string) string {
	return filepath.Join(append([]string{h.dir}, elements...)...)
}

func (h *host) network(t *testing.T, file, name string, on map[string]fakeplugin.Behaviour) {
	t.Helper()
	data, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "plugins": []any{map[string]any{
		"capabilities": map[string]bool{"portMappings": true}, "type": "fake", "fake": map[string]any{"log": h.path("log"), "on": on},
	}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(h.path("conf", file+".conflist"), data, 0o600))
}

// netns returns a function that creates network namespaces.
func netns(t *testing.T) func(name string) string {
	return func(name string) string {
		s, err := sandbox.Create(name)
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Destroy() })
		return s.Path()
	}
}

// serve serves the API of the host and returns a client.
func (h *host) serve(t *testing.T, change ...func(*api.Options)) *client.Client {
	t.Helper()
	pool, err := sandbox.NewPool(sandbox.PoolOptions{Size: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	o := api.Options{
		Service: func() allocnet.Service { return h }, Sandboxes: api.Pooled(pool, sandbox.DefaultDir),
		Ready: func(ctx context.Context) []api.Check { return []api.Check{{Name: "ready", Err: h.Ready(ctx)}} },
	}
	for _, f := range change {
		f(&o)
	}
	socket, _ := apitest.Serve(t, o)
	return client.New(client.Config{Socket: socket})
}

func TestContract(t *testing.T) {
	t.Run("configurator", func(t *testing.T) { apitest.Contract(t, newHost(t), netns(t)) })
	t.Run("client", func(t *testing.T) { apitest.Contract(t, newHost(t).serve(t), netns(t)) })
	inMemory := func(name string) string { return "/run/netns/" + name }
	t.Run("memory", func(t *testing.T) { apitest.Contract(t, &apitest.Memory{}, inMemory) })
	t.Run("client of memory", func(t *testing.T) {
		socket, _ := apitest.Serve(t, api.Options{})
		apitest.Contract(t, client.New(client.Config{Socket: socket}), inMemory)
	})
}

// TestScope checks the scope of a client: GC removes its namespaces and Recover its
// unfinished allocations; those of other scopes stay.
func TestScope(t *testing.T) {
	const dir = "/run/own" // of the private host
	h := newHost(t, func(c *configurator.Config) { c.NetnsDir = dir })
	c := h.serve(t)
	for id, scope := range map[string]string{"a": "mine", "b": "other", "c": "mine"} {
		_, err := c.Setup(t.Context(), configurator.Allocation{ID: id, OwnNetns: true, Scope: scope})
		require.NoError(t, err)
	}
	for _, id := range []string{"a", "b"} {
		file := h.path("state", "allocs", id+".json")
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, bytes.ReplaceAll(data, []byte(`"ready"`), []byte(`"adding"`)), 0o600))
	}
	mine := configurator.Scope{Name: "mine"}
	recovered, err := c.RecoverScope(t.Context(), mine)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, recovered.Removed)
	require.Len(t, recovered.Records, 1)
	require.Equal(t, "mine", recovered.Records[0].Scope)
	require.NotEmpty(t, recovered.Records[0].Netns)
	repaired, err := c.RepairScope(t.Context(), mine)
	require.NoError(t, err)
	require.Equal(t, &configurator.RepairReport{Healthy: []string{"c"}, Repaired: []string{}, Broken: []string{}}, repaired)
	mine.DestroyNetns = true
	for _, collect := range []func(context.Context, configurator.Scope) (*configurator.GCReport, error){c.PlanGC, c.GCScope} {
		report, err := collect(t.Context(), mine)
		require.NoError(t, err)
		require.Equal(t, []string{"c"}, report.Removed)
		require.Equal(t, []string{filepath.Join(dir, "a"), filepath.Join(dir, "c")}, report.Destroyed)
	}
	require.NoError(t, sandbox.Validate(filepath.Join(dir, "b")))
	require.NoError(t, c.Teardown(t.Context(), configurator.Allocation{ID: "b", OwnNetns: true}))
}

// TestListeners checks that a client gets the listeners of the daemon's host in the
// status or in the error.
func TestListeners(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:7500")
	require.NoError(t, err)
	defer l.Close()
	a := configurator.Allocation{ID: "a", Netns: netns(t)("a"), Ports: []portmap.Port{{Value: 7500, To: 80}}}
	refusing := newHost(t, func(c *configurator.Config) { c.Listeners = configurator.ListenerRefuse })
	_, err = refusing.serve(t).Setup(t.Context(), a)
	var listener *configurator.ListenerError
	require.ErrorIs(t, err, configurator.ErrListener)
	require.ErrorAs(t, err, &listener)
	require.Equal(t, os.Getpid(), listener.PID)
	require.Equal(t, 7500, listener.Mapping.HostPort)

	status, err := newHost(t).serve(t).Setup(t.Context(), a)
	require.NoError(t, err)
	require.Len(t, status.Warnings, 1)
}

// TestCallerThatGoesAway disconnects while a plugin hangs in ADD.
func TestCallerThatGoesAway(t *testing.T) {
	h := newHost(t)
	h.network(t, "30-hanging", "hanging", map[string]fakeplugin.Behaviour{"ADD": {Hang: true}})
	c := h.serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Setup(ctx, configurator.Allocation{ID: "hung", Netns: netns(t)("hung"), Networks: []string{"hanging"}})
		done <- err
	}()
	h.waitFor(t, "fake ADD")
	_, err := c.Setup(t.Context(), configurator.Allocation{ID: "other", Netns: netns(t)("other")})
	require.NoError(t, err, "no other request waits for it")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Eventually(t, func() bool {
		_, err := c.Get(t.Context(), "hung")
		return errors.Is(err, configurator.ErrNotFound)
	}, 20*time.Second, 5*time.Millisecond, "it is undone")
	commands, err := fakeplugin.Commands(h.path("log"))
	require.NoError(t, err)
	require.Contains(t, commands, "fake DEL")
	require.NoError(t, c.Teardown(t.Context(), configurator.Allocation{ID: "other"}))
}

func (h *host) waitFor(t *testing.T, command string) {
	t.Helper()
	require.Eventually(t, func() bool {
		commands, err := fakeplugin.Commands(h.path("log"))
		return err == nil && len(commands) > 0 && commands[len(commands)-1] == command
	}, 20*time.Second, 2*time.Millisecond)
}

// TestDeadlineReachesTheDaemon checks that the daemon knows the client's deadline and
// answers in time with the result of a hanging ADD. A quarter of the time remains for the
// roll-back, and a twentieth for the response.
func TestDeadlineReachesTheDaemon(t *testing.T) {
	h := newHost(t)
	h.network(t, "30-hanging", "hanging", map[string]fakeplugin.Behaviour{"ADD": {Hang: true}})
	c := h.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	_, err := c.Setup(ctx, configurator.Allocation{ID: "hung", Netns: netns(t)("hung"), Networks: []string{"hanging"}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `ADD allocation "hung"`, "the error comes from the daemon")
	list, listErr := c.List(t.Context())
	require.NoError(t, listErr)
	// A machine under load may have no time left for the roll-back.
	require.Equal(t, errors.Is(err, configurator.ErrIncomplete), len(list) > 0, "%v", err)
}

func TestSandboxes(t *testing.T) {
	c := newHost(t).serve(t)
	path, err := c.CreateSandbox(t.Context(), "box")
	require.NoError(t, err)
	require.NoError(t, sandbox.Validate(path))
	again, err := c.CreateSandbox(t.Context(), "box")
	require.ErrorIs(t, err, fs.ErrExist)
	require.Equal(t, path, again)
	require.ErrorIs(t, c.DestroySandboxAt(t.Context(), "/elsewhere/box"), fs.ErrNotExist)
	require.NoError(t, sandbox.Validate(path))
	for range 2 {
		require.NoError(t, c.DestroySandbox(t.Context(), "box"))
		require.NoError(t, c.DestroySandboxAt(t.Context(), path))
	}
	require.ErrorIs(t, sandbox.Validate(path), sandbox.ErrNotExist)
	for _, name := range []string{"..", ".", "a/b", "../x", "-x", "a\nb"} {
		_, err = c.CreateSandbox(t.Context(), name)
		require.ErrorIs(t, err, sandbox.ErrInvalidName, name)
		require.ErrorIs(t, c.DestroySandbox(t.Context(), name), sandbox.ErrInvalidName, name)
	}
	require.NoError(t, os.WriteFile("/run/netns/file", []byte("x"), 0o600))
	require.ErrorIs(t, c.DestroySandbox(t.Context(), "file"), sandbox.ErrNotNamespace)
}

// TestSandboxOfAnAllocationIsNotDestroyed also reaches the sandbox by another path.
func TestSandboxOfAnAllocationIsNotDestroyed(t *testing.T) {
	c := newHost(t).serve(t)
	path, err := c.CreateSandbox(t.Context(), "box")
	require.NoError(t, err)
	alias := filepath.Join(t.TempDir(), "netns")
	require.NoError(t, os.Symlink(sandbox.DefaultDir, alias))
	for _, netns := range []string{path, filepath.Join(alias, "box")} {
		a := configurator.Allocation{ID: "a", Netns: netns}
		_, err = c.Setup(t.Context(), a)
		require.NoError(t, err)
		require.ErrorIs(t, c.DestroySandbox(t.Context(), "box"), configurator.ErrInUse)
		require.NoError(t, sandbox.Validate(path))
		require.NoError(t, c.Teardown(t.Context(), a))
	}
	require.NoError(t, c.DestroySandbox(t.Context(), "box"))
	require.ErrorIs(t, sandbox.Validate(path), sandbox.ErrNotExist)
}

func TestReports(t *testing.T) {
	h := newHost(t)
	c := h.serve(t)
	_, err := c.Setup(t.Context(), configurator.Allocation{ID: "a", Netns: netns(t)("a")})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(h.path("state", "allocs", "b.json"), []byte("{"), 0o600))

	list, err := c.List(t.Context())
	require.ErrorContains(t, err, `record of allocation "b"`)
	require.Len(t, list, 1)
	report, err := c.Repair(t.Context())
	require.Error(t, err)
	require.Equal(t, &configurator.RepairReport{Healthy: []string{"a"}, Repaired: []string{}, Broken: []string{"b"}}, report)
	collected, err := c.GC(t.Context(), []string{"a", "b"})
	require.Error(t, err)
	require.Equal(t, []string{"a", "b"}, collected.Kept)

	require.NoError(t, os.Remove(h.path("bin", "fake")))
	require.ErrorIs(t, c.Ready(t.Context()), configurator.ErrPluginNotInstalled)
}

func TestNoListener(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	listener, err := net.Listen("unix", stale)
	require.NoError(t, err)
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, listener.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for _, socket := range []string{stale, filepath.Join(dir, "none"), filepath.Join(dir, "no", "dir"), filepath.Join(dir, "file", "x")} {
		c := client.New(client.Config{Socket: socket})
		_, err := c.Setup(t.Context(), configurator.Allocation{ID: "a"})
		require.ErrorIs(t, err, client.ErrUnavailable, socket)
		require.ErrorContains(t, err, socket)
		report, err := c.GC(t.Context(), nil)
		require.ErrorIs(t, err, client.ErrUnavailable)
		require.Nil(t, report)
		_, skipped := c.Networks(t.Context())
		require.ErrorIs(t, skipped[0], client.ErrUnavailable)
		for _, err := range c.Events(t.Context(), 0) {
			require.ErrorIs(t, err, client.ErrUnavailable)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = client.New(client.Config{Socket: stale}).Repair(ended)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, client.ErrUnavailable)
}

// TestDaemonThatDies closes the connection early or sends invalid answers.
func TestDaemonThatDies(t *testing.T) {
	for _, says := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{", "HTTP/1.1 500 No\r\n\r\nno", "HTTP/1.1 500 No\r\n\r\n{}"} {
		socket := filepath.Join(t.TempDir(), "s")
		listener, err := net.Listen("unix", socket)
		require.NoError(t, err)
		go func() {
			defer listener.Close()
			if c, err := listener.Accept(); err == nil {
				_, _ = c.Read(make([]byte, 1000))
				_, _ = c.Write([]byte(says))
				_ = c.Close()
			}
		}()
		_, err = client.New(client.Config{Socket: socket}).Get(t.Context(), "a")
		require.Error(t, err, says)
		require.NotErrorIs(t, err, client.ErrUnavailable)
		require.ErrorContains(t, err, socket)
	}
}

// TestStateDirErrorArrives whole at the client.
func TestStateDirErrorArrives(t *testing.T) {
	h := newHost(t)
	require.NoError(t, os.MkdirAll(h.path("state"), 0o700))
	require.NoError(t, os.Chmod(h.path("state"), 0o777))
	_, err := h.serve(t).Setup(t.Context(), configurator.Allocation{ID: "a", Netns: netns(t)("state")})
	require.ErrorIs(t, err, configurator.ErrStateDir)
	var fault *configurator.StateDirError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, h.path("state"), fault.Dir)
	require.ErrorContains(t, fault.Err, "can be written by others")
}

// TestResultsArrive: the client has the results of the plugins, as the configurator.
func TestResultsArrive(t *testing.T) {
	h := newHost(t)
	c := h.serve(t)
	status, err := c.Setup(t.Context(), configurator.Allocation{ID: "a", Netns: netns(t)("results")})
	require.NoError(t, err)
	own, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Len(t, own.Status.Results, 1)
	require.Equal(t, own.Status.Results, status.Results)
	theirs, err := c.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, own.Status.Results, theirs.Status.Results)
	records, err := c.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, own.Status.Results, records[0].Status.Results)
	require.NoError(t, c.Teardown(t.Context(), configurator.Allocation{ID: "a"}))
}

// TestHostStatus: the overview arrives as the daemon made it.
func TestHostStatus(t *testing.T) {
	want := apitest.Defaults().Status(t.Context())
	want.Networks = append(want.Networks, client.NetworkStatus{Name: "n", Addresses: map[string]client.AddressCounts{"ipv6": {Used: 1, Free: 1 << 63}}})
	want.Daemon.Started = want.Daemon.Started.UTC().Round(0)
	socket, _ := apitest.Serve(t, api.Options{Status: func(context.Context) *client.HostStatus { return want }})
	got, err := client.New(client.Config{Socket: socket}).HostStatus(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, got)

	want = &client.HostStatus{Networks: []client.NetworkStatus{}, Skipped: []string{}, Drift: []client.Drift{}, Errors: []client.RecentError{}, Problems: []string{}}
	_, err = client.New(client.Config{Socket: socket}).HostStatus(t.Context())
	require.ErrorContains(t, err, "without the daemon")
}

// TestHostTraffic: large counters arrive as the daemon read them.
func TestHostTraffic(t *testing.T) {
	want := apitest.Defaults().Traffic(t.Context())
	want.Allocations[0].Interfaces = append(want.Allocations[0].Interfaces, client.InterfaceTraffic{
		Network: "n", Interface: "eth0", Received: client.Counters{Packets: 1, Bytes: 1<<63 - 1}, Sent: client.Counters{Dropped: 7},
	})
	socket, _ := apitest.Serve(t, api.Options{Traffic: func(context.Context) *client.HostTraffic { return want }})
	got, err := client.New(client.Config{Socket: socket}).HostTraffic(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, got)

	want = &client.HostTraffic{Allocations: []client.AllocationTraffic{}, Problems: []string{}}
	_, err = client.New(client.Config{Socket: socket}).HostTraffic(t.Context())
	require.ErrorContains(t, err, "without a time")
}
