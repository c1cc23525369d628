package cni

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) {
	os.Exit(privhost.Main(m))
}

// secret is part of every configuration of a workspace. No error contains it.
const secret = "hunter2"

// workspace is a host with a bridged network "br" of real plugins, the fake
// plugins "one" and "two", and a service. When the test ends, the host must be
// as before.
type workspace struct {
	*Service
	c              *configurator.Configurator
	cfg            configurator.Config
	t              *testing.T
	dir, conf, log string
	notReady       error
	ready          error
}

func newWorkspace(t *testing.T, engine configurator.Engine) *workspace {
	t.Helper()
	privhost.Require(t)
	dir := t.TempDir()
	w := &workspace{t: t, dir: dir, conf: filepath.Join(dir, "conf"), log: filepath.Join(dir, "log")}
	require.NoError(t, os.Mkdir(w.conf, 0o755))
	require.NoError(t, fakeplugin.Install(filepath.Join(dir, "bin"), "one", "two"))
	libcni.CacheDir = filepath.Join(dir, "cache")
	w.network("br", `"1.0.0"`, w.bridge("brcni", "10.66.0.0/24"))
	before := w.snapshot()
	t.Cleanup(func() {
		for _, name := range []string{"brcni", "brcni2"} {
			if link, err := netlink.LinkByName(name); err == nil {
				require.NoError(t, netlink.LinkDel(link))
			}
		}
		require.Empty(t, hostsnap.Diff(before, w.snapshot()))
	})
	w.cfg = configurator.Config{
		ConfDir: w.conf, StateDir: filepath.Join(dir, "state"), Engine: engine, Network: "br",
		PluginDirs: []string{filepath.Join(dir, "bin"), filepath.Dir(refplugins.Path(t, "bridge"))},
		Retry:      configurator.RetryPolicy{Attempts: 1},
		Backlog:    -1, // a DEL returns when nothing is left
		Logger:     hclog.New(&hclog.LoggerOptions{Output: testWriter{t}}),
	}
	w.vendor("")
	w.Service = New(Options{
		Backend: func() allocnet.Service { return w.c },
		Ready: func(ctx context.Context, a configurator.Allocation) error {
			return errors.Join(w.ready, w.c.ReadyFor(ctx, a))
		},
		NotReady: func(configurator.Allocation) error { return w.notReady },
	})
	return w
}

// vendor creates the configurator with a vendor directory.
func (w *workspace) vendor(dir string) {
	w.t.Helper()
	w.cfg.VendorDir = dir
	c, err := configurator.New(w.cfg)
	require.NoError(w.t, err)
	w.c = c
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// snapshot returns a snapshot that includes leases and state.
func (w *workspace) snapshot() hostsnap.Snapshot {
	s, err := hostsnap.Take(hostsnap.Options{
		Dirs: []string{filepath.Join(w.dir, "leases"), filepath.Join(w.dir, "state", "allocs")}, Persistent: true,
		Ignore: func(line string) bool { return strings.HasPrefix(line, "file /run/fake") },
	})
	require.NoError(w.t, err)
	return s
}

func (w *workspace) bridge(name, subnet string) string {
	return `{"type":"bridge","bridge":"` + name + `","isGateway":true,"ipam":{"type":"host-local","dataDir":"` +
		filepath.Join(w.dir, "leases") + `","subnet":"` + subnet + `","routes":[{"dst":"0.0.0.0/0"}]}}`
}

// fake returns a fake plugin of a type, with its behaviour by command.
func (w *workspace) fake(plugin string, on map[string]fakeplugin.Behaviour) string {
	data, err := json.Marshal(map[string]any{
		"type": plugin, "password": secret, "capabilities": map[string]bool{"portMappings": true, "aliases": true},
		"fake": fakeplugin.Config{Log: w.log, On: on},
	})
	require.NoError(w.t, err)
	return string(data)
}

// loResult is the result of a plugin that claims the sandbox's loopback as its
// own, so that the interface exists.
const loResult = `{"cniVersion":"1.0.0","interfaces":[{"name":"lo","sandbox":"/sandbox"}],"ips":[{"address":"127.0.0.1/8","interface":0}]}`

var adds = map[string]fakeplugin.Behaviour{"ADD": {Result: json.RawMessage(loResult)}}

func (w *workspace) network(name, version string, plugins ...string) {
	w.t.Helper()
	text := `{"cniVersion":` + version + `,"name":"` + name + `","secret":"` + secret + `","plugins":[` + strings.Join(plugins, ",") + `]}`
	require.NoError(w.t, os.WriteFile(filepath.Join(w.conf, name+".conflist"), []byte(text), 0o600))
}

// env returns a command for a container and its first interface, with an
// existing namespace.
func (w *workspace) env(command, container string) Env {
	w.t.Helper()
	s, _, err := sandbox.Ensure(container)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = s.Destroy() })
	return Env{Command: command, ContainerID: container, Netns: s.Path(), IfName: "eth0"}
}

// ours returns a configuration of allocnet's plugin, with more keys.
func ours(version, more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"cniVersion":"` + version + `","name":"net","type":"allocnet"` + more + `}`
}

// serve runs a command that must succeed.
func (w *workspace) serve(e Env, config string) json.RawMessage {
	w.t.Helper()
	response := w.Serve(w.t.Context(), Request{Env: e, Config: json.RawMessage(config), Conflists: true, Root: true})
	require.Nil(w.t, response.Error)
	return response.Result
}

// refuse runs a command that must fail, and checks that the error contains no
// secret.
func (w *workspace) refuse(e Env, config string) *Error {
	w.t.Helper()
	response := w.Serve(w.t.Context(), Request{Env: e, Config: json.RawMessage(config), Conflists: true, Root: true})
	require.NotNil(w.t, response.Error)
	require.Nil(w.t, response.Result)
	require.NotContains(w.t, response.Error.Error(), secret)
	return response.Error
}

// records returns the IDs of all allocations.
func (w *workspace) records() []string {
	w.t.Helper()
	records, err := w.c.List(context.Background())
	require.NoError(w.t, err)
	ids := []string{}
	for _, r := range records {
		ids = append(ids, r.ID)
	}
	return ids
}

func as(e Env, command string) Env {
	e.Command = command
	return e
}
