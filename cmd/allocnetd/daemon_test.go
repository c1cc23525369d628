package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

const embedded = `networks = ["allocnet"]`

// allocate sets up an allocation in its own sandbox.
func (w *workspace) allocate(id string) *configurator.Status {
	w.Helper()
	path, err := w.client().CreateSandbox(background(), id)
	require.NoError(w, err)
	status, err := w.client().Setup(background(), configurator.Allocation{ID: id, Netns: path})
	require.NoError(w, err)
	return status
}

func (w *workspace) release(id string) {
	w.Helper()
	require.NoError(w, w.client().Teardown(background(), configurator.Allocation{ID: id}))
	require.NoError(w, w.client().DestroySandbox(background(), id))
}

func snapshot(t *testing.T) hostsnap.Snapshot {
	t.Helper()
	s, err := hostsnap.Take(hostsnap.Options{Persistent: true})
	require.NoError(t, err)
	return s
}

// TestAllocationsOutliveTheDaemon ends one daemon and kills another: the allocations
// stay.
func TestAllocationsOutliveTheDaemon(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded)
	before := snapshot(t)
	first := w.start()
	status := w.allocate("a1")
	first.stop()
	require.NoFileExists(t, w.path("s"))
	s, err := sandbox.Open(sandbox.DefaultDir + "/a1")
	require.NoError(t, err)
	require.NoError(t, s.Do(func() error {
		_, err := netlink.LinkByName("eth0")
		return err
	}))
	require.NoError(t, s.Close())

	second := w.start()
	require.Contains(t, second.logged("compared records with the kernel"), "healthy=1 repaired=0 broken=0")
	record, err := w.client().Get(t.Context(), "a1")
	require.NoError(t, err)
	require.Equal(t, status.Address, record.Status.Address)
	require.NoError(t, second.cmd.Process.Kill())
	_ = second.cmd.Wait()

	third := w.start()
	w.release("a1")
	third.stop()
	require.Empty(t, hostsnap.Diff(before, snapshot(t)))
}

// TestUnfinished starts a daemon on the record of an unfinished operation.
func TestUnfinished(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded)
	p := w.start()
	w.allocate("a1")
	w.allocate("a2")
	p.stop()
	store := record.Open(w.path("state"))
	r, err := store.Get("a1")
	require.NoError(t, err)
	r.Phase = record.Adding
	require.NoError(t, store.Put(r))
	p = w.start()
	require.Contains(t, p.logged("removed unfinished allocations of an earlier run"), `allocs=["a1"]`)
	_, err = w.client().Get(t.Context(), "a1")
	require.ErrorIs(t, err, configurator.ErrNotFound)
	require.NoError(t, w.client().Check(background(), configurator.Allocation{ID: "a2"}))
	w.release("a1") // destroys its network namespace
	w.release("a2")
	p.stop()
}

// TestReconcile flushes the rules while the daemon is not running.
func TestReconcile(t *testing.T) {
	privhost.Require(t, "nft")
	w := newWorkspace(t)
	w.configure(embedded)
	p := w.start()
	w.allocate("a1")
	p.stop()
	flush := func() {
		out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput()
		require.NoError(t, err, string(out))
	}
	flush()
	p = w.start("--reconcile-mode", "report")
	p.logged("records and kernel do not agree")
	p.logged("nftables rules are missing: table ip allocnet_guard")
	p.logged("nftables rules are missing: table ip allocnet,")
	p.stop()
	p = w.start()
	p.logged("repaired=1")
	p.stop()
	p = w.start("--reconcile-mode=report")
	require.NoError(t, w.client().Check(background(), configurator.Allocation{ID: "a1"}))
	w.release("a1")
	require.NotContains(t, p.stop(), "do not agree")
}

// TestPool: setups with their own network namespace take prepared ones; a reload changes the
// size, and the end of the daemon leaves none.
func TestPool(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded, `pool "allocnet" { size = 2 }`)
	p := w.start()
	ready := func(size int) {
		t.Helper()
		require.Eventually(t, func() bool {
			host, err := w.client().HostStatus(background())
			require.NoError(t, err)
			return *host.Networks[0].Pool == client.PoolCounts{Ready: size, Size: size}
		}, 20*time.Second, 20*time.Millisecond)
	}
	ready(2)
	a := configurator.Allocation{ID: "p1", OwnNetns: true}
	status, err := w.client().Setup(background(), a)
	require.NoError(t, err)
	require.True(t, status.Created)
	require.NoError(t, w.client().Check(background(), a))
	ready(2)
	// The first scrape; others get the same counts for five seconds.
	out, err := exec.Command("curl", "-sS", "--unix-socket", w.path("s"), "http://localhost/metrics").Output()
	require.NoError(t, err)
	for _, metric := range []string{`allocnet_pool_ready{network="allocnet"} 2`, `allocnet_pool_taken_total{network="allocnet"} 1`} {
		require.True(t, strings.Contains(string(out), metric), metric)
	}
	w.configure(embedded, `pool "allocnet" { size = 5 }`)
	require.Equal(t, "ready", p.reload())
	require.Contains(t, p.logged("settings have changed"), `settings=["pool.networks"]`)
	ready(5)
	a.Wait = true
	require.NoError(t, w.client().Teardown(background(), a))
	p.stop()
}

func TestReload(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded, `log { level = "warn" }`)
	p := w.start()
	w.allocate("a1")

	w.configure(embedded, "engine = 1\nnope = 2")
	require.Equal(t, "ready; the last reload was refused, see the log", p.reload())
	w.allocate("a2") // as before
	p.logged("not reloaded")
	p.logged("/d.hcl:6: engine: must be text in quotes")
	p.logged("/d.hcl:7: nope: there is no such setting")

	w.configure(embedded, `interface_prefix = "net"`, `log { json = true }`, `pool { size = 3 }`)
	require.Equal(t, "ready", p.reload())
	require.Contains(t, p.logged("settings have changed"), `settings=["interface_prefix", "log.level"]`)
	require.Contains(t, p.logged("that need a restart"), `settings=["pool.size", "log.json"]`)
	status := w.allocate("a3")
	require.Equal(t, "net0", status.InterfaceName)
	require.Equal(t, "ready", p.reload())
	p.logged("that need a restart") // again
	for _, id := range []string{"a1", "a2", "a3"} {
		w.release(id)
	}
	p.stop()
}

// TestReloadOfATakenSubnet: a reload is refused if the host would lose something in the new subnet of a network, and
// the former one stays.
func TestReloadOfATakenSubnet(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded)
	p := w.start()
	before := w.allocate("a1").Address
	w.release("a1")
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}}
	require.NoError(t, netlink.LinkAdd(link))
	defer func() { require.NoError(t, netlink.LinkDel(link)) }()
	addr, err := netlink.ParseAddr("10.88.0.7/24")
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(link, addr))
	w.configure(embedded, `subnets = ["10.88.0.0/16"]`)
	require.Equal(t, "ready; the last reload was refused, see the log", p.reload())
	p.logged("its subnet 10.88.0.0/16 holds address 10.88.0.7/24 of uplink, which the host would lose")
	require.Equal(t, netip.MustParsePrefix("10.202.0.0/16"), netip.PrefixFrom(netip.MustParseAddr(w.allocate("a2").Address), 16).Masked(), before)
	w.release("a2")
	require.NoError(t, netlink.AddrDel(link, addr))
	require.Equal(t, "ready", p.reload())
	require.Contains(t, w.allocate("a3").Address, "10.88.")
	w.release("a3")
	p.stop()
}

// TestReloadWithoutFile: a daemon whose default settings file was deleted keeps its
// settings, and takes those of the file that replaces it.
func TestReloadWithoutFile(t *testing.T) {
	w := newWorkspace(t)
	require.NoError(t, unix.Mount("tmpfs", "/etc", "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount("/etc", unix.MNT_DETACH)) })
	require.NoError(t, os.Mkdir(filepath.Dir(settings.DefaultFile), 0o755))
	const refused = "ready; the last reload was refused, see the log"
	appear := func(more ...string) {
		w.configure(append(more, embedded)...)
		data, err := os.ReadFile(w.path("d.hcl"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(settings.DefaultFile, data, 0o644))
	}
	appear(`interface_prefix = "net"`)
	w.noFlag = true
	p := w.start()
	require.NoError(t, os.Remove(settings.DefaultFile))
	require.Equal(t, refused, p.reload())
	p.logged(settings.DefaultFile + ": cannot be read")
	require.Equal(t, "net0", w.allocate("a1").InterfaceName)
	appear(`interface_prefix = "eth"`)
	require.Equal(t, "ready", p.reload())
	require.Equal(t, "eth0", w.allocate("a2").InterfaceName)
	w.release("a1")
	w.release("a2")
	p.stop()
}

// TestReloadCommand: the command returns when the settings are active, or says why not.
func TestReloadCommand(t *testing.T) {
	w := newWorkspace(t)
	w.configure()
	p := w.start()
	reload := func(args ...string) (code int, out string) {
		t.Helper()
		var text bytes.Buffer
		code = execute(t.Context(), append([]string{"reload", "--config", w.path("d.hcl")}, args...), nil, &text, &text)
		return code, text.String()
	}
	pid := strconv.Itoa(p.cmd.Process.Pid)
	for _, timeout := range []string{"7s", "8s"} { // the event of the first reload is not that of the second
		w.configure(`timeout = "` + timeout + `"`)
		code, out := reload(pid)
		require.Equal(t, exitOK, code, out)
		require.Equal(t, "reloaded\n", out)
		active, err := os.ReadFile(w.path("s.settings"))
		require.NoError(t, err)
		require.Contains(t, string(active), `"`+timeout+`"`)
	}
	w.configure(`interface_prefix = "net"`, `limits { queue = 7 }`)
	code, out := reload(pid)
	require.Equal(t, exitOK, code, out)
	require.Equal(t, "reloaded\nrestart the daemon to change limits.queue: systemctl restart allocnetd\n", out)
	w.configure(`timeout = "soon"`)
	code, out = reload(pid)
	require.Equal(t, exitUsage, code)
	require.Contains(t, out, "timeout")

	w.configure()
	require.NoError(t, os.Remove(w.path("s.settings")))
	require.NoError(t, os.Mkdir(w.path("s.settings"), 0o700))
	code, out = reload(pid)
	require.Equal(t, exitFailure, code, "the daemon itself refuses it")
	require.Contains(t, out, "the new settings are active, but the plugin uses the previous ones")

	code, out = reload("none")
	require.Equal(t, exitUsage, code)
	require.Contains(t, out, "pass that of the daemon")
	code, out = reload()
	require.Equal(t, exitUsage, code)
	require.Contains(t, out, "pass the number of the daemon's process")
	other := exec.Command("sleep", "60")
	require.NoError(t, other.Start())
	code, out = reload(strconv.Itoa(other.Process.Pid))
	require.Equal(t, exitUsage, code)
	require.Contains(t, out, "is not the daemon: process "+pid+" listens on")
	require.NoError(t, other.Process.Signal(syscall.SIGTERM))
	require.ErrorContains(t, other.Wait(), "terminated", "it got no SIGHUP")
	w.write("d.hcl", `socket { path = "`+w.path("other")+`" }`)
	code, out = reload(pid)
	require.Equal(t, exitFailure, code)
	require.Contains(t, out, "if socket.path has changed, restart the daemon")
	p.stop()
}

// TestReloadTooEarly sends SIGHUP during start-up: the daemon does not exit.
func TestReloadTooEarly(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded)
	for range 5 {
		cmd := w.command("run")
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool {
			_, err := os.Lstat(w.path("s"))
			return err == nil
		}, time.Minute, 10*time.Microsecond)
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		require.Eventually(t, func() bool { return w.client().Ready(background()) == nil }, time.Minute, time.Millisecond)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
		_ = os.Remove(w.path("s"))
	}
}

// TestReloadBeforeMain: SIGHUP is ignored before the libraries are initialized.
func TestReloadBeforeMain(t *testing.T) {
	w := newWorkspace(t)
	cmd := w.command("version")
	cmd.Env = append(cmd.Env, "GODEBUG=inittrace=1")
	trace, err := cmd.CombinedOutput()
	require.NoError(t, err)
	early, libraries := strings.Index(string(trace), "/cmd/internal/earlyhup @"), strings.Index(string(trace), "init golang.org/x/net/http2/hpack @")
	require.Positive(t, early)
	require.Positive(t, libraries)
	require.Less(t, early, libraries)
}

// TestReloadStartsManager switches the manager on, to another network, and off.
func TestReloadStartsManager(t *testing.T) {
	w := newWorkspace(t)
	for _, name := range []string{"one", "two"} {
		w.write("conf/"+name+".conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": "loopback"}]}`, name))
	}
	w.configure()
	p := w.start()
	own := w.path("conf/00-allocnet.conflist")
	require.NoFileExists(t, own)
	holds := func(part string) func() bool {
		return func() bool {
			data, err := os.ReadFile(own)
			return err == nil && strings.Contains(string(data), part)
		}
	}
	w.configure("manager { enabled = true }")
	require.Equal(t, "ready", p.reload())
	require.Eventually(t, holds(`"one"`), time.Minute, time.Millisecond)
	for e, err := range w.client().Events(background(), 1) {
		require.NoError(t, err)
		if e.Type == client.TypeConfiguration {
			break
		}
	}
	require.True(t, holds(w.path("s"))(), "it names the socket")
	require.True(t, holds(w.path("d.hcl"))(), "and the settings")
	require.Eventually(t, func() bool { return w.client().Ready(background()) == nil }, time.Minute, time.Millisecond)

	w.configure("manager {\n enabled = true\n primary = \"two\"\n readiness_file = \"" + w.path("none") + "\"\n}")
	require.Equal(t, "ready", p.reload())
	w.write("none", "")
	require.Eventually(t, holds(`"two"`), time.Minute, time.Millisecond)
	require.NoError(t, os.Remove(w.path("none")))
	require.Eventually(t, func() bool {
		err := w.client().Ready(background())
		return err != nil && strings.Contains(err.Error(), "readiness file")
	}, time.Minute, time.Millisecond)

	// The file gets another name; the previous one is removed.
	w.configure("manager {\n enabled = true\n own_file = \"01-other.conflist\"\n}")
	require.Equal(t, "ready", p.reload())
	require.Eventually(t, func() bool {
		_, err := os.Stat(own)
		return errors.Is(err, fs.ErrNotExist)
	}, time.Minute, time.Millisecond)
	own = w.path("conf/01-other.conflist")
	require.True(t, holds(`"one"`)())

	w.configure("manager {\n enabled = true\n own_file = \"01-other.conflist\"\n pod_annotations = true\n policy_from = \"P\"\n labels_from = [\"job=NOMAD_JOB_ID\"]\n}")
	require.Equal(t, "ready", p.reload())
	require.Eventually(t, holds(`"io.kubernetes.cri.pod-annotations": true`), time.Minute, time.Millisecond)
	require.True(t, holds(`"job": "NOMAD_JOB_ID"`)())
	require.True(t, holds(`"policyFrom": "P"`)())

	w.configure("manager { own_file = \"01-other.conflist\" }")
	require.Equal(t, "ready", p.reload())
	p.logged("the configuration manager is off")
	require.NoError(t, os.Remove(own))
	p.stop()
	require.NoFileExists(t, own, "no manager writes it any more")
}

// TestEndUndoesWhatRuns ends the daemon while a plugin hangs. A reload has set the grace
// period to zero before.
func TestEndUndoesWhatRuns(t *testing.T) {
	w := newWorkspace(t)
	require.NoError(t, fakeplugin.Install(w.path("bin"), "fake"))
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "one", "plugins": []any{map[string]any{
		"type": "fake", "fake": fakeplugin.Config{Log: w.path("calls"), On: map[string]fakeplugin.Behaviour{"ADD": {Hang: true}}},
	}}})
	require.NoError(t, err)
	w.write("conf/one.conflist", string(conf))
	w.configure()
	p := w.start()
	w.configure(`shutdown_grace = "1ms"`)
	require.Equal(t, "ready", p.reload())
	path, err := w.client().CreateSandbox(background(), "a1")
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := w.client().Setup(background(), configurator.Allocation{ID: "a1", Netns: path})
		failed <- err
	}()
	require.Eventually(t, func() bool {
		calls, _ := fakeplugin.Commands(w.path("calls"))
		return len(calls) == 1
	}, time.Minute, time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Contains(t, p.notified("STOPPING=1"), "EXTEND_TIMEOUT_USEC=15001000")
	err = <-failed
	require.ErrorIs(t, err, context.Canceled, "the client gets the error")
	p.logged("cancelling running requests")
	require.NoError(t, p.cmd.Wait())
	calls, err := fakeplugin.Commands(w.path("calls"))
	require.NoError(t, err)
	require.Equal(t, []string{"fake ADD", "fake DEL"}, calls)

	p = w.start()
	records, err := w.client().List(t.Context())
	require.NoError(t, err)
	require.Empty(t, records)
	require.NoError(t, w.client().DestroySandbox(background(), "a1"))
	p.stop()
}

func TestTwoDaemons(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded)
	p := w.start()
	out, err := w.command("run").CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, exitFailure, exit.ExitCode())
	require.Equal(t, fmt.Sprintf("allocnetd: listen on %q: the socket is in use: another daemon (pid %d) serves it; stop that daemon or set another socket\n",
		w.path("s"), p.cmd.Process.Pid), string(out))
	p.stop()
}

func TestSocketModeAndGroup(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded)
	p := w.start("--socket-mode=0600")
	info, err := os.Stat(w.path("s"))
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket|0o600, info.Mode())
	p.stop()
	out, err := w.command("--socket-group", "no such group").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "create the group or set another one")
}

// TestStateDirectory starts the daemon with an unusable state directory: it reports
// that and keeps running.
func TestStateDirectory(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded)
	w.write("state", "a file")
	p := w.start()
	require.ErrorContains(t, w.client().Ready(background()), "state directory")
	_, err := w.client().Setup(background(), configurator.Allocation{ID: "a1", Netns: "/proc/self/ns/net"})
	require.ErrorContains(t, err, "state")
	require.False(t, errors.Is(err, syscall.ECONNREFUSED))
	p.stop()
}

// TestActiveSettings checks that the active settings are beside the socket, also after
// the daemon has ended. A reload does not change settings that need a restart.
func TestActiveSettings(t *testing.T) {
	w := newWorkspace(t)
	w.configure()
	file := settings.ActiveFile(w.path("s"))
	w.write(filepath.Base(file), "of one before")
	active := func() settings.Settings {
		s, err := settings.Read(file)
		require.NoError(t, err)
		return s
	}
	p := w.start("--timeout=3s")
	require.Equal(t, 3*time.Second, active().Timeout)
	require.Equal(t, w.path("state"), active().StateDir)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())

	w.configure(`engine = "exec"`, `pool { dir = "/x" }`)
	require.Equal(t, "ready", p.reload())
	require.Equal(t, configurator.EngineExec, active().Engine)
	require.Equal(t, 3*time.Second, active().Timeout)
	require.Equal(t, sandbox.DefaultDir, active().Pool.Dir)

	w.configure(`engine = "x"`)
	require.Contains(t, p.reload(), "refused")
	require.Equal(t, configurator.EngineExec, active().Engine)

	w.configure(`engine = "native"`)
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700))
	require.Contains(t, p.reload(), "refused")
	p.logged("the plugin uses the previous ones")
	require.NoError(t, os.Remove(file))
	require.Equal(t, "ready", p.reload())
	p.stop()
	require.Equal(t, configurator.EngineNative, active().Engine)
}

// TestActiveSettingsNotWritable ends the daemon before it serves clients.
func TestActiveSettingsNotWritable(t *testing.T) {
	w := newWorkspace(t)
	w.configure()
	require.NoError(t, os.Mkdir(settings.ActiveFile(w.path("s")), 0o700))
	out, err := w.command().CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "write settings to")
	require.NoFileExists(t, w.path("s"))
}

// TestFullFileSystemAtTheStart: the daemon starts, because teardowns need no space, and writes the
// active settings later. A file with the same content is left as it is.
func TestFullFileSystemAtTheStart(t *testing.T) {
	w := newWorkspace(t)
	dir := w.path("sockets")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, syscall.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", 4*os.Getpagesize())))
	defer func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }()
	filler := filepath.Join(dir, "filler")
	require.NoError(t, os.WriteFile(filler, make([]byte, 4*os.Getpagesize()), 0o600))
	w.configure()
	args := []string{"--socket-path", filepath.Join(dir, "s")}
	p := w.start(args...)
	p.logged("the active settings cannot be written")
	p.stop()
	file := settings.ActiveFile(filepath.Join(dir, "s"))
	require.NoFileExists(t, file)

	require.NoError(t, os.Remove(filler))
	w.start(args...).stop()
	before, err := os.Stat(file)
	require.NoError(t, err)
	w.start(args...).stop()
	after, err := os.Stat(file)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "the file is not written again")
}

// TestActiveSettingsLater: what could not be written, at the start or later, is written as soon as possible.
func TestActiveSettingsLater(t *testing.T) {
	defer func(d time.Duration) { againTime = d }(againTime)
	againTime = time.Millisecond
	w := newWorkspace(t)
	s := settings.Default()
	s.StateDir, s.Pool.Dir = w.path("state"), w.path("netns")
	h, err := newHost(settings.Source{}, s, hclog.NewNullLogger())
	require.NoError(t, err)
	defer h.close()
	h.activeFile = w.path("later/s.settings")
	require.Error(t, h.writeFirstActive())
	done := make(chan error)
	ctx, end := context.WithCancel(t.Context())
	go func() { done <- h.writeActiveLater(ctx) }()
	for range 2 {
		require.NoError(t, os.Mkdir(w.path("later"), 0o700))
		require.Eventually(t, func() bool {
			_, err := settings.Read(h.activeFile)
			return err == nil
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, os.RemoveAll(w.path("later")))
		require.Error(t, h.writeActive())
	}
	end()
	require.NoError(t, <-done)
}
