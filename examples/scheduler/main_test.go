package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// modeVariable makes the test binary run the program, or die while it sets up a task.
const modeVariable = "SCHEDULER_TEST_MODE"

func TestMain(m *testing.M) {
	switch os.Getenv(modeVariable) {
	case "program":
		main()
	case "die":
		dieInSetup("web-0")
	default:
		os.Exit(privhost.Main(m))
	}
}

func TestScheduler(t *testing.T) {
	h := newHost(t)
	listener, err := net.Listen("tcp", ":20000")
	require.NoError(t, err)
	defer listener.Close()

	h.write(`{"db": 1, "web": 2}`)
	scheduler := h.start()
	web0, web1, db0 := h.answer("web-0"), h.answer("web-1"), h.answer("db-0")
	for _, r := range h.records() {
		require.NotEqual(t, 20000, r.Ports[0].HostPort, "a process of the host listens on it")
	}

	web1.kill(t)
	require.Equal(t, web1.network(), h.another("web-1", web1).network(), "a task that ended starts again in the same network")

	kill(t, scheduler)
	db0.kill(t)
	web1 = h.answer("web-1")
	scheduler = h.start()
	require.Equal(t, db0.network(), h.another("db-0", db0).network())
	require.Equal(t, web0, h.answer("web-0"), "a task that runs is kept")
	require.Equal(t, web1, h.answer("web-1"), "a task that runs is kept")

	h.write(`{"cron": 3, "web": 1}`)
	h.eventually(func() bool { return h.ids() == "cron-0 cron-1 web-0" }, "the host has three slots")
	require.Equal(t, web0, h.answer("web-0"))
	h.answer("cron-0")

	h.write(`{`)
	h.eventually(func() bool { return strings.Contains(h.log(), "unexpected end of JSON input") }, "an invalid file is reported")
	require.Equal(t, web0, h.answer("web-0"), "and stops nothing")

	h.write(`{}`)
	h.eventually(func() bool { return h.ids() == "" }, "what the file does not name is removed")
	h.eventually(func() bool { return !web0.alive() }, "its processes end, too")
	require.NoError(t, scheduler.Process.Signal(syscall.SIGTERM))
	require.NoError(t, scheduler.Wait())
	require.Equal(t, 1, strings.Count(h.log(), "start web-0:"), "it was started once")
}

// TestRecover: what a killed scheduler had only begun is removed before it is made again.
func TestRecover(t *testing.T) {
	h := newHost(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), modeVariable+"=die")
	require.ErrorContains(t, cmd.Run(), "killed")
	require.Equal(t, allocnet.PhaseAdding, h.records()[0].Phase)

	h.write(`{"web": 1}`)
	h.start()
	h.answer("web-0")
	require.Contains(t, h.log(), `recovered ["web-0"]`)
}

// dieInSetup kills the process when the network of a task exists, before that is recorded.
func dieInSetup(id string) {
	nets, err := configurator.New(configurator.Config{Network: "allocnet", Observer: killer{}})
	if err != nil {
		log.Fatal(err)
	}
	_, err = (&scheduler{nets: nets}).setUp(context.Background(), id, 20000)
	log.Fatal(err)
}

type killer struct{}

func (killer) Begin(ctx context.Context, _ allocnet.Step) context.Context { return ctx }
func (killer) End(_ context.Context, s allocnet.Step, _ error) {
	if s.Name == allocnet.StepAdd {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

func TestPlace(t *testing.T) {
	require.Equal(t, []string{"b", "a"}, place([]string{"a", "b", "c"}, map[string]int{"b": 1}, 2))
	require.Equal(t, []string{"b"}, place([]string{"a", "b"}, map[string]int{"b": 1}, 0), "a running task stays")
	require.Equal(t, []string{"a"}, place([]string{"a"}, nil, 2))
}

// snapshotOptions ignores what the first use of the network leaves on purpose.
var snapshotOptions = hostsnap.Options{Persistent: true, Ignore: func(line string) bool {
	return strings.HasPrefix(line, "file "+configurator.DefaultStateDir+"/")
}}

// host is the private host of a test. It is as before at the end.
type host struct {
	t          *testing.T
	nets       *configurator.Configurator
	jobs, logs string
}

func newHost(t *testing.T) *host {
	privhost.Require(t)
	before, err := hostsnap.Take(snapshotOptions)
	require.NoError(t, err)
	nets, err := configurator.New(configurator.Config{Network: "allocnet"})
	require.NoError(t, err)
	dir := t.TempDir()
	h := &host{t, nets, filepath.Join(dir, "jobs.json"), filepath.Join(dir, "log")}
	t.Cleanup(func() {
		h.removeAll()
		require.NoError(t, nets.Close())
		after, err := hostsnap.Take(snapshotOptions)
		require.NoError(t, err)
		require.Empty(t, hostsnap.Diff(before, after), "nothing is left")
	})
	return h
}

// removeAll stops all tasks and removes their networks.
func (h *host) removeAll() {
	for _, r := range h.records() {
		require.NoError(h.t, stop(r.Netns))
	}
	_, err := h.nets.GCScope(context.Background(), allocnet.Scope{Name: scope, DestroyNetns: true})
	require.NoError(h.t, err)
}

// write writes the file with the jobs, as a whole.
func (h *host) write(jobs string) {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(h.jobs+".new", []byte(jobs), 0o600))
	require.NoError(h.t, os.Rename(h.jobs+".new", h.jobs))
}

func (h *host) log() string {
	h.t.Helper()
	text, err := os.ReadFile(h.logs)
	require.NoError(h.t, err)
	return string(text)
}

// start starts the scheduler.
func (h *host) start() *exec.Cmd {
	h.t.Helper()
	out, err := os.OpenFile(h.logs, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(h.t, err)
	defer out.Close()
	cmd := exec.Command("/proc/self/exe", "-jobs", h.jobs, "-slots", "3", "-interval", "20ms")
	cmd.Env = append(os.Environ(), modeVariable+"=program")
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(h.t, cmd.Start())
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if h.t.Failed() {
			h.t.Log(h.log())
		}
	})
	return cmd
}

func kill(t *testing.T, scheduler *exec.Cmd) {
	t.Helper()
	require.NoError(t, scheduler.Process.Kill())
	require.ErrorContains(t, scheduler.Wait(), "killed")
}

func (h *host) records() []allocnet.Record {
	h.t.Helper()
	records, err := h.nets.List(context.Background())
	require.NoError(h.t, err)
	return records
}

// ids returns the IDs of all allocations that are not being deleted.
func (h *host) ids() string {
	h.t.Helper()
	var ids []string
	for _, r := range h.records() {
		if r.Phase != allocnet.PhaseDeleting {
			ids = append(ids, r.ID)
		}
	}
	return strings.Join(ids, " ")
}

func (h *host) eventually(condition func() bool, what string) {
	h.t.Helper()
	require.Eventually(h.t, condition, 20*time.Second, 5*time.Millisecond, what)
}

// running is a task that answers, and its network.
type running struct{ pid, hostPort, address string }

// network returns what stays the same when the task starts again.
func (r running) network() string { return r.hostPort + " " + r.address }

// alive reports whether the process exists and is not a zombie.
func (r running) alive() bool {
	_, err := os.Readlink("/proc/" + r.pid + "/exe")
	return err == nil
}

func (r running) kill(t *testing.T) {
	t.Helper()
	pid, err := strconv.Atoi(r.pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// answer waits until the task answers at its host port.
func (h *host) answer(id string) running {
	h.t.Helper()
	return h.another(id, running{})
}

// another waits until another process of the task answers.
func (h *host) another(id string, old running) (now running) {
	h.t.Helper()
	h.eventually(func() bool {
		r, err := h.nets.Get(h.t.Context(), id)
		if err != nil || r.Status == nil {
			return false
		}
		now.hostPort, now.address = strconv.Itoa(r.Ports[0].HostPort), r.Status.Address
		client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://127.0.0.1:" + now.hostPort)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		var name string
		_, err = fmt.Fscan(response.Body, &name, &now.pid)
		return err == nil && name == id && now.pid != old.pid
	}, id+" answers")
	return now
}
