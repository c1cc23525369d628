package cniexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "allocnet-cache-")
	if err != nil {
		panic(err)
	}
	libcni.CacheDir = dir // the shared cache, as far as these tests go
	code := privhost.Main(m)
	os.RemoveAll(dir)
	os.Exit(code)
}

const goodResult = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/ns"}],"ips":[{"address":"10.1.2.3/24","interface":0}]}`

// environment is a directory of fake plugins and the log of their calls.
type environment struct {
	t        *testing.T
	dir, log string
}

func newEnvironment(t *testing.T, types ...string) *environment {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, fakeplugin.Install(filepath.Join(dir, "bin"), types...))
	return &environment{t: t, dir: dir, log: filepath.Join(dir, "log")}
}

// plugin is one plugin of a conflist with its behaviour.
type plugin struct {
	name string
	on   map[string]fakeplugin.Behaviour
	caps map[string]bool
}

func (e *environment) attachment(name, version string, plugins ...plugin) engine.Attachment {
	e.t.Helper()
	var list []map[string]any
	for _, p := range plugins {
		list = append(list, map[string]any{
			"type": p.name, "capabilities": p.caps, "fake": fakeplugin.Config{Log: e.log, On: p.on},
		})
	}
	data, err := json.Marshal(map[string]any{"cniVersion": version, "name": name, "plugins": list})
	require.NoError(e.t, err)
	parsed, err := libcni.ConfListFromBytes(data)
	require.NoError(e.t, err)
	return engine.Attachment{Network: &conflist.Network{Name: name, List: parsed, Bytes: data}}
}

func (e *environment) request(id string, attachments ...engine.Attachment) *engine.Request {
	return &engine.Request{
		ID: id, Netns: "/ns", Args: [][2]string{{"IgnoreUnknown", "true"}, {"B", "2"}, {"A", "1"}},
		Tag: engine.ProcessTag("test"), PluginDirs: []string{filepath.Join(e.dir, "bin")}, InterfacePrefix: "eth", Attachments: attachments,
	}
}

func (e *environment) commands() []string {
	e.t.Helper()
	c, err := fakeplugin.Commands(e.log)
	require.NoError(e.t, err)
	return c
}

func (e *environment) lastStdin() map[string]json.RawMessage {
	e.t.Helper()
	calls, err := fakeplugin.Calls(e.log)
	require.NoError(e.t, err)
	require.NotEmpty(e.t, calls)
	var conf map[string]json.RawMessage
	require.NoError(e.t, json.Unmarshal(calls[len(calls)-1].Stdin, &conf))
	return conf
}

func requireEmptyCache(t *testing.T) {
	t.Helper()
	entries, _ := os.ReadDir(filepath.Join(libcni.CacheDir, "results"))
	require.Empty(t, entries, "libcni's shared cache holds nothing between operations")
}

func on(command string, b fakeplugin.Behaviour) map[string]fakeplugin.Behaviour {
	return map[string]fakeplugin.Behaviour{command: b}
}

var good = on("ADD", fakeplugin.Behaviour{Result: json.RawMessage(goodResult)})

// add runs ADD, which must succeed, and keeps the results in the request.
func add(t *testing.T, r *engine.Request) {
	t.Helper()
	results, err := Engine{}.Add(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, results, len(r.Attachments))
	for i := range results {
		r.Attachments[i].Result = results[i]
	}
}

func TestLifeOfAnAllocation(t *testing.T) {
	e := newEnvironment(t, "main", "meta")
	meta := plugin{name: "meta", caps: map[string]bool{"portMappings": true}}
	r := e.request("life",
		e.attachment("first", "1.0.0", plugin{name: "main", on: good}, meta),
		e.attachment("second", "0.4.0", plugin{name: "main", on: on("ADD", fakeplugin.Behaviour{Result: json.RawMessage(strings.Replace(goodResult, "1.0.0", "0.4.0", 1))})}))
	r.Capabilities = map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":1,"containerPort":2,"protocol":"tcp"}]`), "mac": json.RawMessage(`"x"`)}

	add(t, r)
	require.Equal(t, "10.1.2.3/24", r.Attachments[1].Result.IPs[0].Address.String())
	requireEmptyCache(t)
	calls, err := fakeplugin.Calls(e.log)
	require.NoError(t, err)
	require.Equal(t, "IgnoreUnknown=true;B=2;A=1", calls[0].Args, "CNI_ARGS keep their order")
	require.Equal(t, []string{"eth0", "eth0", "eth1"}, []string{calls[0].IfName, calls[1].IfName, calls[2].IfName})
	var conf map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(calls[1].Stdin, &conf))
	require.JSONEq(t, `{"portMappings":[{"hostPort":1,"containerPort":2,"protocol":"tcp"}]}`, string(conf["runtimeConfig"]),
		"what is both declared and given")

	require.NoError(t, Engine{}.Check(t.Context(), r))
	require.Contains(t, string(e.lastStdin()["prevResult"]), "10.1.2.3")
	requireEmptyCache(t)

	require.NoError(t, Engine{}.Del(t.Context(), r))
	require.Contains(t, string(e.lastStdin()["prevResult"]), "10.1.2.3")
	requireEmptyCache(t)
	require.Equal(t, []string{"main ADD", "meta ADD", "main ADD", "main CHECK", "meta CHECK", "main CHECK", "meta DEL", "main DEL", "main DEL"}, e.commands())
}

// TestHungPlugin ends at the deadline with all that it started. What a plugin leaves
// behind that ended by itself is not waited for, though it holds its stdout.
func TestHungPlugin(t *testing.T) {
	for name, b := range map[string]fakeplugin.Behaviour{
		"plugin":                        {Hang: true},
		"plugin and grandchild":         {Hang: true, Grandchild: true},
		"grandchild of an ended plugin": {Grandchild: true},
		"grandchild of a failed plugin": {Grandchild: true, Exit: 1},
	} {
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			t.Run(name+" "+command, func(t *testing.T) {
				e := newEnvironment(t, "main")
				r := e.request("hung", e.attachment("net", "1.0.0", plugin{name: "main", on: map[string]fakeplugin.Behaviour{"ADD": good["ADD"]}}))
				if command != "ADD" {
					add(t, r)
				}
				b.Result = json.RawMessage(goodResult)
				known := r.Attachments[0].Result
				r.Attachments[0] = e.attachment("net", "1.0.0", plugin{name: "main", on: on(command, b)})
				r.Attachments[0].Result = known
				limit := time.Minute
				if b.Hang {
					limit = 500 * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				errc := make(chan error, 1)
				go func() { errc <- run(ctx, r, command) }()
				select {
				case err := <-errc:
					require.NotErrorIs(t, err, ErrAbandoned)
					require.Equal(t, b.Hang, errors.Is(err, context.DeadlineExceeded), "%v", err)
					require.Equal(t, b.Hang || b.Exit != 0, err != nil, "%v", err)
					if !b.Hang {
						require.NoError(t, pluginexec.KillOrphans(r.Work()))
					}
				case <-time.After(10 * time.Second):
					t.Fatal("operation is held past its deadline")
				}
				requireNobodyWorksOn(t, "hung")
				requireEmptyCache(t)
			})
		}
	}
}

func run(ctx context.Context, r *engine.Request, command string) error {
	switch command {
	case "ADD":
		_, err := Engine{}.Add(ctx, r)
		return err
	case "CHECK":
		return Engine{}.Check(ctx, r)
	}
	return Engine{}.Del(ctx, r)
}

func requireNobodyWorksOn(t *testing.T, id string) {
	t.Helper()
	require.Eventually(t, func() bool {
		procs, _ := filepath.Glob("/proc/[0-9]*")
		for _, proc := range procs {
			var pid int
			fmt.Sscan(filepath.Base(proc), &pid)
			if of(id).Work().On(pid) && !zombie(pid) {
				return false
			}
		}
		return true
	}, 5*time.Second, 5*time.Millisecond, "every process of the plugin is dead")
}

// of is as much of a request as tells its processes.
func of(id string) *engine.Request { return &engine.Request{ID: id, Tag: engine.ProcessTag("test")} }

func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// TestHungPluginBlocksNobody: each operation has an instance of its own.
func TestHungPluginBlocksNobody(t *testing.T) {
	e := newEnvironment(t, "main")
	hung := e.request("hung2", e.attachment("net", "1.0.0", plugin{name: "main", on: on("ADD", fakeplugin.Behaviour{Hang: true, Grandchild: true})}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := Engine{}.Add(ctx, hung); done <- err }()
	require.Eventually(t, func() bool { return len(e.commands()) == 1 }, 10*time.Second, time.Millisecond)

	free := e.request("free", e.attachment("net", "1.0.0", plugin{name: "main", on: good}))
	add(t, free)
	require.NoError(t, Engine{}.Del(t.Context(), free))
	select {
	case err := <-done:
		t.Fatal("the hung one ended meanwhile", err)
	default:
	}
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	requireNobodyWorksOn(t, "hung2")
}

// TestNotFoundIsNoSuccess: go-cni takes any error with these words for success.
func TestNotFoundIsNoSuccess(t *testing.T) {
	e := newEnvironment(t, "first", "last")
	r := e.request("notfound", e.attachment("net", "1.0.0",
		plugin{name: "first", on: good},
		plugin{name: "last", on: on("DEL", fakeplugin.Behaviour{Code: 100, Msg: `exec: "iptables": executable file not found in $PATH`})}))
	add(t, r)
	err := Engine{}.Del(t.Context(), r)
	var cniErr *types.Error
	require.ErrorAs(t, err, &cniErr)
	require.EqualValues(t, 100, cniErr.Code)
	require.Contains(t, e.commands(), "first DEL", "the plugins behind the failed one run all the same")
	requireEmptyCache(t)
}

// TestDelGoesOn: go-cni's Remove stops at the first failing network.
func TestDelGoesOn(t *testing.T) {
	e := newEnvironment(t, "a", "b")
	failing := on("DEL", fakeplugin.Behaviour{Code: 101, Msg: "no"})
	failing["ADD"] = good["ADD"]
	r := e.request("goeson",
		e.attachment("one", "1.0.0", plugin{name: "a", on: failing}),
		e.attachment("two", "1.0.0", plugin{name: "b", on: good}))
	add(t, r)
	err := Engine{}.Del(t.Context(), r)
	require.ErrorContains(t, err, `network "one"`)
	require.NotContains(t, err.Error(), `network "two"`)
	require.Contains(t, e.commands(), "b DEL")
	requireEmptyCache(t)
}

// TestFailedAddKeepsEarlierResults: go-cni throws them away.
func TestFailedAddKeepsEarlierResults(t *testing.T) {
	e := newEnvironment(t, "a", "b")
	r := e.request("partial",
		e.attachment("one", "1.0.0", plugin{name: "a", on: good}),
		e.attachment("two", "1.0.0", plugin{name: "b", on: on("ADD", fakeplugin.Behaviour{Code: 11, Msg: "later"})}))
	results, err := Engine{}.Add(t.Context(), r)
	var cniErr *types.Error
	require.ErrorAs(t, err, &cniErr)
	require.EqualValues(t, 11, cniErr.Code)
	require.Len(t, results, 2)
	require.NotNil(t, results[0])
	require.Nil(t, results[1])
	requireEmptyCache(t)

	r.Attachments[0].Result = results[0]
	require.NoError(t, Engine{}.Del(t.Context(), r))
	require.Equal(t, []string{"a ADD", "b ADD", "b DEL", "a DEL"}, e.commands(), "last network first")
	require.Contains(t, string(e.lastStdin()["prevResult"]), "10.1.2.3")
}

func TestBadResults(t *testing.T) {
	for name, c := range map[string]struct {
		behaviour fakeplugin.Behaviour
		want      string
	}{
		"index equals the number of interfaces": { // go-cni panics
			fakeplugin.Behaviour{Result: json.RawMessage(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.1.2.3/24","interface":1}]}`)}, "invalid CNI result"},
		"index out of range": {
			fakeplugin.Behaviour{Result: json.RawMessage(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24","interface":7}]}`)}, "invalid CNI result"},
		"garbage":           {fakeplugin.Behaviour{Stdout: "\x00garbage"}, "invalid character"},
		"10 MB":             {fakeplugin.Behaviour{Stdout: "0123456789", Repeat: 1 << 20}, ""},
		"10 MB of an error": {fakeplugin.Behaviour{Stdout: "0123456789", Repeat: 1 << 20, Exit: 1}, ""},
		"exit without JSON": {fakeplugin.Behaviour{Exit: 3}, "exit status 3"},
		"exit with stderr":  {fakeplugin.Behaviour{Exit: 3, Stderr: "out of cheese"}, "out of cheese"},
		"null":              {fakeplugin.Behaviour{Stdout: "null"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnvironment(t, "main")
			r := e.request("bad", e.attachment("net", "1.0.0", plugin{name: "main", on: on("ADD", c.behaviour)}))
			results, err := Engine{}.Add(t.Context(), r)
			requireEmptyCache(t)
			if name == "null" { // an empty result is for the configurator to refuse
				require.NoError(t, err)
				require.Len(t, results, 1)
				return
			}
			require.ErrorContains(t, err, c.want)
			require.Less(t, len(err.Error()), 8<<10, "the error does not repeat all that the plugin wrote")
		})
	}
}

func TestResultsOfTheSameInterfaceName(t *testing.T) {
	e := newEnvironment(t, "main")
	result := `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/ns"},{"name":"eth0"}],"ips":[{"address":"10.1.2.3/24","interface":0}]}`
	r := e.request("same", e.attachment("net", "1.0.0", plugin{name: "main", on: on("ADD", fakeplugin.Behaviour{Result: json.RawMessage(result)})}))
	add(t, r)
	got := r.Attachments[0].Result
	require.Len(t, got.Interfaces, 2, "go-cni's map would have lost one")
	require.Equal(t, "/ns", got.Interfaces[0].Sandbox)
}

func TestConflistWithoutPlugins(t *testing.T) {
	r := &engine.Request{ID: "none", InterfacePrefix: "eth", Attachments: []engine.Attachment{
		{Network: &conflist.Network{Name: "net", List: &libcni.NetworkConfigList{Name: "net"}, Bytes: []byte(`{"cniVersion":"1.0.0","name":"net"}`)}}}}
	_, err := Engine{}.Add(t.Context(), r)
	require.ErrorContains(t, err, "no plugins")
}

// TestPluginDirsOfEveryNetwork: go-cni ignores a directory that is set after a
// conflist.
func TestPluginDirsOfEveryNetwork(t *testing.T) {
	e := newEnvironment(t, "only-here")
	r := e.request("dirs", e.attachment("net", "1.0.0", plugin{name: "only-here", on: good}))
	add(t, r)
	require.Equal(t, []string{"only-here ADD"}, e.commands())
	calls, err := fakeplugin.Calls(e.log)
	require.NoError(t, err)
	require.Equal(t, "eth0", calls[0].IfName)
}

// TestInvalidOutput: output that is no result has a typed error, as with the native engine.
func TestInvalidOutput(t *testing.T) {
	for name, stdout := range map[string]string{
		"garbage": "this is { not json", "nothing": "\n", "a list": "[]", "another version": `{"cniVersion":"9.9.9"}`,
		"no address": `{"cniVersion":"1.0.0","ips":[{"address":"999.1.1.1/24"}]}`, "no interface": `{"cniVersion":"1.0.0","ips":[{"address":"10.1.1.1/24","interface":7}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnvironment(t, "main", "other")
			r := e.request("invalid", e.attachment("net", "1.0.0", plugin{name: "other", on: good}, plugin{name: "main", on: on("ADD", fakeplugin.Behaviour{Stdout: stdout, Repeat: 1})}))
			_, err := Engine{}.Add(t.Context(), r)
			require.ErrorIs(t, err, engine.ErrInvalidResult)
			var at *engine.AddError
			require.ErrorAs(t, err, &at)
			require.Equal(t, engine.Place{Plugin: 1}, at.Place)
			require.False(t, at.Unstarted)
			require.NoError(t, Engine{}.Del(t.Context(), r))
		})
	}
	for name, b := range map[string]fakeplugin.Behaviour{"a failure": {Code: 111, Msg: "no"}, "a crash": {Exit: 3}} {
		e := newEnvironment(t, "main")
		_, err := Engine{}.Add(t.Context(), e.request("failed", e.attachment("net", "1.0.0", plugin{name: "main", on: on("ADD", b)})))
		require.Error(t, err, name)
		require.NotErrorIs(t, err, engine.ErrInvalidResult, name)
	}
}

func TestCheckUnsupported(t *testing.T) {
	e := newEnvironment(t, "main")
	r := e.request("old", e.attachment("net", "0.3.1", plugin{name: "main", on: on("ADD", fakeplugin.Behaviour{Result: json.RawMessage(`{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.2.3/24"}]}`)})}))
	add(t, r)
	require.ErrorIs(t, Engine{}.Check(t.Context(), r), engine.ErrCheckUnsupported)
	requireEmptyCache(t)
	require.NoError(t, Engine{}.Del(t.Context(), r))
	require.NotContains(t, e.lastStdin(), "prevResult", "version 0.3.1 has none for DEL")
}

// TestCheckGoesOn: a network without CHECK does not hide those after it.
func TestCheckGoesOn(t *testing.T) {
	for _, finding := range []string{"", "as wanted"} {
		e := newEnvironment(t, "main", "other")
		behaviours := map[string]fakeplugin.Behaviour{"ADD": good["ADD"], "CHECK": {Msg: finding}}
		r := e.request("mixed", e.attachment("old", "0.3.1", plugin{name: "main", on: good}),
			e.attachment("new", "1.0.0", plugin{name: "other", on: behaviours}), e.attachment("older", "0.2.0", plugin{name: "main", on: good}))
		add(t, r)
		err := Engine{}.Check(t.Context(), r)
		require.Equal(t, "other CHECK", e.commands()[3])
		if finding == "" {
			require.ErrorIs(t, err, engine.ErrCheckUnsupported)
			require.ErrorContains(t, err, `network "old"`)
			require.ErrorContains(t, err, `network "older"`)
		} else {
			require.NotErrorIs(t, err, engine.ErrCheckUnsupported, "it is no finding")
			require.ErrorContains(t, err, finding)
		}
		requireEmptyCache(t)
	}
}

// TestStatusDoesNotBlockDel: STATUS fails, and DEL works all the same.
func TestStatusDoesNotBlockDel(t *testing.T) {
	e := newEnvironment(t, "main")
	r := e.request("status", e.attachment("net", "1.1.0", plugin{name: "main", on: map[string]fakeplugin.Behaviour{
		"ADD": good["ADD"], "STATUS": {Code: 50, Msg: "not available"}}}))
	add(t, r)
	err := Engine{}.Status(t.Context(), r.PluginDirs, r.Attachments[0].Network)
	var cniErr *types.Error
	require.ErrorAs(t, err, &cniErr)
	require.EqualValues(t, 50, cniErr.Code)
	require.NoError(t, Engine{}.Del(t.Context(), r))
}

// TestGCLeavesOtherRuntimesAlone: libcni would DEL what it finds in its cache.
func TestGCLeavesOtherRuntimesAlone(t *testing.T) {
	e := newEnvironment(t, "main")
	theirs := e.request("theirs", e.attachment("net", "1.1.0", plugin{name: "main", on: good}))
	add(t, theirs)
	require.NoError(t, writeCache(theirs)) // as another runtime would have it
	t.Cleanup(func() { require.NoError(t, dropCache(theirs)) })

	require.NoError(t, Engine{}.GC(t.Context(), theirs.PluginDirs, theirs.Attachments[0].Network, nil))
	require.Equal(t, []string{"main ADD", "main GC"}, e.commands())
	require.JSONEq(t, `[]`, string(e.lastStdin()["cni.dev/valid-attachments"]), "an empty list, not null")

	valid := []types.GCAttachment{{ContainerID: "theirs", IfName: "eth0"}}
	require.NoError(t, Engine{}.GC(t.Context(), theirs.PluginDirs, theirs.Attachments[0].Network, valid))
	require.JSONEq(t, `[{"containerID":"theirs","ifname":"eth0"}]`, string(e.lastStdin()["cni.dev/valid-attachments"]))
}

// TestCacheEntryLeadsElsewhere: what is lent to libcni is not written through a
// link, and does not wait for a pipe.
func TestCacheEntryLeadsElsewhere(t *testing.T) {
	for name, put := range map[string]func(victim, path string) error{
		"symbolic link": os.Symlink,
		"hard link":     os.Link,
		"pipe":          func(_, path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnvironment(t, "main")
			r := e.request("elsewhere", e.attachment("net", "1.0.0", plugin{name: "main", on: good}))
			add(t, r)
			victim := filepath.Join(e.dir, "victim")
			require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
			require.NoError(t, put(victim, cacheFile(r, 0)))
			t.Cleanup(func() { _ = os.Remove(cacheFile(r, 0)) })
			ended := make(chan error, 1)
			go func() { ended <- writeCache(r) }()
			select {
			case err := <-ended:
				require.NoError(t, err)
			case <-time.After(10 * time.Second):
				t.Fatal("the pipe is waited for")
			}
			require.NotNil(t, readCache(cacheFile(r, 0)))
			content, err := os.ReadFile(victim)
			require.NoError(t, err)
			require.Equal(t, "precious", string(content))
			require.NoError(t, Engine{}.Del(t.Context(), r))
		})
	}
}

// TestInterruptedDel: a plugin that outlived the process that started it is
// stopped before DEL undoes its work.
func TestInterruptedDel(t *testing.T) {
	e := newEnvironment(t, "main")
	hung := e.request("orphan", e.attachment("net", "1.0.0", plugin{name: "main", on: on("ADD", fakeplugin.Behaviour{Hang: true})}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := Engine{}.Add(ctx, hung); done <- err }()
	require.Eventually(t, func() bool { return len(e.commands()) == 1 }, 10*time.Second, time.Millisecond)

	interrupted := *hung
	interrupted.Interrupted = true
	require.NoError(t, Engine{}.Del(t.Context(), &interrupted))
	require.Error(t, <-done)
	requireNobodyWorksOn(t, "orphan")
	require.Equal(t, []string{"main ADD", "main DEL"}, e.commands())
}

func TestReadOnlyCacheIsNamed(t *testing.T) {
	e := newEnvironment(t, "main")
	r := e.request("cache", e.attachment("net", "1.0.0", plugin{name: "main", on: good}))
	saved := libcni.CacheDir
	libcni.CacheDir = filepath.Join(e.dir, "log", "below-a-file")
	defer func() { libcni.CacheDir = saved }()
	require.NoError(t, os.WriteFile(e.log, nil, 0o600))
	_, err := Engine{}.Add(t.Context(), r)
	require.ErrorContains(t, err, "cached result")
	require.True(t, errors.Is(err, unix.ENOTDIR))
}
