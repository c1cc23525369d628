package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/privhost"
	"github.com/allocnet/allocnet/internal/testing/programs"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// installed has the daemon, its plugin (also under the name of its type, allocnet) and cnitool, and in cli the
// command line, whose name is the plugin's.
var installed = sync.OnceValues(func() (dir string, err error) {
	if !privhost.Inside() {
		return "", errors.New("only inside a private host")
	}
	if dir, err = os.MkdirTemp("", "allocnet-programs-"); err != nil {
		return "", err
	}
	programsDir = dir
	return dir, errors.Join(
		programs.Copy(dir, "allocnetd", "allocnet-cni", "allocnet-cni-shim", "cnitool"),
		os.Symlink("allocnet-cni-shim", filepath.Join(dir, "allocnet")),
		os.Mkdir(filepath.Join(dir, "cli"), 0o755),
		programs.Copy(filepath.Join(dir, "cli"), "allocnet"),
	)
})

// programsDir is removed at the end of all tests.
var programsDir string

// daemonProcess is an allocnetd on a host. It can be started and ended several
// times.
type daemonProcess struct {
	h        *host
	bin      string // directory of the programs
	dir      string // directory of this daemon, with a short name
	settings string // path of the settings file

	cmd    *exec.Cmd
	notify *net.UnixConn
	ended  chan struct{} // closed when the process has ended and err is set
	err    error
}

// startDaemon starts the daemon with the host's directories and additional
// settings, and waits until it is ready. Its socket and its state directory
// have the default paths.
func (h *host) startDaemon(settings string) *daemonProcess {
	h.T.Helper()
	d := h.newDaemon(settings)
	d.begin()
	d.told("READY=1")
	return d
}

// newDaemon returns a daemon that is not started yet.
func (h *host) newDaemon(settings string) *daemonProcess {
	h.T.Helper()
	bin, err := installed()
	require.NoError(h.T, err)
	dir, err := os.MkdirTemp("", "d") // a socket's path must be short
	require.NoError(h.T, err)
	d := &daemonProcess{h: h, bin: bin, dir: dir, settings: filepath.Join(dir, "allocnetd.hcl")}
	h.T.Cleanup(func() {
		d.end()
		if h.T.Failed() {
			h.T.Logf("the daemon said:\n%s", d.log())
		}
		require.NoError(h.T, os.RemoveAll(dir))
	})
	d.configure(settings)
	return d
}

// configure writes the settings.
func (d *daemonProcess) configure(more string) {
	d.h.T.Helper()
	text := fmt.Sprintf("conf_dir = %q\nplugin_dirs = [%q]\n%s\n", d.h.ConfDir, testbed.PluginDir, more)
	require.NoError(d.h.T, os.WriteFile(d.settings, []byte(text), 0o600))
}

// begin starts the daemon without waiting until it is ready.
func (d *daemonProcess) begin() {
	d.h.T.Helper()
	path := filepath.Join(d.dir, "notify")
	_ = os.Remove(path)
	var err error
	d.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	require.NoError(d.h.T, err)
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(d.h.T, err)
	defer log.Close()
	d.cmd = exec.Command(filepath.Join(d.bin, "allocnetd"), "--config", d.settings)
	d.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+path)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.ended = make(chan struct{})
	started := make(chan error)
	go func() {
		// The kernel sends the parent death signal when the thread that started
		// the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		started <- err
		if err == nil {
			d.err = d.cmd.Wait()
			close(d.ended)
		}
	}()
	require.NoError(d.h.T, <-started)
}

// told waits until the daemon sends a state to systemd, and returns all states
// so far.
func (d *daemonProcess) told(state string) string {
	d.h.T.Helper()
	buffer := make([]byte, 4096)
	for {
		require.NoError(d.h.T, d.notify.SetReadDeadline(time.Now().Add(time.Minute)))
		n, err := d.notify.Read(buffer)
		if err != nil {
			_ = d.cmd.Process.Signal(syscall.SIGQUIT) // the daemon logs its stacks
			_ = d.wait()
		}
		require.NoError(d.h.T, err, "wait for %s of the daemon", state)
		if got := string(buffer[:n]); strings.HasPrefix(got, state) {
			return got
		}
	}
}

// reload makes the daemon reload its settings, and returns its status after
// that.
func (d *daemonProcess) reload() string {
	d.h.T.Helper()
	require.NoError(d.h.T, d.cmd.Process.Signal(syscall.SIGHUP))
	d.told("RELOADING=1")
	return strings.TrimPrefix(d.told("READY=1"), "READY=1\nSTATUS=")
}

// client returns a client of the daemon.
func (d *daemonProcess) client() *client.Client { return client.New(client.Config{}) }

// pid returns the daemon's process ID.
func (d *daemonProcess) pid() int { return d.cmd.Process.Pid }

// wait waits for the end of the process.
func (d *daemonProcess) wait() error {
	<-d.ended
	_ = d.notify.Close()
	return d.err
}

// kill ends the daemon without a shutdown, as a crash does.
func (d *daemonProcess) kill() {
	d.h.T.Helper()
	require.NoError(d.h.T, d.cmd.Process.Kill())
	require.ErrorContains(d.h.T, d.wait(), "killed")
}

// term ends the daemon as systemd does, and requires a clean exit.
func (d *daemonProcess) term() {
	d.h.T.Helper()
	require.NoError(d.h.T, d.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(d.h.T, d.wait(), "the daemon said:\n%s", d.log())
}

// restart ends the daemon, starts it again and waits until it is ready.
func (d *daemonProcess) restart() {
	d.h.T.Helper()
	d.term()
	d.begin()
	d.told("READY=1")
}

// end ends the daemon if it runs.
func (d *daemonProcess) end() {
	if d.cmd == nil {
		return
	}
	select {
	case <-d.ended:
		return
	default:
	}
	if d.h.T.Failed() {
		_ = d.cmd.Process.Kill()
		_ = d.wait()
		return
	}
	d.term()
}

// log returns the log of all its processes.
func (d *daemonProcess) log() string {
	data, err := os.ReadFile(filepath.Join(d.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// pluginConfig returns a configuration of the plugin, as a runtime passes it.
func (d *daemonProcess) pluginConfig(more map[string]any) []byte {
	d.h.T.Helper()
	keys := map[string]any{
		"cniVersion": "1.1.0", "name": "runtime", "type": "allocnet", "settings": d.settings,
		"capabilities": map[string]bool{"portMappings": true},
	}
	maps.Copy(keys, more)
	data, err := json.Marshal(keys)
	require.NoError(d.h.T, err)
	return data
}

// plugin calls the plugin for eth0 and returns its result. A CNI error is a
// *types.Error.
func (d *daemonProcess) plugin(command, container, netns string, config []byte) ([]byte, error) {
	return d.run(pluginProgram, command, container, netns, config)
}

// pluginProgram is the name of the plugin that runtimes start. It executes
// allocnet-cni for requests that it does not serve itself.
const pluginProgram = "allocnet"

func (d *daemonProcess) run(program, command, container, netns string, config []byte) ([]byte, error) {
	c := exec.Command(filepath.Join(d.bin, program))
	c.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+container,
		"CNI_NETNS="+netns, "CNI_IFNAME=eth0", "CNI_PATH="+testbed.PluginDir)
	c.Stdin = bytes.NewReader(config)
	var errOut bytes.Buffer
	c.Stderr = &errOut
	out, err := c.Output()
	if err == nil {
		return out, nil
	}
	coded := &types.Error{}
	if json.Unmarshal(out, coded) != nil || coded.Code == 0 {
		return nil, fmt.Errorf("%s %s: %w: %s%s", command, container, err, out, errOut.Bytes())
	}
	return nil, coded
}

// procStatus returns a number from /proc/PID/status, such as VmHWM (in kB) or
// Threads.
func (d *daemonProcess) procStatus(key string) int {
	d.h.T.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid()))
	require.NoError(d.h.T, err)
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			var n int
			_, err := fmt.Sscan(value, &n)
			require.NoError(d.h.T, err)
			return n
		}
	}
	require.Fail(d.h.T, "no such line: "+key)
	return 0
}

// TestDaemonRig starts, kills, restarts and ends a daemon, with one allocation
// made through each of its interfaces.
func TestDaemonRig(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	d := h.startDaemon(`networks = ["net"]`)
	a, b := h.Alloc("a"), h.Alloc("b")
	_, err := d.client().Setup(t.Context(), a)
	require.NoError(t, err)
	out, err := d.plugin("ADD", b.ID, b.Netns, d.pluginConfig(nil))
	require.NoError(t, err)
	require.Contains(t, string(out), "10.99.0.3/24")
	d.kill()
	d.begin()
	d.told("READY=1")
	require.NoError(t, d.client().Check(t.Context(), a))
	require.Equal(t, "ready", d.reload())
	d.restart()
	require.Positive(t, d.procStatus("VmHWM"))
	_, err = d.plugin("DEL", b.ID, b.Netns, d.pluginConfig(nil))
	require.NoError(t, err)
	_, err = d.plugin("ADD", b.ID, b.Netns, d.pluginConfig(map[string]any{"delegate": "none"}))
	var coded *types.Error
	require.ErrorAs(t, err, &coded)
	require.NoError(t, d.client().Teardown(t.Context(), a))
}
