package main

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// processVariable makes the test binary the daemon.
const processVariable = "ALLOCNET_TEST_DAEMON"

func TestMain(m *testing.M) {
	fakeplugin.Main()
	if os.Getenv(processVariable) != "" {
		main()
	}
	os.Exit(privhost.Main(m))
}

// world is a host with directories of its own for the daemon.
type world struct {
	*testing.T
	dir    string
	prefix []string // a program that runs the daemon
}

func newWorld(t *testing.T) *world {
	t.Helper()
	privhost.Require(t)
	dir, err := os.MkdirTemp("", "w") // short enough for sockets
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	w := &world{T: t, dir: dir}
	for _, name := range []string{"conf", "bin"} {
		require.NoError(t, os.Mkdir(w.path(name), 0o755))
	}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// configure writes the daemon's file: what is given, and where everything is.
func (w *world) configure(more ...string) {
	w.Helper()
	w.write("d.hcl", strings.Join(append([]string{
		`socket { path = "` + w.path("s") + `" }`, `conf_dir = "` + w.path("conf") + `"`,
		`plugin_dirs = ["` + w.path("bin") + `"]`, `state_dir = "` + w.path("state") + `"`,
	}, more...), "\n"))
}

func (w *world) write(name, text string) {
	w.Helper()
	require.NoError(w, os.WriteFile(w.path(name), []byte(text), 0o600))
}

func (w *world) client() *client.Client { return client.New(client.Config{Socket: w.path("s")}) }

// process is a daemon that runs.
type process struct {
	*world
	cmd    *exec.Cmd
	log    *bufio.Scanner
	notify *net.UnixConn
}

func (w *world) command(args ...string) *exec.Cmd {
	line := append(slices.Clone(w.prefix), os.Args[0], "--config", w.path("d.hcl"))
	line = append(line, args...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), processVariable+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// start waits until the daemon says that it is ready.
func (w *world) start(args ...string) *process {
	w.Helper()
	path := w.path("notify")
	_ = os.Remove(path)
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	require.NoError(w, err)
	p := &process{world: w, cmd: w.command(args...), notify: notify}
	p.cmd.Env = append(p.cmd.Env, "NOTIFY_SOCKET="+path)
	stderr, err := p.cmd.StderrPipe()
	require.NoError(w, err)
	p.log = bufio.NewScanner(stderr)
	require.NoError(w, p.cmd.Start())
	w.Cleanup(func() { // nothing to do unless the test failed
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		_ = notify.Close()
	})
	p.told("READY=1")
	return p
}

// told waits until systemd is told something.
func (p *process) told(state string) string {
	p.Helper()
	buffer := make([]byte, 4096)
	for {
		require.NoError(p, p.notify.SetReadDeadline(time.Now().Add(time.Minute)))
		n, err := p.notify.Read(buffer)
		require.NoError(p, err)
		if got := string(buffer[:n]); strings.HasPrefix(got, state) {
			return got
		}
	}
}

// reload waits for its end, and returns the status after it.
func (p *process) reload() string {
	p.Helper()
	require.NoError(p, p.cmd.Process.Signal(syscall.SIGHUP))
	p.told("RELOADING=1")
	return strings.TrimPrefix(p.told("READY=1"), "READY=1\nSTATUS=")
}

func (p *process) logged(part string) string {
	p.Helper()
	for p.log.Scan() {
		if strings.Contains(p.log.Text(), part) {
			return p.log.Text()
		}
	}
	require.Fail(p, "the log ended without: "+part)
	return ""
}

// stop insists on a good end, and returns the rest of the log.
func (p *process) stop() string {
	p.Helper()
	require.NoError(p, p.cmd.Process.Signal(syscall.SIGTERM))
	var lines []string
	for p.log.Scan() {
		lines = append(lines, p.log.Text())
	}
	require.NoError(p, p.cmd.Wait(), strings.Join(lines, "\n"))
	return strings.Join(lines, "\n")
}

func background() context.Context { return context.Background() }
