package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

type networksReport struct {
	Networks []configurator.Network `json:"networks"`
	Skipped  []skippedFile          `json:"skipped"`
}

func TestNetworks(t *testing.T) {
	w := newWorkspace(t)
	require.NoError(t, os.WriteFile(w.path("conf/05-bad.conflist"), []byte("{"), 0o600))
	report := decode[networksReport](t, w.run("networks", "--json").ok(t))
	var names, defaults []string
	for _, n := range report.Networks {
		names = append(names, n.Name)
		if n.Default {
			defaults = append(defaults, n.Name)
		}
	}
	require.Equal(t, []string{"front", "back", "allocnet"}, names)
	require.Equal(t, []string{"front"}, defaults)
	require.Len(t, report.Skipped, 1)
	require.Equal(t, w.path("conf/05-bad.conflist"), report.Skipped[0].File)

	got := w.run("networks")
	require.Regexp(t, `(?m)^NAME +DEFAULT +ENGINE +CNI +PLUGINS +CAPABILITIES +FILE$`, got.ok(t))
	require.Regexp(t, `(?m)^front +yes +exec +1\.0\.0 +fake `, got.out)
	require.Regexp(t, `(?m)^allocnet +- .*\(embedded\)$`, got.out)
	require.Contains(t, got.errOut, "warning: skipped "+w.path("conf/05-bad.conflist"))
}

// TestNetworksThatNoSetupAccepts: networks, ready and doctor name what the native plugins refuse in every setup.
func TestNetworksThatNoSetupAccepts(t *testing.T) {
	privhost.Require(t, "nft", "iptables")
	w := newWorkspace(t)
	require.NoError(t, os.WriteFile(w.path("conf/01-tune.conflist"),
		[]byte(`{"cniVersion":"1.0.0","name":"tune","plugins":[{"type":"tuning","mtu":1400}]}`), 0o600))
	const refusal = `network "tune": plugin "tuning": no prevResult`
	got := w.run("networks")
	require.Regexp(t, `(?m)^tune +yes +native `, got.ok(t))
	require.Contains(t, got.errOut, "warning: every setup fails: "+refusal)
	report := decode[networksReport](t, w.run("networks", "--json").ok(t))
	require.Contains(t, report.Networks[0].Invalid, refusal)
	require.Empty(t, report.Networks[1].Invalid)
	require.Contains(t, w.run("ready", "--json").failure(t, exitNo).Error, refusal)
	require.Contains(t, w.run("doctor").out, refusal)
	w.sandbox("web")
	require.Contains(t, w.run("setup", "web", "--json").failure(t, exitFailure).Error, `network "tune": plugin "tuning": no prevResult`)
}

// TestNetworksTellOfBinaries: the list shows plugins that run as binaries
// because of an unknown key.
func TestNetworksTellOfBinaries(t *testing.T) {
	w := newWorkspace(t)
	require.NoError(t, os.WriteFile(w.path("conf/01-odd.conflist"),
		[]byte(`{"cniVersion":"1.0.0","name":"odd","plugins":[{"type":"bridge","isGatway":true}]}`), 0o600))
	got := w.run("networks")
	require.Regexp(t, `(?m)^odd +yes +exec +1\.0\.0 +bridge `, got.ok(t))
	require.Contains(t, got.errOut, `warning: network odd: plugins run as binaries: plugin "bridge": the native plugin does not understand the key "isGatway"`)
	require.Regexp(t, `(?m)^allocnet +- +native `, got.out)
	require.Equal(t, 1, strings.Count(got.errOut, "warning"), got.errOut)

	require.NoError(t, fakeplugin.Install(w.path("plugins"), "tuning"))
	keys, err := json.Marshal(map[string]any{"on": map[string]fakeplugin.Behaviour{"ADD": {Result: result("10.9.0.2/24")}}, "log": w.path("log")})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(w.path("conf/01-odd.conflist"),
		[]byte(`{"cniVersion":"1.0.0","name":"odd","plugins":[{"type":"tuning","fake":`+string(keys)+`}]}`), 0o600))
	w.sandbox("web")
	w.run("setup", "web", "--network", "odd").ok(t)
	list := decode[[]listed](t, w.run("ls", "--json").ok(t))
	require.Equal(t, configurator.EngineExec, list[0].Engine)
	require.Equal(t, `network odd: plugin "tuning": the native plugin does not understand the key "fake"`, list[0].Reason)
}

func TestNetworksWithoutDirectory(t *testing.T) {
	w := newWorkspace(t)
	require.NoError(t, os.RemoveAll(w.path("conf")))
	got := w.run("networks")
	require.Contains(t, got.ok(t), "allocnet")
	require.Contains(t, got.errOut, "does not exist: only the embedded network exists")
	report := decode[networksReport](t, w.run("networks", "--json").ok(t))
	require.Len(t, report.Networks, 1)
}

// TestListsAreNeverNull uses a network without capabilities.
func TestListsAreNeverNull(t *testing.T) {
	w := newWorkspace(t)
	require.NoError(t, os.WriteFile(w.path("conf/01-bare.conflist"),
		[]byte(`{"cniVersion": "1.0.0", "name": "bare", "plugins": [{"type": "fake", "fake": {"log": "`+w.path("log")+`"}}]}`), 0o600))
	require.Contains(t, w.run("networks", "--json").ok(t), `"capabilities": []`)
	for _, args := range [][]string{
		{"networks"}, {"ls"}, {"gc", "--none", "--dry-run"}, {"gc", "--none"}, {"teardown", "x"}, {"cleanup", "--audit"},
		{"cleanup", "--audit", "x"}, {"cleanup", "--force", "x"}, {"repair"}, {"recover"}, {"plugins", "list"}, {"version"},
	} {
		require.NotContains(t, w.run(append(args, "--json")...).ok(t), "null", args)
	}
}

func TestGC(t *testing.T) {
	w := newWorkspace(t)
	for _, id := range []string{"a", "b", "c"} {
		w.sandbox(id)
		w.run("setup", id).ok(t)
	}
	got := w.run("gc", "--live", "a,typo", "--dry-run", "--json")
	report := decode[gcReport](t, got.ok(t))
	require.Len(t, report.Records, 2)
	require.Equal(t, []string{"b", "/run/netns/b"}, []string{report.Records[0].ID, report.Records[0].Netns})
	report.Records = nil
	require.Equal(t, gcReport{
		DryRun: true, GCReport: configurator.GCReport{Removed: []string{"b", "c"}, Kept: []string{"a"}}, Destroyed: []string{},
	}, report)
	require.JSONEq(t, `{"warning": "live allocation \"typo\" is not set up"}`, got.errOut)
	require.Len(t, decode[[]configurator.Record](t, w.run("ls", "--json").ok(t)), 3, "a dry run removes nothing")

	args := append([]string{"gc", "--live-from", "-"}, w.flags()...)
	require.Equal(t, "removed 1 allocation, kept 2 allocations\n  - c\n", runWith("# live\na\n\n b \n", args...).ok(t))

	file := w.path("live")
	require.NoError(t, os.WriteFile(file, []byte("a\n"), 0o600))
	report = decode[gcReport](t, w.run("gc", "--live-from", file, "--json").ok(t))
	require.Equal(t, []string{"b"}, report.Removed)

	report = decode[gcReport](t, w.run("gc", "--none", "--json").ok(t))
	require.Equal(t, []string{"a"}, report.Removed)
	require.JSONEq(t, "[]", w.run("ls", "--json").ok(t))
}

// TestGCWaitsForIDs: gc stops waiting for IDs from a pipe when its context
// ends.
func TestGCWaitsForIDs(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	reader, writer := io.Pipe()
	defer writer.Close()
	for name, from := range map[string]string{"named pipe": pipe, "stdin": "-"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			f := gcFlags{liveFrom: from}
			_, err := f.liveIDs(ctx, reader)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

func TestReadIDs(t *testing.T) {
	ids, err := readIDs(strings.NewReader("a\r\n\n# no\n  b\nc"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, ids)
	_, err = readIDs(strings.NewReader("a b\n"))
	require.ErrorContains(t, err, `line "a b": must be one ID`)
	require.Equal(t, exitUsage, exitCode(err))
}

type cleanupReport struct {
	Allocations []cleanupResult `json:"allocations"`
}

func TestCleanup(t *testing.T) {
	w := newWorkspace(t)
	s := w.sandbox("web")
	w.run("setup", "web").ok(t)
	require.Equal(t, "ok: no allocation is interrupted or without its network namespace\n", w.run("cleanup", "--audit").ok(t))
	require.JSONEq(t, `{"allocations": []}`, w.run("cleanup", "--audit", "--json").ok(t))
	report := decode[cleanupReport](t, w.run("cleanup", "--audit", "web", "nobody", "--json").ok(t))
	require.Equal(t, stateLive, report.Allocations[0].State)
	require.Equal(t, stateNoRecord, report.Allocations[1].State)

	refused := w.run("cleanup", "--force", "web")
	require.Equal(t, exitFailure, refused.code)
	require.Empty(t, refused.out, "the error says that nothing was removed")

	require.NoError(t, sandbox.Destroy(s.Path()))
	require.Contains(t, w.run("cleanup", "--audit").out, "web (netns gone): ")
	w.run("cleanup", "--force").ok(t)
	require.JSONEq(t, "[]", w.run("ls", "--json").ok(t))
}

// lease writes a lease in host-local's format.
func (w *workspace) lease(file, id string) {
	w.Helper()
	require.NoError(w, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(w, os.WriteFile(file, []byte(id+"\r\neth0"), 0o600))
}

func TestVerdict(t *testing.T) {
	found := []configurator.Leftover{{Kind: "link", Object: "x"}}
	require.NoError(t, verdict(nil))
	require.NoError(t, verdict([]cleanupResult{{State: stateNoRecord}, {State: stateLive, Found: found}}), "in use, not left over")
	for _, state := range []allocationState{stateInterrupted, stateNetnsGone, stateNoRecord, stateUnreadable} {
		require.ErrorIs(t, verdict([]cleanupResult{{State: state, Found: found}}), errLeftovers, state)
	}
}

// TestCleanupOfLeftovers removes a lease that a killed host-local left.
func TestCleanupOfLeftovers(t *testing.T) {
	privhost.Require(t)
	w := newWorkspace(t)
	lease := filepath.Join(w.path("state"), "leases", "allocnet", "10.202.0.9")
	w.lease(lease, "gone")
	got := w.run("cleanup", "--audit", "gone", "--network", "allocnet", "--json")
	require.Contains(t, got.failure(t, exitNo).Hint, "cleanup --force")
	report := decode[cleanupReport](t, got.out)
	require.Len(t, report.Allocations, 1)
	require.Len(t, report.Allocations[0].Found, 1)
	require.EqualValues(t, "lease", report.Allocations[0].Found[0].Kind)
	require.FileExists(t, lease)

	require.Contains(t, w.run("cleanup", "--force", "gone", "--network", "allocnet").ok(t), "gone (no record): 1 object removed\n  lease ")
	require.NoFileExists(t, lease)
	require.Contains(t, w.run("cleanup", "--force", "gone", "--network", "allocnet").ok(t), "0 objects removed")
	require.Contains(t, w.run("cleanup", "--audit", "gone", "--network", "allocnet").ok(t), "0 objects found")
}

func TestCompletion(t *testing.T) {
	w := newWorkspace(t)
	complete := func(args ...string) string {
		return runWith("", append(append([]string{"__complete"}, w.flags()...), args...)...).ok(t)
	}
	require.Equal(t, ":4\n", complete("teardown", ""), "nothing is set up")
	require.NoDirExists(t, w.path("state"), "completion leaves no trace")
	for _, id := range []string{"web", "wiki", "db"} {
		w.sandbox(id)
		w.run("setup", id).ok(t)
	}
	for _, command := range []string{"teardown", "check", "inspect"} {
		require.Equal(t, "web\tready, front, 10.9.0.2, fd00:9::2\nwiki\tready, front, 10.9.0.2, fd00:9::2\n:4\n", complete(command, "w"))
		require.Equal(t, ":4\n", complete(command, "web", ""), "one ID is enough")
	}
	require.Regexp(t, `^db\t.*\nwiki\t.*\n:4\n$`, complete("cleanup", "--audit", "web", ""))
	require.Regexp(t, `^web\t.*\nwiki\t.*\n:4\n$`, complete("gc", "--live", "w"))
	require.Equal(t, "front\tfake\nback\tfake\nallocnet\tloopback ptp firewall portmap policy\n:4\n", complete("setup", "x", "--network", ""))
	require.Equal(t, "back\tfake\n:4\n", complete("setup", "x", "--network", "b"))
	require.Equal(t, "trace\ndebug\ninfo\nwarn\nerror\noff\n:4\n", complete("ls", "--log-level", ""))
	require.Regexp(t, `^auto\t.*\nexec\t.*\nnative\t.*\n:4\n$`, complete("ls", "--engine", ""))
	require.Equal(t, ":16\n", complete("ls", "--state-dir", ""), "directories")
	require.Equal(t, ":16\n", complete("plugins", "install", ""), "a directory")
	require.Equal(t, strings.Join(pluginNames(), "\n")+"\n:4\n", complete("plugins", "install", "/", ""))
	require.Regexp(t, `^list\t.*\ninstall\t.*\nuninstall\t.*\n:4\n$`, complete("plugins", ""))
}

// TestNetnsGone: an allocation whose network namespace is gone is not shown as
// ready.
func TestNetnsGone(t *testing.T) {
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	s := w.sandbox("web")
	w.run("setup", "web").ok(t)
	for _, run := range []func(...string) outcome{w.run, ask} {
		require.Regexp(t, `(?m)^web +ready `, run("ls").ok(t))
		require.NotContains(t, run("ls", "--json").ok(t), "netnsGone")
	}
	require.NoError(t, s.Destroy())
	for _, run := range []func(...string) outcome{w.run, ask} {
		require.Regexp(t, `(?m)^web +netns gone `, run("ls").ok(t))
		require.Regexp(t, `(?m)^Phase +netns gone$`, run("inspect", "web").ok(t))
		require.True(t, decode[[]configurator.Record](t, run("ls", "--json").ok(t))[0].NetnsGone)
		require.True(t, decode[configurator.Record](t, run("inspect", "web", "--json").ok(t)).NetnsGone)
	}
	w.run("teardown", "web").ok(t)
}

// TestDryRunFindsWhatGCFinds: a dry run lists an allocation without a record,
// which is found by its owner.
func TestDryRunFindsWhatGCFinds(t *testing.T) {
	privhost.Require(t, "nft", "iptables")
	w := newWorkspace(t)
	native := func(args ...string) outcome {
		return w.run(append(args, "--engine", "native")...)
	}
	ask := w.serve(sandbox.DefaultDir)
	w.sandbox("web")
	native("setup", "web", "--network", "allocnet").ok(t)
	require.NoError(t, os.Remove(w.path("state/allocs/web.json")))
	for _, run := range []func(...string) outcome{native, ask} {
		report := decode[gcReport](t, run("gc", "--none", "--dry-run", "--json").ok(t))
		require.Equal(t, []string{"web"}, report.Removed)
		require.Equal(t, "would remove 1 allocation, kept 0 allocations\n  - web\n", run("gc", "--none", "--dry-run").ok(t))
	}
	require.Equal(t, []string{"web"}, decode[gcReport](t, native("gc", "--none", "--json").ok(t)).Removed)
	require.Empty(t, decode[gcReport](t, native("gc", "--none", "--dry-run", "--json").ok(t)).Removed)
}
