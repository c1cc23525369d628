package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestWhoIsAsked(t *testing.T) {
	listens, _ := apitest.Serve(t, api.Options{})
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	listener, err := net.Listen("unix", stale)
	require.NoError(t, err)
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, listener.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for name, c := range map[string]struct {
		socket string // the default one
		args   []string
		daemon bool
	}{
		"listens":          {listens, nil, true},
		"network":          {listens, []string{"--network", "net"}, true},
		"missing":          {filepath.Join(dir, "none"), nil, false},
		"stale":            {stale, nil, false},
		"no directory":     {filepath.Join(dir, "file", "x"), nil, false},
		"no-daemon":        {listens, []string{"--no-daemon"}, false},
		"its settings":     {"", []string{"--no-daemon", "--socket", listens}, false},
		"no-daemon=false":  {listens, []string{"--no-daemon=false"}, true},
		"state-dir":        {listens, []string{"--state-dir", dir}, false},
		"conf-dir":         {listens, []string{"--conf-dir", dir}, false},
		"plugin-dir":       {listens, []string{"--plugin-dir", dir}, false},
		"subnet":           {listens, []string{"--subnet", "10.0.0.0/16"}, false},
		"timeout":          {listens, []string{"--timeout", "1s"}, false},
		"engine":           {listens, []string{"--engine", "exec"}, false},
		"socket":           {"", []string{"--socket", listens}, true},
		"socket not there": {listens, []string{"--socket", stale}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newApp(nil, os.Stdout, os.Stderr)
			a.flags.register(&cobra.Command{})
			a.flags.socket = c.socket
			require.NoError(t, a.flags.set.Parse(c.args))
			daemon, err := a.daemon()
			require.NoError(t, err)
			require.Equal(t, c.daemon, daemon != nil)
		})
	}
}

// TestDaemonsSettings checks that the last settings of the daemon are used.
func TestDaemonsSettings(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "d.hcl")
	require.NoError(t, os.WriteFile(file, []byte(`
		conf_dir = "`+dir+`/conf"
		state_dir = "`+dir+`/state"
		plugin_dirs = ["`+dir+`/plugins"]
		networks = ["blue"]
		subnets = ["10.9.0.0/16"]
		engine = "exec"
		interface_prefix = "net"
		timeout = "7s"
		retry { attempts = 5 }`), 0o600))
	s, err := settings.Source{File: file}.Load()
	require.NoError(t, err)
	socket := filepath.Join(dir, "sock")
	require.NoError(t, s.Write(settings.ActiveFile(socket)))
	t.Setenv("CNI_PATH", "")
	t.Setenv("ALLOCNET_SOCKET", socket)

	a := parsedApp(t, "--no-daemon")
	_, err = a.configurator()
	require.NoError(t, err)
	got, err := a.config()
	require.NoError(t, err)
	want := s.Configurator()
	want.Logger, want.OneShot = got.Logger, true
	require.Equal(t, want, got)

	flags := []string{"--conf-dir", "/c", "--state-dir", dir + "/own", "--plugin-dir", "/p", "--network", "red",
		"--subnet", "10.8.0.0/16", "--engine", "native", "--timeout", "9s"}
	a = parsedApp(t, flags...)
	_, err = a.configurator()
	require.NoError(t, err)
	got, err = a.config()
	require.NoError(t, err)
	require.Equal(t, []string{"/c", dir + "/own", "/p", "red", "10.8.0.0/16", "native", "9s"}, []string{got.ConfDir, got.StateDir,
		got.PluginDirs[0], got.Networks[0], got.Subnets[0].String(), string(got.Engine), got.Timeout.String()})
	require.Len(t, got.Subnets, 1)
	require.Equal(t, 5, got.Retry.Attempts, "what no flag says")

	require.NoError(t, os.Mkdir(filepath.Join(dir, "conf"), 0o755))
	list := `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"loopback"}]}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "conf", "blue.conflist"), []byte(list), 0o600))
	require.Contains(t, runWith("", "__complete", "setup", "--network", "b").ok(t), "blue\tloopback")

	t.Setenv("CNI_PATH", "/x")
	a = parsedApp(t, "--no-daemon")
	_, err = a.configurator()
	require.NoError(t, err)
	require.Empty(t, a.flags.pluginDirs, "the library reads CNI_PATH")

	// Settings that any user could have written are ignored with a warning.
	require.NoError(t, os.Chmod(settings.ActiveFile(socket), 0o666))
	r := runWith("", "ls", "--no-daemon", "--state-dir", dir+"/third")
	require.Contains(t, r.errOut, "last settings are ignored")
	require.Equal(t, exitOK, r.code)
	require.Contains(t, runWith("", "ls", "--no-daemon", "--json").failure(t, exitFailure).Error, "pass --state-dir")
}

func TestSocketIsNotForWhoWorksAlone(t *testing.T) {
	for _, alone := range [][]string{{"--conf-dir", "/x"}, {"--state-dir", "/x"}, {"--engine", "exec"}} {
		for _, command := range [][]string{{"ls"}, {"ready"}, {"events"}} {
			report := runWith("", append(append(command, "--json", "--socket", "/x"), alone...)...).failure(t, exitUsage)
			require.Contains(t, report.Error, "--socket and "+alone[0])
		}
	}
}

func TestNoDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none")
	for _, command := range [][]string{{"ls"}, {"ready"}, {"events"}, {"setup", "a", "--create"}, {"teardown", "a", "--destroy"}, {"networks"}} {
		report := runWith("", append(command, "--json", "--socket", socket)...).failure(t, exitFailure)
		require.Equal(t, "no-daemon", report.Kind, command)
		require.Contains(t, report.Error, socket)
	}
}

// TestEventsNeedTheDaemon: no advice is to do without it, and flags that do are refused.
func TestEventsNeedTheDaemon(t *testing.T) {
	for _, flag := range []string{"--no-daemon", "--conf-dir=/x"} {
		report := runWith("", "events", flag, "--json").failure(t, exitUsage)
		require.Regexp(t, "^"+strings.TrimSuffix(flag, "=/x")+": only the daemon has events", report.Error)
	}
	report := runWith("", "events", "--json", "--socket", filepath.Join(t.TempDir(), "none")).failure(t, exitFailure)
	require.Equal(t, "no-daemon", report.Kind)
	require.NotContains(t, report.Hint, "--no-daemon")
}

// serve runs a daemon for this workspace, with its own directory of sandboxes. The
// returned function runs commands through it.
func (w *workspace) serve(sandboxes string) func(args ...string) outcome {
	w.Helper()
	privhost.Require(w)
	c, err := configurator.New(configurator.Config{
		ConfDir: w.path("conf"), StateDir: w.path("state"), PluginDirs: []string{w.path("plugins")}, NetnsDir: sandboxes,
		Retry: configurator.RetryPolicy{Delay: -1, Jitter: -1},
	})
	require.NoError(w, err)
	pool, err := sandbox.NewPool(sandbox.PoolOptions{Dir: sandboxes})
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, pool.Close()) })
	socket, _ := apitest.Serve(w.T, api.Options{
		Service: func() allocnet.Service { return c }, Sandboxes: api.Pooled(pool, sandboxes),
		Ready: func(ctx context.Context) []api.Check { return []api.Check{{Name: "ready", Err: c.Ready(ctx)}} },
	})
	w.socket = socket
	return func(args ...string) outcome { return runWith("", append(args, "--socket", socket)...) }
}

// elsewhere is a directory for sandboxes that is not the one of iproute2.
func (w *workspace) elsewhere() string {
	dir := w.path("netns")
	w.Cleanup(func() { unmount(w.T, dir) })
	return dir
}

// TestDaemonWithSandboxesElsewhere has a namespace of the same name in /run/netns,
// which is none of it.
func TestDaemonWithSandboxesElsewhere(t *testing.T) {
	w := newWorkspace(t)
	foreign := w.sandbox("web").Path()
	dir := w.elsewhere()
	ask := w.serve(dir)
	path := filepath.Join(dir, "web")
	for range 2 {
		ask("setup", "web", "--create").ok(t)
		record := decode[configurator.Record](t, ask("inspect", "web", "--json").ok(t))
		require.Equal(t, path, record.Netns)
		require.NoError(t, sandbox.Validate(path))
	}
	report := decode[teardownReport](t, ask("teardown", "web", "--destroy", "--json").ok(t))
	require.True(t, report.Destroyed)
	require.NoFileExists(t, path)
	require.NoError(t, sandbox.Validate(foreign))

	ask("setup", "web", "--create", "--netns", path).ok(t)
	ask("teardown", "web", "--destroy").ok(t)
	ask("setup", "web", "--create", "--network", "nope", "--json").failure(t, exitFailure)
	require.NoFileExists(t, path, "it is gone with the setup")
	refused := ask("setup", "web", "--create", "--netns", foreign, "--json").failure(t, exitUsage)
	require.Contains(t, refused.Error, "can only be made in "+dir)
	require.NoFileExists(t, path)
	require.NoError(t, sandbox.Validate(foreign))
	require.False(t, decode[teardownReport](t, ask("teardown", "web", "--destroy", "--netns", foreign, "--json").ok(t)).Destroyed)
	require.NoError(t, sandbox.Validate(foreign))
	ask("setup", "web", "--netns", foreign).ok(t)
	require.True(t, decode[teardownReport](t, ask("teardown", "web", "--destroy", "--json").ok(t)).Destroyed)
	require.NoFileExists(t, foreign, "it is the record's, and this process may destroy it")
}

// TestGCLeavesWhatRuntimesSetUp, in a dry run as well, and says so.
func TestGCLeavesWhatRuntimesSetUp(t *testing.T) {
	w := newWorkspace(t)
	c, err := configurator.New(configurator.Config{ConfDir: w.path("conf"), StateDir: w.path("state"), PluginDirs: []string{w.path("plugins")}})
	require.NoError(t, err)
	for id, scope := range map[string]string{"ours": "", "theirs": "cni/web", "a": "mine", "b": "mine"} {
		_, err := c.Setup(t.Context(), configurator.Allocation{ID: id, Netns: w.sandbox(id).Path(), Scope: scope})
		require.NoError(t, err)
	}
	for _, args := range [][]string{{"gc", "--none", "--json", "--dry-run"}, {"gc", "--none", "--json"}} {
		got := w.run(args...)
		require.Equal(t, []string{"ours"}, decode[gcReport](t, got.ok(t)).Removed)
		require.Contains(t, got.errOut, "1 allocation of runtimes (CNI) kept")
		require.Contains(t, got.errOut, "2 allocations of other scopes (mine) kept")
	}
	require.Len(t, decode[[]configurator.Record](t, w.run("ls", "--json").ok(t)), 3)
	require.Empty(t, w.run("gc", "--none", "--scope", "mine").errOut)
	w.run("teardown", "theirs").ok(t)
}

// TestDaemonWithoutTheRight: sudo would not help.
func TestDaemonWithoutTheRight(t *testing.T) {
	w := newWorkspace(t)
	w.network("10-front", "front", map[string]fakeplugin.Behaviour{"ADD": {Code: 100, Msg: "modprobe: operation not permitted"}})
	ask := w.serve(sandbox.DefaultDir)
	w.named("web")
	report := ask("setup", "web", "--create", "--json").failure(t, exitFailure)
	require.Contains(t, report.Error, "operation not permitted")
	require.NotContains(t, report.Hint, "sudo")
}

func TestDaemonKeepsTheSandboxOfAnother(t *testing.T) {
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	path := w.named("web")
	require.Equal(t, "nothing is set up in the daemon at "+w.socket+"\n", ask("ls").errOut)
	ask("setup", "web", "--create").ok(t)
	require.Equal(t, "in-use", ask("teardown", "other", "--destroy", "--netns", path, "--json").failure(t, exitUsage).Kind)
	require.NoError(t, sandbox.Validate(path))
	ask("teardown", "web", "--destroy").ok(t)
	require.NoFileExists(t, path)
}

// TestInterruptedSetupDestroysWhatTheDaemonMade interrupts a setup while a plugin hangs
// in ADD.
func TestInterruptedSetupDestroysWhatTheDaemonMade(t *testing.T) {
	w := newWorkspace(t)
	w.network("10-front", "front", map[string]fakeplugin.Behaviour{"ADD": {Hang: true}})
	w.serve(sandbox.DefaultDir)
	path := w.named("web")
	ctx, cancel := context.WithCancel(t.Context())
	var errOut bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"setup", "web", "--create", "--socket", w.socket}, nil, io.Discard, &errOut)
	}()
	require.Eventually(t, func() bool { return slices.Contains(w.commands(), "fake ADD") }, 20*time.Second, time.Millisecond)
	cancel()
	require.Equal(t, exitFailure, <-done)
	require.NotContains(t, errOut.String(), "destroy")
	require.NoFileExists(t, path)
}

func TestReady(t *testing.T) {
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	for name, run := range map[string]func(...string) outcome{"daemon": ask, "alone": w.run} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, "ok: ready\n", run("ready").ok(t))
			require.JSONEq(t, `{"ready": true}`, run("ready", "--json").ok(t))
			broken := w.path("conf/30-broken.conflist")
			require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))
			require.Contains(t, run("ready").errOut, "warning: skipped "+broken)
			require.NoError(t, os.Remove(broken))

			report := run("ready", "--network", "nosuch", "--json").failure(t, exitNo)
			require.Equal(t, "not-ready", report.Kind)
			require.Contains(t, report.Error, `unknown network: network "nosuch"`)
			require.Contains(t, report.Hint, "allocnet networks")
			require.Equal(t, "ok: ready\n", run("ready", "--network", "allocnet").ok(t))

			plugin, away := w.path("plugins/fake"), w.path("away")
			require.NoError(t, os.Rename(plugin, away))
			report = run("ready", "--json").failure(t, exitNo)
			require.Equal(t, "not-ready", report.Kind)
			require.Contains(t, report.Error, "fake")
			require.NoError(t, os.Rename(away, plugin))
		})
	}
}
