package crash

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/faultinject"
	"github.com/allocnet/allocnet/internal/testing/programs"
)

// daemon is an allocnetd that runs as a process under test.
type daemon struct {
	*faultinject.Process
	h        *host
	program  string
	settings string
	notify   *net.UnixConn
	log      *os.File
}

func newDaemon(h *host) *daemon {
	h.t.Helper()
	program := programs.Path(h.t, "allocnetd")
	dir, err := os.MkdirTemp("", "d") // a socket's path must be short
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, os.RemoveAll(dir)) })
	d := &daemon{h: h, program: program, settings: filepath.Join(dir, "allocnetd.hcl")}
	text := fmt.Sprintf("conf_dir = %q\nplugin_dirs = [%q]\nnetworks = [\"net\"]\nengine = %q\nlog { level = \"warn\" }\n", h.conf, pluginDir, h.cell.engine)
	require.NoError(h.t, os.WriteFile(d.settings, []byte(text), 0o600))
	d.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: filepath.Join(dir, "notify")})
	require.NoError(h.t, err)
	d.log, err = os.Create(filepath.Join(dir, "log"))
	require.NoError(h.t, err)
	h.t.Cleanup(func() {
		d.end()
		if h.t.Failed() {
			said, _ := os.ReadFile(d.log.Name())
			h.t.Logf("the daemon said:\n%s", said)
		}
		require.NoError(h.t, errors.Join(d.notify.Close(), d.log.Close()))
	})
	return d
}

// begin starts the daemon without waiting until it is ready.
func (d *daemon) begin(decide faultinject.Decide) {
	d.h.t.Helper()
	cmd := faultinject.Command(d.program, "--config", d.settings)
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+d.notify.LocalAddr().String())
	cmd.Stdout, cmd.Stderr = d.log, d.log
	var err error
	d.Process, err = faultinject.Start(cmd, decide)
	require.NoError(d.h.t, err)
}

// ready waits until the daemon reports that it has recovered and serves
// requests.
func (d *daemon) ready() {
	d.h.t.Helper()
	require.NoError(d.h.t, d.notify.SetReadDeadline(time.Now().Add(time.Minute)))
	var buffer [4096]byte
	for {
		n, err := d.notify.Read(buffer[:])
		require.NoError(d.h.t, err)
		if strings.HasPrefix(string(buffer[:n]), "READY=1") {
			return
		}
	}
}

// died waits for the end of a killed daemon.
func (d *daemon) died() {
	d.h.t.Helper()
	require.ErrorContains(d.h.t, d.Wait(), "killed")
	(&run{Process: d.Process}).requireGone(d.h.t)
}

// end ends the daemon if it runs.
func (d *daemon) end() {
	if d.Process != nil {
		_ = d.Kill()
		_ = d.Wait()
		<-d.Gone()
	}
}

// daemonOperation is a request to the daemon.
type daemonOperation struct {
	name    string
	prepare func(h *host)
	request func(context.Context, *client.Client, configurator.Allocation) error
}

func setupByDaemon(ctx context.Context, c *client.Client, a configurator.Allocation) error {
	_, err := c.Setup(ctx, a)
	return err
}

// daemonCells are the cells of make test.
var daemonCells = []cell{{engine: "native", main: "bridge"}}

var daemonOperations = []daemonOperation{
	{"setup", func(*host) {}, setupByDaemon},
	{"setup again", func(h *host) { h.mustSetUp(h.a); h.unplug() }, setupByDaemon},
	{"teardown", func(h *host) { h.mustSetUp(h.a); h.requireReachable(h.a) },
		func(ctx context.Context, c *client.Client, a configurator.Allocation) error {
			return c.Teardown(ctx, a)
		}},
	{"repair", func(h *host) { h.mustSetUp(h.a); h.flush() },
		func(ctx context.Context, c *client.Client, _ configurator.Allocation) error {
			_, err := c.Repair(ctx)
			return err
		}},
	{"gc", func(h *host) { h.mustSetUp(h.a) },
		func(ctx context.Context, c *client.Client, _ configurator.Allocation) error {
			_, err := c.GC(ctx, []string{bystanderID})
			return err
		}},
}

// TestDaemonKilledAtEveryPoint kills the daemon before every change that a
// request causes, and before its response. The next daemon removes what is left
// or, if the allocation was complete, keeps it.
func TestDaemonKilledAtEveryPoint(t *testing.T) {
	eachPart(t, campaign(combine(daemonCells, groups...), groups...), testDaemonKilledAtEveryPoint)
}

func testDaemonKilledAtEveryPoint(t *testing.T, p part) {
	h := newHost(t, p.cell)
	for _, o := range daemonOperations {
		if !p.has(o.name) {
			continue
		}
		t.Run(o.name, func(t *testing.T) {
			d := newDaemon(h.in(t))
			d.begin(nil)
			d.ready()
			d.h.before = d.h.snapshot()
			for at := 1; d.killAt(&o, at); at += distance() {
			}
		})
	}
}

// killAt kills the daemon at one point of a request. It returns false if the
// request has fewer points.
func (d *daemon) killAt(o *daemonOperation, at int) (killed bool) {
	d.h.t.Helper()
	o.prepare(d.h)
	d.Arm(func(n int, _ faultinject.Point) faultinject.Verdict { return faultinject.Verdict{Kill: n == at} })
	err := o.request(d.h.ctx(), client.New(client.Config{}), d.h.a)
	killed = d.Killed()
	points := d.Points()
	if killed {
		d.died()
		d.begin(nil)
		d.ready()
	} else {
		d.Arm(nil)
		require.NoError(d.h.t, err)
		d.h.t.Logf("%d points: %v", len(points), points)
	}
	d.h.restart()
	d.requireWholeOrNothing(fmt.Sprintf("%s, killed at point %d of %v", o.name, at, points))
	return killed && !d.h.t.Failed()
}

// requireWholeOrNothing checks that the allocation is complete or has no
// record, and removes it. Without a record, stale reservations may exist, which
// must not delay anything.
func (d *daemon) requireWholeOrNothing(after string) {
	d.h.t.Helper()
	c := client.New(client.Config{})
	d.h.settle()
	if r, err := d.h.Get(d.h.ctx(), d.h.a.ID); err == nil {
		require.Equal(d.h.t, configurator.PhaseReady, r.Phase, after)
		require.NoError(d.h.t, setupByDaemon(d.h.ctx(), c, d.h.a), after)
		d.h.requireReachable(d.h.a)
	}
	require.NoError(d.h.t, c.Teardown(d.h.ctx(), d.h.a), after)
	d.h.requireNothing()
}

// TestDaemonKilledWhileItStarts kills the daemon at every point of a start at
// which it has something to recover. The next daemon completes the recovery.
func TestDaemonKilledWhileItStarts(t *testing.T) {
	start := []string{"start"}
	eachPart(t, campaign(combine(daemonCells, start), start), testDaemonKilledWhileItStarts)
}

func testDaemonKilledWhileItStarts(t *testing.T, p part) {
	h := newHost(t, p.cell)
	d := newDaemon(h)
	d.begin(nil)
	d.ready()
	h.before = h.snapshot()
	require.NoError(t, d.Kill())
	d.died()
	for at := 1; !t.Failed(); at += distance() {
		h.crashBeforeReady()
		d.begin(func(n int, _ faultinject.Point) faultinject.Verdict { return faultinject.Verdict{Kill: n == at} })
		if !d.endsAtPoint() {
			break
		}
		d.died()
		d.begin(nil)
		d.ready()
		d.requireWholeOrNothing(fmt.Sprintf("killed at point %d of its start", at))
		require.NoError(t, d.Kill())
		d.died()
	}
	d.requireWholeOrNothing("not killed")
}

// endsAtPoint waits until the daemon is killed or ready, and reports which.
func (d *daemon) endsAtPoint() bool {
	d.h.t.Helper()
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		var buffer [4096]byte
		for {
			n, err := d.notify.Read(buffer[:])
			if err != nil || strings.HasPrefix(string(buffer[:n]), "READY=1") {
				return
			}
		}
	}()
	require.NoError(d.h.t, d.notify.SetReadDeadline(time.Now().Add(time.Minute)))
	select {
	case <-ready:
	case <-d.Gone():
		require.NoError(d.h.t, d.notify.SetReadDeadline(time.Now()))
		<-ready
	}
	d.Arm(nil)
	return d.Killed()
}
