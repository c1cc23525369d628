package confmanager

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// rig is a manager that runs on real directories. Its bursts are short, and it
// looks only after an event.
type rig struct {
	*Manager
	t     *testing.T
	dir   string // directory of the test; net.d in it is the configuration directory
	log   *logBuffer
	looks *atomic.Int64 // number of looks for a primary network
	stop  func()
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// newRig creates the manager without running it.
func newRig(t *testing.T, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), log: &logBuffer{}, looks: &atomic.Int64{}}
	r.mkdir("net.d")
	o := Options{
		ConfDir: r.path("net.d"),
		Logger:  hclog.New(&hclog.LoggerOptions{Output: r.log, DisableTime: true}),
		Usable:  func(*conflist.Network) error { r.looks.Add(1); return nil },
	}
	for _, c := range change {
		c(&o)
	}
	m, err := New(o)
	require.NoError(t, err)
	r.Manager = m
	m.timer = shortTimer
	return r
}

// shortTimer makes bursts short, and never fires without an event.
func shortTimer(d time.Duration) (<-chan time.Time, func() bool) {
	if d == rescan || d == retry {
		return nil, func() bool { return true }
	}
	return newTimer(d / 50)
}

// impatientTimer fires all the time.
func impatientTimer(d time.Duration) (<-chan time.Time, func() bool) { return newTimer(d / 1000) }

// run starts the manager.
func (r *rig) run() *rig {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-ended)
	})
	r.t.Cleanup(r.stop)
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) mkdir(name string) {
	r.t.Helper()
	require.NoError(r.t, os.MkdirAll(r.path(name), 0o755))
}

// write writes files in place. files are pairs of name and content.
func (r *rig) write(files ...string) {
	r.t.Helper()
	for i := 0; i < len(files); i += 2 {
		require.NoError(r.t, os.WriteFile(r.path(files[i]), []byte(files[i+1]), 0o644))
	}
}

// remove removes a directory tree, into which the manager may be writing.
func (r *rig) remove(name string) {
	r.t.Helper()
	r.eventually(func() bool { return os.RemoveAll(r.path(name)) == nil }, "removes %q", name)
}

func (r *rig) rename(from, to string) {
	r.t.Helper()
	require.NoError(r.t, os.Rename(r.path(from), r.path(to)))
}

func (r *rig) symlink(target, name string) {
	r.t.Helper()
	require.NoError(r.t, os.Symlink(target, r.path(name)))
}

const own = "net.d/" + OwnFileName

func (r *rig) read(name string) string {
	data, err := os.ReadFile(r.path(name))
	if err != nil {
		return ""
	}
	return string(data)
}

// delegate returns the network to which the manager's file delegates, or ""
// without a file.
func (r *rig) delegate() string { return delegateOf(r.read(own)) }

func delegateOf(text string) string {
	var list struct {
		Plugins []struct{ Delegates []string }
	}
	if json.Unmarshal([]byte(text), &list) != nil || len(list.Plugins) != 1 {
		return ""
	}
	return strings.Join(list.Plugins[0].Delegates, ",")
}

func (r *rig) eventually(ok func() bool, what string, args ...any) {
	r.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			require.FailNow(r.t, "never: "+fmt.Sprintf(what, args...), "own file: %s\nstate: %+v\nlog:\n%s", r.read(own), r.State(), r.log)
		}
		time.Sleep(time.Millisecond)
	}
}

// delegates waits until the manager delegates to a network and reports no
// problem.
func (r *rig) delegates(name string) {
	r.t.Helper()
	r.eventually(func() bool { return r.delegate() == name && r.State().Primary == name && r.Ready() == nil }, "delegates to %q", name)
}

// unready waits until the reason for not being ready contains these parts.
func (r *rig) unready(parts ...string) {
	r.t.Helper()
	r.eventually(func() bool { return containsAll(text(r.Ready()), parts) }, "not ready: %q", parts)
}

// reports waits until the problems contain these parts.
func (r *rig) reports(parts ...string) {
	r.t.Helper()
	r.eventually(func() bool { return containsAll(strings.Join(texts(r.State().Problems), "\n"), parts) }, "reports %q", parts)
}

// logs waits until the log contains this part.
func (r *rig) logs(part string) {
	r.t.Helper()
	r.eventually(func() bool { return strings.Contains(r.log.String(), part) }, "logs %q", part)
}

func containsAll(s string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return s != ""
}

// network returns a configuration list with one plugin.
func network(name, plugin string) string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":%q}]}`, name, plugin)
}

// raw returns the complete configuration of one of the Networks.
func (r *rig) raw(name string) (text string, ok bool) {
	for _, n := range r.Networks() {
		if n.Name == name {
			return string(n.Bytes), true
		}
	}
	return "", false
}
