package native_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

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
	fakeplugin.Main()
	os.Exit(privhost.Main(m))
}

type object = map[string]any

// world is a host with the native engine, and with fake plugins that log how
// they are called.
type world struct {
	*native.Engine
	t        *testing.T
	dir, log string
	netns    string
}

// fakes are the types of the plugins that run as binaries.
var fakes = []string{"one", "two", "three"}

func newWorld(t *testing.T) *world {
	t.Helper()
	privhost.Require(t)
	dir := t.TempDir()
	require.NoError(t, fakeplugin.Install(filepath.Join(dir, "bin"), fakes...))
	s, err := sandbox.Create("web")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	return &world{
		Engine: native.New(hclog.NewNullLogger(), filepath.Join(dir, "state")),
		t:      t, dir: dir, log: filepath.Join(dir, "log"), netns: s.Path(),
	}
}

// result is that of an ADD, in the form of version 1.0.0.
const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/ns"}],"ips":[{"address":"10.1.2.3/24","interface":0}],"dns":{}}`

// fake is a plugin that runs as a binary. Its ADD succeeds; more changes what it
// does.
func (w *world) fake(name string, more ...map[string]fakeplugin.Behaviour) object {
	on := map[string]fakeplugin.Behaviour{"ADD": {Result: json.RawMessage(result)}}
	for _, m := range more {
		for command, behaviour := range m {
			on[command] = behaviour
		}
	}
	return object{"type": name, "fake": fakeplugin.Config{Log: w.log, On: on}}
}

// fails is a behaviour of one command.
func fails(command string, code uint) map[string]fakeplugin.Behaviour {
	return map[string]fakeplugin.Behaviour{command: {Code: code, Msg: "as wanted"}}
}

// with is an object with one more key.
func with(o object, key string, value any) object {
	more := object{key: value}
	for k, v := range o {
		if k != key {
			more[k] = v
		}
	}
	return more
}

// network is a parsed conflist.
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

// request asks for the networks.
func (w *world) request(networks ...*conflist.Network) *engine.Request {
	r := &engine.Request{
		ID: "web", Netns: w.netns, Args: [][2]string{{"IgnoreUnknown", "true"}, {"B", "2"}, {"A", "1"}},
		Tag: engine.ProcessTag("test"), PluginDirs: w.dirs(), InterfacePrefix: "eth",
	}
	for _, n := range networks {
		r.Attachments = append(r.Attachments, engine.Attachment{Network: n})
	}
	return r
}

func (w *world) dirs() []string { return []string{filepath.Join(w.dir, "bin")} }

// add is an ADD that has to succeed; its results go into the request.
func (w *world) add(r *engine.Request) {
	w.t.Helper()
	results, err := w.Add(w.t.Context(), r)
	require.NoError(w.t, err)
	require.Len(w.t, results, len(r.Attachments))
	for i := range results {
		r.Attachments[i].Result = results[i]
	}
}

// commands are what the fake plugins were asked.
func (w *world) commands() []string {
	w.t.Helper()
	commands, err := fakeplugin.Commands(w.log)
	require.NoError(w.t, err)
	return commands
}

// stdin is the configuration of the last call of a plugin with a command.
func (w *world) stdin(plugin, command string) object {
	w.t.Helper()
	calls, err := fakeplugin.Calls(w.log)
	require.NoError(w.t, err)
	var conf object
	for _, c := range calls {
		if c.Type == plugin && c.Command == command {
			conf = nil
			require.NoError(w.t, json.Unmarshal(c.Stdin, &conf))
		}
	}
	require.NotNil(w.t, conf, "%s %s was not called: %v", plugin, command, w.commands())
	return conf
}
