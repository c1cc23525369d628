package dropin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/wire"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) {
	os.Exit(privhost.Main(m))
}

func newService(t *testing.T) *Service {
	t.Helper()
	privhost.Require(t)
	s := New(hclog.NewNullLogger())
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// namespace creates a network namespace and returns its path.
func namespace(t *testing.T, name string) string {
	t.Helper()
	s, err := sandbox.Create(name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Destroy() })
	return s.Path()
}

// call returns a call as the shim sends it.
func call(plugin, command, netns, conf string) Call {
	return Call{
		Plugin: plugin, Host: HostID(), NetnsID: FileID(netns), Config: []byte(conf),
		Env: cni.Env{Command: command, ContainerID: "c1", Netns: netns, IfName: "eth0", Path: "/opt/cni/bin"},
	}
}

func bridged(dataDir string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","bridge":"br7","isGateway":true,"ipam":{"type":"host-local","subnet":"10.7.0.0/24","dataDir":%q}}`, dataDir)
}

func snapshot(t *testing.T, dirs ...string) hostsnap.Snapshot {
	t.Helper()
	taken, err := hostsnap.Take(hostsnap.Options{Dirs: dirs, Persistent: true})
	require.NoError(t, err)
	return taken
}

// TestServe runs the life of an attachment; also a second time, with the host's state
// of the first one.
func TestServe(t *testing.T) {
	s, dataDir := newService(t), t.TempDir()
	before := snapshot(t, dataDir)
	for i := range 2 {
		netns := namespace(t, fmt.Sprintf("life%d", i))
		a, err := s.Serve(t.Context(), call("bridge", cni.Add, netns, bridged(dataDir)))
		require.NoError(t, err)
		require.Zero(t, a.Exit, string(a.Stdout))
		require.Empty(t, a.Stderr)
		require.FileExists(t, filepath.Join(dataDir, "n", fmt.Sprintf("10.7.0.%d", i+2)))
		var result struct {
			Interfaces []struct{ Name, Sandbox string }
		}
		require.NoError(t, json.Unmarshal(a.Stdout, &result))
		require.Equal(t, netns, result.Interfaces[2].Sandbox)
		conf := strings.Replace(bridged(dataDir), "{", `{"prevResult":`+string(a.Stdout)+",", 1)
		for _, command := range []string{cni.Check, cni.Status, cni.Del, cni.Del, cni.GC} {
			a, err := s.Serve(t.Context(), call("bridge", command, netns, conf))
			require.NoError(t, err, command)
			require.Equal(t, Answer{Stderr: []string{}}, *a, command)
		}
		require.NoError(t, sandbox.Destroy(netns))
	}
	gone := call("bridge", cni.Del, "/run/netns/gone", bridged(dataDir))
	a, err := s.Serve(t.Context(), gone)
	require.NoError(t, err)
	require.Equal(t, Answer{Stderr: []string{}}, *a)
	require.Empty(t, hostsnap.Diff(before, snapshot(t, dataDir)))
}

// TestNotServed has calls that the program allocnet-plugins has to serve. They change
// nothing.
func TestNotServed(t *testing.T) {
	s, dataDir, netns, other := newService(t), t.TempDir(), namespace(t, "web"), namespace(t, "other")
	binaries := t.TempDir()
	require.NoError(t, fakeplugin.Install(binaries, "leaser"))
	conf := bridged(dataDir)
	with := func(key, value string) string {
		var keys map[string]any
		require.NoError(t, json.Unmarshal([]byte(conf), &keys))
		keys[key] = json.RawMessage(value)
		text, err := json.Marshal(keys)
		require.NoError(t, err)
		return string(text)
	}
	before := snapshot(t, dataDir)
	for name, change := range map[string]func(*Call){
		"another host":         func(c *Call) { c.Host = FileID(other) + strings.TrimLeft(c.Host, "0123456789:") },
		"no host":              func(c *Call) { c.Host = "" },
		"no such plugin":       func(c *Call) { c.Plugin = "dhcp" },
		"no such command":      func(c *Call) { c.Env.Command = "JUMP" },
		"VERSION":              func(c *Call) { c.Env.Command = cni.Version },
		"no path":              func(c *Call) { c.Env.Path = "" },
		"no container":         func(c *Call) { c.Env.ContainerID = "" },
		"bad container":        func(c *Call) { c.Env.ContainerID = "../x" },
		"bad interface":        func(c *Call) { c.Env.IfName = "a/b" },
		"no namespace":         func(c *Call) { c.Env.Netns, c.NetnsID = "", "" },
		"namespace is gone":    func(c *Call) { c.Env.Netns, c.NetnsID = "/run/netns/gone", "" },
		"another namespace":    func(c *Call) { c.NetnsID = FileID(other) },
		"unseen namespace":     func(c *Call) { c.NetnsID = "" },
		"the host's namespace": func(c *Call) { c.Env.Netns, c.NetnsID = "/proc/self/ns/net", FileID("/proc/self/ns/net") },
		"its DEL": func(c *Call) {
			c.Env.Command, c.Env.Netns, c.NetnsID = cni.Del, "/proc/self/ns/net", FileID("/proc/self/ns/net")
		},
		"relative namespace":    func(c *Call) { c.Env.Netns = "." + c.Env.Netns },
		"DEL, seen namespace":   func(c *Call) { c.Env.Command, c.Env.Netns = cni.Del, "/run/netns/gone" },
		"DEL, unseen namespace": func(c *Call) { c.Env.Command, c.NetnsID = cni.Del, "" },
		"bad JSON":              func(c *Call) { c.Config = []byte("{") },
		"no name":               func(c *Call) { c.Config = []byte(with("name", `""`)) },
		"bad name":              func(c *Call) { c.Config = []byte(with("name", `"a/b"`)) },
		"no version":            func(c *Call) { c.Config = []byte(with("cniVersion", `""`)) },
		"later version":         func(c *Call) { c.Config = []byte(with("cniVersion", `"2.0.0"`)) },
		"too old for CHECK":     func(c *Call) { c.Env.Command, c.Config = cni.Check, []byte(with("cniVersion", `"0.3.1"`)) },
		"too old for GC":        func(c *Call) { c.Env.Command, c.Config = cni.GC, []byte(with("cniVersion", `"1.0.0"`)) },
		"too old for bandwidth": func(c *Call) { c.Plugin, c.Config = "bandwidth", []byte(with("cniVersion", `"0.2.0"`)) },
		"relative leases": func(c *Call) {
			c.Config = []byte(with("ipam", `{"type":"host-local","subnet":"10.7.0.0/24","dataDir":"leases"}`))
		},
		"relative resolv.conf": func(c *Call) {
			c.Plugin, c.Config = "host-local", []byte(with("ipam", `{"type":"host-local","resolvConf":"x"}`))
		},
		"relative data":   func(c *Call) { c.Plugin, c.Config = "tuning", []byte(with("dataDir", `"data"`)) },
		"binary for IPAM": func(c *Call) { c.Env.Path, c.Config = binaries, []byte(with("ipam", `{"type":"leaser"}`)) },
		"its own DEL": func(c *Call) {
			c.Env.Command, c.Env.Path, c.Config = cni.Del, binaries, []byte(with("ipam", `{"type":"leaser"}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := call("bridge", cni.Add, netns, conf)
			change(&c)
			_, err := s.Serve(t.Context(), c)
			require.ErrorIs(t, err, wire.ErrNotServed)
			require.Empty(t, hostsnap.Diff(before, snapshot(t, dataDir)))
		})
	}
}

// TestUnknownValue: a value that only the reference plugin understands needs its binary,
// also where an error of the binary would be ignored.
func TestUnknownValue(t *testing.T) {
	s, f, netns := newService(t), &fake{}, namespace(t, "unknown")
	s.plugins = map[string]sdk.Factory{"fake": func([]byte) (sdk.Plugin, error) {
		return f, &sdk.UnknownKeyError{Key: "novel", Value: true}
	}}
	for _, command := range []string{cni.Add, cni.Check, cni.Del} {
		_, err := s.Serve(t.Context(), call("fake", command, netns, `{"cniVersion":"1.1.0","name":"n"}`))
		require.ErrorIs(t, err, wire.ErrNotServed, command)
	}
}

// TestWarnings: messages for stderr are those of a plugin binary.
func TestWarnings(t *testing.T) {
	s, netns := newService(t), namespace(t, "warned")
	conf := strings.Replace(bridged(t.TempDir()), "{", `{"novel":1,`, 1)
	for _, command := range []string{cni.Add, cni.Del} {
		a, err := s.Serve(t.Context(), call("bridge", command, netns, conf))
		require.NoError(t, err)
		require.Zero(t, a.Exit, string(a.Stdout))
		require.Len(t, a.Stderr, 1)
		require.Regexp(t, `^\[WARN\] bridge: unknown key .*novel`, a.Stderr[0])
	}
}

// fake is a plugin for tests.
type fake struct {
	sdk.Plugin
	add  func(context.Context) error
	dels int
}

func (f *fake) Add(ctx context.Context, _ *sdk.CmdArgs) (*types100.Result, error) {
	return &types100.Result{CNIVersion: "1.1.0"}, f.add(ctx)
}

func (f *fake) Del(ctx context.Context, _ *sdk.CmdArgs) error {
	f.dels++
	return ctx.Err()
}

// serveFake runs ADD of a fake plugin.
func serveFake(t *testing.T, ctx context.Context, f *fake) (*Answer, error) {
	s := newService(t)
	s.plugins = map[string]sdk.Factory{"fake": func([]byte) (sdk.Plugin, error) { return f, nil }}
	netns, err := sandbox.Create("fake")
	require.NoError(t, err)
	defer func() { require.NoError(t, netns.Destroy()) }()
	return s.Serve(ctx, call("fake", cni.Add, netns.Path(), `{"cniVersion":"1.1.0","name":"n"}`))
}

// TestErrors: the codes are those of a plugin binary.
func TestErrors(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"text":           {errors.New("<m>"), `{"code":999,"msg":"<m>"}`},
		"code":           {types.NewError(11, "m", "d"), `{"code":11,"msg":"m","details":"d"}`},
		"reference code": {types.NewError(7, "m", "d"), `{"code":999,"msg":"m","details":"d"}`},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := serveFake(t, t.Context(), &fake{add: func(context.Context) error { return test.err }})
			require.NoError(t, err)
			require.JSONEq(t, test.want, string(a.Stdout))
			require.Equal(t, 1, a.Exit)
		})
	}
	for _, cause := range []error{unix.EPERM, unix.EACCES, unix.EROFS} {
		_, err := serveFake(t, t.Context(), &fake{add: func(context.Context) error { return cause }})
		require.ErrorIs(t, err, wire.ErrNotServed, "the program may have the permission")
	}
	a, err := serveFake(t, t.Context(), &fake{add: func(context.Context) error { panic("as wanted") }})
	require.NoError(t, err)
	require.Contains(t, string(a.Stdout), "ADD panicked")
	require.Contains(t, a.Stderr[0], "[ERROR] fake: a native plugin panicked")
}

// TestCallerGone: an ADD that succeeds after its caller has gone is undone.
func TestCallerGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{add: func(context.Context) error { cancel(); return nil }}
	a, err := serveFake(t, ctx, f)
	require.NoError(t, err)
	require.Equal(t, 1, a.Exit)
	require.Contains(t, string(a.Stdout), `"code": 11`)
	require.Equal(t, 1, f.dels)

	f = &fake{add: func(ctx context.Context) error { return ctx.Err() }}
	a, err = serveFake(t, ctx, f)
	require.NoError(t, err)
	require.Contains(t, string(a.Stdout), `"code": 11`)
	require.Zero(t, f.dels, "a failed ADD has undone its own changes")
}
