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
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/shard"
)

// processVariable is the variable that makes the test binary the daemon.
const processVariable = "ALLOCNET_TEST_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(processVariable) != "" {
		main()
	}
	os.Exit(shard.Main(m, 2, func() int { return privhost.Main(m) }))
}

// workspace is a private host with directories for one daemon.
type workspace struct {
	*testing.T
	dir    string
	prefix []string // a program that runs the daemon
	noFlag bool     // run the daemon without --config
}

func newWorkspace(t *testing.T) *workspace {
	t.Helper()
	privhost.Require(t)
	dir, err := os.MkdirTemp("", "w") // short enough for sockets
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	w := &workspace{T: t, dir: dir}
	for _, name := range []string{"conf", "bin"} {
		require.NoError(t, os.Mkdir(w.path(name), 0o755))
	}
	return w
}

func (w *workspace) path(name string) string { return filepath.Join(w.dir, name) }

// configure writes the daemon's settings: the given ones and the paths of the workspace.
func (w *workspace) configure(more ...string) {
	w.Helper()
	w.write("d.hcl", strings.Join(append([]string{
		`socket { path = "` + w.path("s") + `" }`, `conf_dir = "` + w.path("conf") + `"`,
		`plugin_dirs = ["` + w.path("bin") + `"]`, `state_dir = "` + w.path("state") + `"`,
	}, more...), "\n"))
}

func (w *workspace) write(name, text string) {
	w.Helper()
	require.NoError(w, os.WriteFile(w.path(name), []byte(text), 0o600))
}

func (w *workspace) client() *client.Client { return client.New(client.Config{Socket: w.path("s")}) }

// process is a running daemon.
type process struct {
	*workspace
	cmd    *exec.Cmd
	log    *bufio.Scanner
	notify *net.UnixConn
}

func (w *workspace) command(args ...string) *exec.Cmd {
	line := append(slices.Clone(w.prefix), os.Args[0])
	if !w.noFlag {
		line = append(line, "--config", w.path("d.hcl"))
	}
	line = append(line, args...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), processVariable+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// start starts the daemon and waits until it is ready.
func (w *workspace) start(args ...string) *process {
	w.Helper()
	path := w.path("notify")
	_ = os.Remove(path)
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	require.NoError(w, err)
	p := &process{workspace: w, cmd: w.command(args...), notify: notify}
	p.cmd.Env = append(p.cmd.Env, "NOTIFY_SOCKET="+path)
	stderr, err := p.cmd.StderrPipe()
	require.NoError(w, err)
	p.log = bufio.NewScanner(stderr)
	require.NoError(w, p.cmd.Start())
	w.Cleanup(func() { // has an effect only if the test failed
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		_ = notify.Close()
	})
	p.notified("READY=1")
	return p
}

// notified waits until the daemon sends a state to systemd, and returns the message.
func (p *process) notified(state string) string {
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

// reload reloads the daemon, waits for the end and returns the status after it.
func (p *process) reload() string {
	p.Helper()
	require.NoError(p, p.cmd.Process.Signal(syscall.SIGHUP))
	p.notified("RELOADING=1")
	return strings.TrimPrefix(p.notified("READY=1"), "READY=1\nSTATUS=")
}

func (p *process) logged(part string) string {
	p.Helper()
	late := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() }) // which ends the log
	defer late.Stop()
	for p.log.Scan() {
		if strings.Contains(p.log.Text(), part) {
			return p.log.Text()
		}
	}
	require.Fail(p, "the log ended without: "+part)
	return ""
}

// stop ends the daemon, which must exit with 0, and returns the rest of the log.
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
