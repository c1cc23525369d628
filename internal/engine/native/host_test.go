package native_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/nftables"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) {
	os.Exit(privhost.Main(m))
}

type object = map[string]any

// testHost is a host with the native engine and with fake plugins that log
// their calls.
type testHost struct {
	*native.Engine
	t        testing.TB
	dir, log string
	netns    string
}

// fakes are the types of the plugins that run as binaries.
var fakes = []string{"one", "two", "three"}

func newTestHost(t testing.TB) *testHost {
	t.Helper()
	privhost.Require(t)
	dir := t.TempDir()
	require.NoError(t, fakeplugin.Install(filepath.Join(dir, "bin"), fakes...))
	s, err := sandbox.Create("web")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Destroy())
		c, err := nftables.New()
		require.NoError(t, err)
		c.FlushRuleset()
		require.NoError(t, c.Flush())
	})
	return &testHost{
		Engine: native.New(hclog.NewNullLogger(), filepath.Join(dir, "state")),
		t:      t, dir: dir, log: filepath.Join(dir, "log"), netns: s.Path(),
	}
}

// result is the result of an ADD in version 1.0.0.
const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/ns"}],"ips":[{"address":"10.1.2.3/24","interface":0}],"dns":{}}`

// fake returns a plugin that runs as a binary. Its ADD succeeds. more changes
// its behaviour.
func (h *testHost) fake(name string, more ...map[string]fakeplugin.Behaviour) object {
	on := map[string]fakeplugin.Behaviour{"ADD": {Result: json.RawMessage(result)}}
	for _, m := range more {
		for command, behaviour := range m {
			on[command] = behaviour
		}
	}
	return object{"type": name, "fake": fakeplugin.Config{Log: h.log, On: on}}
}

// fails returns a behaviour that fails one command.
func fails(command string, code uint) map[string]fakeplugin.Behaviour {
	return map[string]fakeplugin.Behaviour{command: {Code: code, Msg: "as wanted"}}
}

// with returns an object with an additional key.
func with(o object, key string, value any) object {
	more := object{key: value}
	for k, v := range o {
		if k != key {
			more[k] = v
		}
	}
	return more
}

// network returns a parsed conflist.
func network(t testing.TB, name, version string, keys object, plugins ...object) *conflist.Network {
	t.Helper()
	conf := object{"cniVersion": version, "name": name, "plugins": plugins}
	for k, v := range keys {
		conf[k] = v
	}
	data, err := json.Marshal(conf)
	require.NoError(t, err)
	n, err := conflist.Parse(data)
	require.NoError(t, err)
	return n
}

// request returns a request for the networks.
func (h *testHost) request(networks ...*conflist.Network) *engine.Request {
	r := &engine.Request{
		ID: "web", Netns: h.netns, Args: [][2]string{{"IgnoreUnknown", "true"}, {"B", "2"}, {"A", "1"}},
		Tag: engine.ProcessTag("test"), PluginDirs: h.dirs(), InterfacePrefix: "eth",
	}
	for _, n := range networks {
		r.Attachments = append(r.Attachments, engine.Attachment{Network: n})
	}
	return r
}

func (h *testHost) dirs() []string { return []string{filepath.Join(h.dir, "bin")} }

// add runs ADD, which must succeed, and stores the results in the request.
func (h *testHost) add(r *engine.Request) {
	h.t.Helper()
	results, err := h.Add(h.t.Context(), r)
	require.NoError(h.t, err)
	require.Len(h.t, results, len(r.Attachments))
	for i := range results {
		r.Attachments[i].Result = results[i]
	}
}

// commands returns the calls of the fake plugins.
func (h *testHost) commands() []string {
	h.t.Helper()
	commands, err := fakeplugin.Commands(h.log)
	require.NoError(h.t, err)
	return commands
}

// stdin returns the configuration of a plugin's last call with a command.
func (h *testHost) stdin(plugin, command string) object {
	h.t.Helper()
	calls, err := fakeplugin.Calls(h.log)
	require.NoError(h.t, err)
	var conf object
	for _, c := range calls {
		if c.Type == plugin && c.Command == command {
			conf = nil
			require.NoError(h.t, json.Unmarshal(c.Stdin, &conf))
		}
	}
	require.NotNil(h.t, conf, "%s %s was not called: %v", plugin, command, h.commands())
	return conf
}
