package server

import (
	"bufio"
	"context"
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

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// dirVariable is the variable that makes the test binary a daemon; its value is the
// daemon's directory.
const dirVariable = "DAEMON_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(dirVariable); dir != "" {
		if err := serveIn(dir); err != nil {
			fmt.Fprintln(os.Stderr, "ended:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveIn runs the daemon. It exchanges events with the test through FIFOs in the
// directory; without a FIFO it does not wait.
func serveIn(dir string) error {
	if there(dir, "impatient") {
		socketPeriod = 10 * time.Millisecond
	}
	l, err := Listen(Socket{Path: dir + "/s", Mode: 0o600})
	if err != nil {
		return err
	}
	o := Options{
		Listener: l, Server: &http.Server{Handler: handler(dir)}, HealthPath: "/healthz",
		Reconcile:     func(context.Context) error { wait(dir, "reconcile"); return nil },
		ReconcileWait: time.Hour, Grace: func() time.Duration { return time.Hour },
		Reload: func(context.Context) error {
			wait(dir, "reload")
			if there(dir, "bad") {
				return errors.New("bad file")
			}
			return nil
		},
		Logger: hclog.New(&hclog.LoggerOptions{Output: os.Stderr}),
		Tasks: []Task{
			{"early", func(context.Context) error { return nil }},
			{"lasting", func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("wrapped: %w", ctx.Err()) }},
		},
	}
	if there(dir, "fail") {
		o.Tasks = append(o.Tasks, Task{"broken", func(context.Context) error { wait(dir, "fail"); return errors.New("is broken") }})
	}
	if there(dir, "hurry") {
		o.ReconcileWait, o.Grace = time.Nanosecond, nil
	}
	if there(dir, "child") {
		if err := inherit(l, filepath.Join(dir, "child")); err != nil {
			return err
		}
	}
	return Run(context.Background(), o)
}

// inherit starts a child that has the daemon's files. It ends when the test writes to the
// FIFO.
func inherit(l *Listener, fifo string) error {
	socket, err := l.File()
	if err != nil {
		return err
	}
	defer socket.Close()
	child := exec.Command("cat", fifo)
	child.ExtraFiles = []*os.File{socket, l.lock}
	return child.Start()
}

func handler(dir string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		announce(dir, "started")
		finished := make(chan struct{})
		go func() { wait(dir, "finish"); close(finished) }()
		select {
		case <-finished:
			fmt.Fprint(w, "finished")
		case <-r.Context().Done():
			wait(dir, "undo")
			fmt.Fprint(w, "undone")
		}
	})
	return mux
}

func there(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// wait returns when the test writes to the FIFO.
func wait(dir, name string) { _, _ = os.ReadFile(filepath.Join(dir, name)) }

// announce returns when the test reads from the FIFO.
func announce(dir, name string) { _ = os.WriteFile(filepath.Join(dir, name), nil, 0) }

// instance is a running daemon.
type instance struct {
	*testing.T
	dir    string
	cmd    *exec.Cmd
	log    *bufio.Scanner
	notify *net.UnixConn
}

// prepare creates the daemon's directory with the given FIFOs.
func prepare(t *testing.T, fifos ...string) *instance {
	t.Helper()
	dir, err := os.MkdirTemp("", "d") // short enough for sockets
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	for _, name := range fifos {
		require.NoError(t, unix.Mkfifo(filepath.Join(dir, name), 0o600))
	}
	i := &instance{T: t, dir: dir}
	i.notify = notifySocket(t, filepath.Join(dir, "notify"))
	return i
}

func notifySocket(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// start runs the daemon, with systemd's variables.
func (i *instance) start(environ ...string) *instance {
	i.Helper()
	i.cmd = exec.Command(os.Args[0])
	i.launch(environ...)
	return i
}

func (i *instance) launch(environ ...string) (log io.Closer) {
	i.Helper()
	i.cmd.Env = append(os.Environ(), dirVariable+"="+i.dir, "NOTIFY_SOCKET="+filepath.Join(i.dir, "notify"), "GORACE=atexit_sleep_ms=0")
	i.cmd.Env = append(i.cmd.Env, environ...)
	stderr, err := i.cmd.StderrPipe()
	require.NoError(i, err)
	i.log = bufio.NewScanner(stderr)
	require.NoError(i, i.cmd.Start())
	cmd := i.cmd
	i.Cleanup(func() { // has an effect only if the test failed
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return stderr
}

// notified returns the next message to systemd.
func (i *instance) notified() string {
	i.Helper()
	buffer := make([]byte, 4096)
	require.NoError(i, i.notify.SetReadDeadline(time.Now().Add(time.Minute)))
	n, err := i.notify.Read(buffer)
	require.NoError(i, err)
	return string(buffer[:n])
}

// silent asserts that there is no further message to systemd.
func (i *instance) silent() {
	i.Helper()
	conn, err := net.Dial("unixgram", filepath.Join(i.dir, "notify"))
	require.NoError(i, err)
	_, err = conn.Write([]byte("MARK=1"))
	require.NoError(i, err)
	require.NoError(i, conn.Close())
	require.Equal(i, "MARK=1", i.notified())
}

// ready starts the daemon and waits until it is ready.
func (i *instance) ready(environ ...string) *instance {
	i.Helper()
	i.start(environ...)
	require.Contains(i, i.notified(), "STATUS=comparing records with the kernel")
	require.Equal(i, "READY=1\nSTATUS=ready", i.notified())
	return i
}

// logged waits for a line of the log.
func (i *instance) logged(part string) string {
	i.Helper()
	for i.log.Scan() {
		if strings.Contains(i.log.Text(), part) {
			return i.log.Text()
		}
	}
	require.Fail(i, "the log ended without: "+part)
	return ""
}

func (i *instance) signal(s syscall.Signal) {
	i.Helper()
	require.NoError(i, i.cmd.Process.Signal(s))
}

// ended waits for the process and asserts its exit code.
func (i *instance) ended(code int) (log string) {
	i.Helper()
	var lines []string
	for i.log.Scan() {
		lines = append(lines, i.log.Text())
	}
	_ = i.cmd.Wait()
	log = strings.Join(lines, "\n")
	require.Equal(i, code, i.cmd.ProcessState.ExitCode(), log)
	return log
}

func (i *instance) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(i.dir, "s"))
		},
	}}
}

func (i *instance) get(path string) (string, error) {
	response, err := i.client().Get("http://x" + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// slowly begins a request and returns a function that waits for its answer.
func (i *instance) slowly() (answer func() string) {
	i.Helper()
	done := make(chan string, 1)
	go func() {
		body, err := i.get("/slow")
		done <- fmt.Sprint(body, err)
	}()
	started := make(chan struct{})
	go func() { wait(i.dir, "started"); close(started) }()
	select {
	case <-started:
	case answer := <-done:
		require.Fail(i, "ended already: "+answer)
	}
	return func() string { return <-done }
}
