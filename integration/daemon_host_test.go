package integration

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
)

// programs builds the daemon, its plugin (also by the name of its type, allocnet)
// and cnitool once, and returns their directory.
var programs = sync.OnceValues(func() (dir string, err error) {
	if !privhost.Inside() {
		return "", errors.New("only inside a private host")
	}
	if dir, err = os.MkdirTemp("", "allocnet-programs-"); err != nil {
		return "", err
	}
	programsDir = dir
	c := exec.Command("go", "build", "-o", dir, "../cmd/allocnetd", "../cmd/allocnet-cni",
		"github.com/containernetworking/cni/cnitool")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%w: %s", err, out)
	}
	c = exec.Command("make", "-C", "..", "shim", "BIN="+dir)
	if out, err := c.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%w: %s", err, out)
	}
	return dir, os.Symlink("allocnet-cni-shim", filepath.Join(dir, "allocnet"))
})

// programsDir is for the end of all tests, which removes it.
var programsDir string

// daemonProcess is allocnetd on a host, which can be started, and ended, many times.
type daemonProcess struct {
	h        *host
	bin      string // where the programs are
	dir      string // of its own, with a short name
	settings string // its file

	cmd    *exec.Cmd
	notify *net.UnixConn
	ended  chan struct{} // closed when it has ended, with err
	err    error
}

// startDaemon starts the daemon with the host's directories and more settings, and
// waits until it is ready. Its socket and its state are where they are by default.
func (h *host) startDaemon(settings string) *daemonProcess {
	h.t.Helper()
	d := h.newDaemon(settings)
	d.begin()
	d.told("READY=1")
	return d
}

// newDaemon is a daemon that does not run yet.
func (h *host) newDaemon(settings string) *daemonProcess {
	h.t.Helper()
	bin, err := programs()
	require.NoError(h.t, err)
	dir, err := os.MkdirTemp("", "d") // short enough for sockets
	require.NoError(h.t, err)
	d := &daemonProcess{h: h, bin: bin, dir: dir, settings: filepath.Join(dir, "allocnetd.hcl")}
	h.t.Cleanup(func() {
		d.end()
		if h.t.Failed() {
			h.t.Logf("the daemon said:\n%s", d.log())
		}
		require.NoError(h.t, os.RemoveAll(dir))
	})
	d.configure(settings)
	return d
}

// configure writes the settings.
func (d *daemonProcess) configure(more string) {
	d.h.t.Helper()
	text := fmt.Sprintf("conf_dir = %q\nplugin_dirs = [%q]\n%s\n", d.h.conf, pluginDir, more)
	require.NoError(d.h.t, os.WriteFile(d.settings, []byte(text), 0o600))
}

// begin starts the daemon and does not wait.
func (d *daemonProcess) begin() {
	d.h.t.Helper()
	path := filepath.Join(d.dir, "notify")
	_ = os.Remove(path)
	var err error
	d.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	require.NoError(d.h.t, err)
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(d.h.t, err)
	defer log.Close()
	d.cmd = exec.Command(filepath.Join(d.bin, "allocnetd"), "--config", d.settings)
	d.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+path)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.ended = make(chan struct{})
	started := make(chan error)
	go func() {
		// The death signal is bound to the thread that starts it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		started <- err
		if err == nil {
			d.err = d.cmd.Wait()
			close(d.ended)
		}
	}()
	require.NoError(d.h.t, <-started)
}

// told waits until systemd is told something, and returns all of it.
func (d *daemonProcess) told(state string) string {
	d.h.t.Helper()
	buffer := make([]byte, 4096)
	for {
		require.NoError(d.h.t, d.notify.SetReadDeadline(time.Now().Add(time.Minute)))
		n, err := d.notify.Read(buffer)
		if err != nil {
			_ = d.cmd.Process.Signal(syscall.SIGQUIT) // it logs where it is
			_ = d.wait()
		}
		require.NoError(d.h.t, err, "wait for %s of the daemon", state)
		if got := string(buffer[:n]); strings.HasPrefix(got, state) {
			return got
		}
	}
}

// reload has the settings read again, and returns the status after it.
func (d *daemonProcess) reload() string {
	d.h.t.Helper()
	require.NoError(d.h.t, d.cmd.Process.Signal(syscall.SIGHUP))
	d.told("RELOADING=1")
	return strings.TrimPrefix(d.told("READY=1"), "READY=1\nSTATUS=")
}

// client asks the daemon.
func (d *daemonProcess) client() *client.Client { return client.New(client.Config{}) }

// pid is that of the process.
func (d *daemonProcess) pid() int { return d.cmd.Process.Pid }

// wait waits for the end of the process.
func (d *daemonProcess) wait() error {
	<-d.ended
	_ = d.notify.Close()
	return d.err
}

// kill ends the daemon as a crash would.
func (d *daemonProcess) kill() {
	d.h.t.Helper()
	require.NoError(d.h.t, d.cmd.Process.Kill())
	require.ErrorContains(d.h.t, d.wait(), "killed")
}

// term ends the daemon as systemd does, and insists on a good end.
func (d *daemonProcess) term() {
	d.h.t.Helper()
	require.NoError(d.h.t, d.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(d.h.t, d.wait(), "the daemon said:\n%s", d.log())
}

// restart ends the daemon and starts it again, until it is ready.
func (d *daemonProcess) restart() {
	d.h.t.Helper()
	d.term()
	d.begin()
	d.told("READY=1")
}

// end sees to it that it does not run.
func (d *daemonProcess) end() {
	if d.cmd == nil {
		return
	}
	select {
	case <-d.ended:
		return
	default:
	}
	if d.h.t.Failed() {
		_ = d.cmd.Process.Kill()
		_ = d.wait()
		return
	}
	d.term()
}

// log is what all its processes have said.
func (d *daemonProcess) log() string {
	data, err := os.ReadFile(filepath.Join(d.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// pluginConfig is a configuration of the plugin, as a runtime hands it over.
func (d *daemonProcess) pluginConfig(more map[string]any) []byte {
	d.h.t.Helper()
	keys := map[string]any{
		"cniVersion": "1.1.0", "name": "runtime", "type": "allocnet", "settings": d.settings,
		"capabilities": map[string]bool{"portMappings": true},
	}
	maps.Copy(keys, more)
	data, err := json.Marshal(keys)
	require.NoError(d.h.t, err)
	return data
}

// plugin calls the plugin, for eth0, and returns its result; an error of its own
// is a *types.Error.
func (d *daemonProcess) plugin(command, container, netns string, config []byte) ([]byte, error) {
	return d.run(pluginProgram, command, container, netns, config)
}

// pluginProgram is the plugin as runtimes start it; allocnet-cni is the one that it
// becomes.
const pluginProgram = "allocnet"

func (d *daemonProcess) run(program, command, container, netns string, config []byte) ([]byte, error) {
	c := exec.Command(filepath.Join(d.bin, program))
	c.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+container,
		"CNI_NETNS="+netns, "CNI_IFNAME=eth0", "CNI_PATH="+pluginDir)
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

// procStatus is a number in a line of /proc/PID/status, such as VmHWM (in kB) or
// Threads.
func (d *daemonProcess) procStatus(key string) int {
	d.h.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid()))
	require.NoError(d.h.t, err)
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			var n int
			_, err := fmt.Sscan(value, &n)
			require.NoError(d.h.t, err)
			return n
		}
	}
	require.Fail(d.h.t, "no such line: "+key)
	return 0
}

// TestDaemonRig starts, kills, restarts and ends a daemon with an allocation of each
// way in.
func TestDaemonRig(t *testing.T) {
	h := newHost(t, native.engine)
	h.network("net", chain("bridge", dual, "")...)
	d := h.startDaemon(`networks = ["net"]`)
	a, b := h.alloc("a"), h.alloc("b")
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
