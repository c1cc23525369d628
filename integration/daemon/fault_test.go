package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/nftables"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// requireCode requires a CNI error with the given code.
func requireCode(t testing.TB, code uint, err error) *types.Error {
	t.Helper()
	var coded *types.Error
	require.ErrorAs(t, err, &coded)
	require.Equal(t, code, coded.Code, coded.Error())
	return coded
}

// hang stops the process until resume continues it.
func (d *daemonProcess) hang() {
	d.h.T.Helper()
	require.NoError(d.h.T, d.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(d.h.T, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.pid()))
		return err == nil && strings.Contains(string(stat), "(allocnetd) T ")
	}, time.Minute, time.Millisecond)
}

func (d *daemonProcess) resume() {
	d.h.T.Helper()
	require.NoError(d.h.T, d.cmd.Process.Signal(syscall.SIGCONT))
}

// TestDaemonHangs: while the daemon hangs, an ADD fails with "try again later",
// and a DEL succeeds.
func TestDaemonHangs(t *testing.T) {
	r := newCNI(t)
	config := r.pluginConfig(map[string]any{"delegate": "net", "idleTimeout": "1s"})
	r.turn(false, nil)
	a, b := r.h.netns("a"), r.h.netns("b")
	_, err := r.plugin("ADD", "a", a, config)
	require.NoError(t, err)
	r.hang()
	for command, code := range map[string]uint{"ADD": 11, "CHECK": 11, "STATUS": 50} {
		_, err = r.plugin(command, "b", b, config)
		requireCode(t, code, err)
	}
	_, err = r.plugin("DEL", "a", a, config)
	require.NoError(t, err)
	require.Empty(t, r.h.phases())
	r.resume()
	r.restart() // after the daemon has processed the requests that arrived while it hung
	require.Empty(t, r.h.phases())
	_, err = r.plugin("ADD", "b", b, config)
	require.NoError(t, err)
	_, err = r.plugin("DEL", "b", b, config)
	require.NoError(t, err)
}

// TestDaemonHangsOverAnADD: the daemon hangs during an ADD and holds the
// container's lock. So the runtime must repeat the DEL of that container, too,
// and the later DEL removes everything.
func TestDaemonHangsOverAnADD(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	require.NoError(t, fakeplugin.Install(dir, "one"))
	t.Setenv("ALLOCNETD_PLUGIN_DIRS", dir+":"+testbed.PluginDir)
	r := newCNI(t)
	r.configure("limits {\n operation_timeout = \"8s\"\n}")
	r.turn(false, nil)
	log, netns := filepath.Join(dir, "log"), r.h.netns("a")
	config := r.pluginConfig(map[string]any{"idleTimeout": "1s", "plugins": append(testbed.Chain("bridge", testbed.Dual, ""), map[string]any{
		"type": "one", "fake": fakeplugin.Config{Log: log, On: map[string]fakeplugin.Behaviour{"ADD": {Hang: true}}},
	})})
	added := make(chan error)
	go func() {
		_, err := r.plugin("ADD", "a", netns, config)
		added <- err
	}()
	require.Eventually(t, func() bool {
		calls, err := fakeplugin.Calls(log)
		return err == nil && len(calls) == 1
	}, time.Minute, time.Millisecond)
	r.hang()
	requireCode(t, 11, <-added)
	_, err := r.plugin("DEL", "a", netns, config)
	requireCode(t, 11, err)
	r.resume()
	_, err = r.plugin("DEL", "a", netns, config)
	require.NoError(t, err)
	require.Empty(t, r.h.phases())
}

// TestDaemonSocketTaken: a second daemon on the same socket names the first one
// in its error and does not disturb it. The socket of a killed daemon does not
// prevent a start.
func TestDaemonSocketTaken(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	d := h.startDaemon("")
	a := h.Alloc("a")
	_, err := d.client().Setup(t.Context(), a)
	require.NoError(t, err)
	out, err := exec.Command(filepath.Join(d.bin, "allocnetd"), "--config", d.settings).CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, string(out))
	require.Equal(t, 1, exit.ExitCode(), string(out))
	require.Contains(t, string(out), fmt.Sprintf("(pid %d)", d.pid()))
	require.NoError(t, d.client().Check(t.Context(), a))
	d.kill()
	require.FileExists(t, client.DefaultSocket)
	require.ErrorContains(t, d.client().Check(t.Context(), a), "not running")
	d.begin()
	d.told("READY=1")
	require.NoError(t, d.client().Check(t.Context(), a))
	require.NoError(t, d.client().Teardown(t.Context(), a))
}

// TestDaemonNobodyReads connects clients that send requests and never read the
// response.
func TestDaemonNobodyReads(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	d := h.startDaemon("shutdown_grace = \"1s\"")
	a := h.Alloc("a")
	add, err := json.Marshal(map[string]any{
		"env":    map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "n", "CNI_NETNS": h.netns("n"), "CNI_IFNAME": "eth0"},
		"config": json.RawMessage(d.pluginConfig(map[string]any{"delegate": "net"})),
	})
	require.NoError(t, err)
	requests := []string{
		"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
		strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n", 100) + strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 100),
		fmt.Sprintf("POST /cni HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(add), add),
	}
	var connections []net.Conn
	for _, request := range requests {
		for range 4 {
			c, err := net.Dial("unix", client.DefaultSocket)
			require.NoError(t, err)
			connections = append(connections, c)
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
			_, err = io.WriteString(c, request)
			require.True(t, err == nil || errors.Is(err, os.ErrDeadlineExceeded), err)
		}
	}
	for range 20 {
		_, err := d.client().Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, d.client().Teardown(t.Context(), a))
	}
	require.Eventually(t, func() bool {
		r, err := d.client().Get(t.Context(), "n.eth0")
		return err == nil && r.Phase == configurator.PhaseReady
	}, time.Minute, time.Millisecond)
	for _, c := range connections { // the daemon waits for them when it ends
		require.NoError(t, c.Close())
	}
	d.restart()
	require.NoError(t, d.client().Teardown(t.Context(), configurator.Allocation{ID: "n.eth0"}))
}

// said is the output and the exit status of a command.
type said struct {
	out, err string
	exit     int
}

// allocnet runs the command line, which finds the daemon at its default socket.
func (d *daemonProcess) allocnet(args ...string) said {
	d.h.T.Helper()
	c := exec.Command(d.commandLine(), args...)
	var out, errOut bytes.Buffer
	c.Stdout, c.Stderr = &out, &errOut
	err := c.Run()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(d.h.T, err, &exit)
	}
	return said{out.String(), errOut.String(), c.ProcessState.ExitCode()}
}

// commandLine returns the path of the program allocnet.
func (d *daemonProcess) commandLine() string { return filepath.Join(d.bin, "cli", "allocnet") }

// TestDaemonCommandLine runs each command with the daemon, without it, and with
// a socket option while the daemon is not running.
func TestDaemonCommandLine(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	d := h.startDaemon("")
	alone := []string{"--no-daemon", "--conf-dir", h.ConfDir, "--plugin-dir", testbed.PluginDir}
	t.Run("daemon", func(t *testing.T) { d.in(t).requireCommands() })
	require.NotContains(t, d.log(), "ERROR")
	setups := d.setups()
	require.NotEmpty(t, setups)
	t.Run("no-daemon", func(t *testing.T) { d.in(t).requireCommands(alone...) })
	require.Equal(t, setups, d.setups())
	d.term()
	t.Run("away", func(t *testing.T) { d.in(t).requireCommands(alone[1:]...) })
	for _, args := range [][]string{
		{"setup", "x", "--create"}, {"ls"}, {"inspect", "x"}, {"check", "x"}, {"teardown", "x"}, {"gc", "--none"}, {"repair"}, {"ready"}, {"networks"},
		{"events"},
	} {
		got := d.allocnet(append(args, "--json", "--socket", client.DefaultSocket)...)
		require.Equal(t, 1, got.exit, "%v: %s%s", args, got.out, got.err)
		require.Contains(t, got.err, `"kind":"no-daemon"`, "%v", args)
	}
	require.NoFileExists(t, "/run/netns/x")
}

// in returns the daemon for a subtest.
func (d *daemonProcess) in(t testing.TB) *daemonProcess {
	sub := *d
	sub.h = d.h.in(t)
	return &sub
}

// get sends a GET request to the daemon, as curl does.
func (d *daemonProcess) get(path string) (body string) {
	d.h.T.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", client.DefaultSocket)
	}}
	response, err := (&http.Client{Transport: transport}).Get("http://allocnetd" + path)
	require.NoError(d.h.T, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	require.NoError(d.h.T, err)
	return string(data)
}

// setups returns the daemon's metrics of Setups.
func (d *daemonProcess) setups() (lines []string) {
	d.h.T.Helper()
	for line := range strings.Lines(d.get("/metrics")) {
		if strings.Contains(line, `operation="setup"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

// requireCommands runs the life of an allocation with the command line.
func (d *daemonProcess) requireCommands(flags ...string) {
	t := d.h.T
	t.Helper()
	run := func(exit int, args ...string) string {
		t.Helper()
		got := d.allocnet(append(args, flags...)...)
		require.Equal(t, exit, got.exit, "%v: %s%s", args, got.out, got.err)
		return got.out + got.err
	}
	require.Contains(t, run(0, "ready"), "ready")
	require.Contains(t, run(0, "networks"), "net")
	require.Contains(t, run(0, "setup", "web", "--create", "--port", "8080:80/tcp"), "10.99.0.")
	testbed.Serve(t, "/run/netns/web", "tcp", 80, "web")
	testbed.RequireAnswer(t, "", "tcp", testbed.HostPort(testhost.Host4, 8080), "web")
	require.Contains(t, run(1, "setup", "db", "--create", "--port", "8080:80/tcp", "--json"), `"kind":"port-conflict"`)
	require.Contains(t, run(0, "ls"), "web")
	require.Contains(t, run(0, "inspect", "web"), "10.99.0.")
	run(0, "check", "web")
	rules, err := nftables.New()
	require.NoError(t, err)
	flush := func() {
		rules.FlushRuleset()
		require.NoError(t, rules.Flush())
	}
	flush()
	checked := d.allocnet(append([]string{"check", "web"}, flags...)...).exit
	require.Contains(t, []int{0, 3}, checked, "healthy if the daemon was faster")
	require.Contains(t, run(0, "repair", "--json"), `"web"`)
	testbed.RequireAnswer(t, "", "tcp", testbed.HostPort(testhost.Host4, 8080), "web")
	require.Contains(t, run(0, "gc", "--live", "web", "--json"), `"web"`)
	run(0, "check", "web")
	run(0, "teardown", "web", "--destroy")
	require.Contains(t, run(3, "inspect", "web", "--json"), `"kind":"not-found"`)
	run(0, "setup", "web", "--create")
	run(0, "gc", "--none", "--destroy")
	require.Empty(t, d.h.phases())
	require.NoFileExists(t, "/run/netns/web")
}

// TestDaemonEvents checks that a script can read events line by line.
func TestDaemonEvents(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	d := h.startDaemon("")
	c := exec.Command(d.commandLine(), "events", "--json", "--log-level", "debug")
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	a := h.Alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	// The first event shows that the command follows.
	for followed := false; !followed; {
		_ = d.client().Check(t.Context(), a)
		select {
		case <-lines:
			followed = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	_, err = d.client().Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, d.client().Teardown(t.Context(), a))
	var operations []string
	for len(operations) < 2 {
		var e struct {
			Type string
			Data struct {
				Operation, ID, Outcome string
				Steps                  []struct{ Step string }
			}
		}
		line, open := <-lines
		require.True(t, open)
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		if e.Type == "operation" && e.Data.Operation != "check" {
			require.NotEmpty(t, e.Data.Steps, line)
			operations = append(operations, e.Data.Operation+" "+e.Data.ID+" "+e.Data.Outcome)
		}
	}
	require.Equal(t, []string{"setup a ok", "teardown a ok"}, operations)
	d.term()
	for range lines {
	}
	require.Error(t, c.Wait())
}
