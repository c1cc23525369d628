package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/faultinject"
)

// requestVariable makes the test binary run one operation under fault
// injection.
const requestVariable = "ALLOCNET_TEST_REQUEST"

// answerFD is the descriptor to which the operation's result is written: the
// first of ExtraFiles.
const answerFD = 3

// request is an operation that runs in its own process.
type request struct {
	Operation  string // setup, update, limit, teardown, background, repair, recover or gc
	Engine     configurator.Engine
	Conf       string
	Plugins    []string
	Allocation configurator.Allocation
	Live       []string // for gc
}

// answer is the result of an operation.
type answer struct {
	Error      string
	Incomplete bool // whether the error is ErrIncomplete
}

// configuratorOf returns the configurator for a request, configured as by a
// library user.
func configuratorOf(r *request, log hclog.Logger) (*configurator.Configurator, error) {
	libcni.CacheDir = "/var/lib/cni"
	backlog := -1
	if r.Operation == "background" { // a teardown that leaves the deletion of links to it
		backlog = configurator.DefaultBacklog
	}
	return configurator.New(configurator.Config{
		Backlog: backlog, Engine: r.Engine, ConfDir: r.Conf, PluginDirs: r.Plugins, Network: "net", Logger: log,
		Retry: configurator.RetryPolicy{Attempts: 2, Delay: time.Millisecond},
	})
}

// operate runs the requested operation and exits.
func operate() {
	unix.CloseOnExec(answerFD)
	var r request
	err := json.Unmarshal([]byte(os.Getenv(requestVariable)), &r)
	c, newErr := configuratorOf(&r, hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Warn}))
	if err := errors.Join(err, newErr, faultinject.Enter()); err != nil {
		panic(err)
	}
	err = r.run(c)
	var a answer
	if err != nil {
		a = answer{Error: err.Error(), Incomplete: errors.Is(err, configurator.ErrIncomplete)}
	}
	text, err := json.Marshal(a)
	if err == nil {
		_, err = os.NewFile(answerFD, "answer").Write(text)
	}
	if err != nil {
		panic(err)
	}
	os.Exit(0)
}

func (r *request) run(c *configurator.Configurator) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch r.Operation {
	case "setup":
		_, err := c.Setup(ctx, r.Allocation)
		return err
	case "update":
		_, err := c.Update(ctx, r.Allocation.ID, change(r.Allocation))
		return err
	case "limit":
		_, err := c.Update(ctx, r.Allocation.ID, newLimits(r.Allocation))
		return err
	case attach:
		_, err := c.Attach(ctx, r.Allocation.ID, moreNetwork, configurator.AttachOptions{})
		return err
	case detach:
		_, err := c.Detach(ctx, r.Allocation.ID, "eth1", "")
		return err
	case "teardown":
		return c.Teardown(ctx, r.Allocation)
	case "background":
		return errors.Join(c.Teardown(ctx, r.Allocation), c.Close())
	case "repair":
		_, err := c.Repair(ctx)
		return err
	case "recover":
		_, err := c.Recover(ctx)
		return err
	case "gc":
		_, err := c.GC(ctx, r.Live)
		return err
	}
	return fmt.Errorf("no such operation: %q", r.Operation)
}

// run is an operation whose process has ended.
type run struct {
	*faultinject.Process
	answer *answer // nil if it was killed before its answer
	stderr string
}

// start runs an operation in its own process and waits until that process ends.
// Its descendants may still run: see requireGone.
func start(t testing.TB, r *request, decide faultinject.Decide) *run {
	t.Helper()
	text, err := json.Marshal(r)
	require.NoError(t, err)
	answers, answerEnd := socketPair(t)
	defer answers.Close()
	stderr, err := os.CreateTemp(t.TempDir(), "stderr")
	require.NoError(t, err)
	defer stderr.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), requestVariable+"="+string(text))
	cmd.ExtraFiles = []*os.File{answerEnd}
	cmd.Stdout, cmd.Stderr = stderr, stderr
	p, err := faultinject.Start(cmd, decide)
	require.NoError(t, errors.Join(err, answerEnd.Close()))
	waitErr := p.Wait()
	said, err := os.ReadFile(stderr.Name())
	require.NoError(t, err)
	ended := &run{Process: p, stderr: string(said)}
	if p.Killed() {
		require.ErrorContains(t, waitErr, "killed")
		return ended
	}
	require.NoError(t, waitErr, "the process said:\n%s", said)
	ended.answer = &answer{}
	require.NoError(t, json.NewDecoder(answers).Decode(ended.answer))
	return ended
}

// socketPair returns two connected sockets for the answer. They are no pipe, because
// a write to a pipe counts as input of a plugin.
func socketPair(t testing.TB) (in, out *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	return os.NewFile(uintptr(fds[0]), "answers"), os.NewFile(uintptr(fds[1]), "answer")
}

// requireGone waits until the process and all its descendants have ended.
func (r *run) requireGone(t testing.TB) {
	t.Helper()
	select {
	case <-r.Gone():
	case <-time.After(20 * time.Second):
		t.Fatal("what the process started was forgotten, and runs")
	}
	require.NoError(t, r.Err())
}
