package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"
	"weak"

	"github.com/containernetworking/cni/libcni"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/confmanager"
	"github.com/allocnet/allocnet/cmd/internal/server"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestHostOwnsItsParts checks libcni's cache directory, which belongs to the process.
func TestHostOwnsItsParts(t *testing.T) {
	w := newWorkspace(t)
	s := settings.Default()
	s.StateDir, s.Pool.Size, s.Pool.Dir = w.path("state"), 1, w.path("netns")
	h, err := newHost(settings.Source{}, s, hclog.NewNullLogger())
	require.NoError(t, err)
	require.Equal(t, w.path("state/cni-cache"), libcni.CacheDir)
	require.NoError(t, h.close())
	_, err = h.pool.Take(background(), "x")
	require.ErrorIs(t, err, os.ErrClosed)
}

// fakeKeeper reports when it runs and ends when the test allows it.
type fakeKeeper struct{ running, ended chan struct{} }

func newFakeKeeper() *fakeKeeper {
	return &fakeKeeper{make(chan struct{}), make(chan struct{})}
}

func (*fakeKeeper) Ready() error             { return nil }
func (*fakeKeeper) State() confmanager.State { return confmanager.State{} }

func (k *fakeKeeper) Run(ctx context.Context) error {
	k.running <- struct{}{}
	<-ctx.Done()
	<-k.ended
	return nil
}

func TestSupervisorRunsOneAtATime(t *testing.T) {
	s := newSupervisor()
	ctx, cancel := context.WithCancel(background())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	first, second := newFakeKeeper(), newFakeKeeper()
	s.replace(first)
	<-first.running
	s.replace(second)
	select {
	case <-second.running:
		t.Fatal("the first still runs")
	case first.ended <- struct{}{}:
	}
	<-second.running
	s.replace(nil)
	second.ended <- struct{}{}
	cancel()
	require.NoError(t, <-done)
}

type brokenKeeper struct{}

func (brokenKeeper) Ready() error              { return nil }
func (brokenKeeper) State() confmanager.State  { return confmanager.State{} }
func (brokenKeeper) Run(context.Context) error { return errors.New("broken") }

func TestSupervisorReturnsErrors(t *testing.T) {
	s := newSupervisor()
	s.replace(brokenKeeper{})
	require.EqualError(t, s.run(background()), "broken")
}

func TestGroups(t *testing.T) {
	w := newWorkspace(t)
	var log bytes.Buffer
	h := &host{logger: hclog.New(&hclog.LoggerOptions{Output: &log})}
	groups := func(group string, directory os.FileMode) []uint32 {
		log.Reset()
		require.NoError(t, os.Chmod(w.dir, directory))
		l, err := server.Listen(server.Socket{Path: w.path("s"), Group: group, Mode: 0o660})
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Release()) }()
		return h.groups(l)
	}
	require.Empty(t, groups("0", 0o700), "a socket has root's group by default")
	require.Empty(t, log.String())
	other := w.otherGroupID()
	if other == 0 {
		return // the private host of an ordinary user has no other group
	}
	require.Equal(t, []uint32{uint32(other)}, groups(w.otherGroup(), 0o711))
	require.Empty(t, log.String())
	require.Equal(t, []uint32{uint32(other)}, groups(w.otherGroup(), 0o740))
	require.Contains(t, log.String(), "only root can reach the socket")
}

// otherGroup returns a group other than root's, or "0" if there is none.
func (w *workspace) otherGroup() string { return strconv.Itoa(w.otherGroupID()) }

func (w *workspace) otherGroupID() int {
	w.write("owned", "")
	if os.Chown(w.path("owned"), -1, 12345) == nil {
		return 12345
	}
	return 0
}

// TestReadyLooksAtTheNetworksOfFiles installs the binaries of one network. The embedded
// network has none, which does not matter because the settings do not name it.
func TestReadyLooksAtTheNetworksOfFiles(t *testing.T) {
	w := newWorkspace(t)
	require.NoError(t, fakeplugin.Install(w.path("bin"), "loopback"))
	w.write("conf/one.conflist", `{"cniVersion": "1.0.0", "name": "one", "plugins": [{"type": "loopback"}]}`)
	w.configure(`engine = "exec"`)
	p := w.start()
	require.NoError(t, w.client().Ready(background()))
	w.write("conf/two.conflist", `{"cniVersion": "1.0.0", "name": "two", "plugins": [{"type": "missing"}]}`)
	err := w.client().Ready(background())
	require.ErrorContains(t, err, `network "two" needs plugin "missing"`)
	w.write("conf/two.conflist", `{"cniVersion": "1.0.0", "name": "two", "plugins": [{"type": "loopback"}]}`)
	require.NoError(t, w.client().Ready(background()))
	p.stop()
}

// TestReadyAwaitsTheReadinessFile, which the provider of a network creates.
func TestReadyAwaitsTheReadinessFile(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded, `manager { readiness_file = "`+w.path("ready")+`" }`)
	p := w.start()
	err := w.client().Ready(background())
	require.ErrorContains(t, err, "readiness file")
	require.ErrorContains(t, err, w.path("ready"))
	w.write("ready", "")
	require.NoError(t, w.client().Ready(background()))
	p.stop()
}

// TestPluginWaitsForReadiness sends an ADD before the readiness file exists.
func TestPluginWaitsForReadiness(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded, `manager { readiness_file = "`+w.path("ready")+`" }`)
	p := w.start()
	path, err := w.client().CreateSandbox(background(), "c1")
	require.NoError(t, err)
	call := func(command string) *cni.Error {
		return w.plugin(cni.Request{
			Env:    cni.Env{Command: command, ContainerID: "c1", Netns: path, IfName: "eth0"},
			Config: []byte(`{"cniVersion": "1.1.0", "name": "x", "type": "allocnet"}`),
		})
	}
	refused := call(cni.Add)
	require.NotNil(t, refused)
	require.Equal(t, cni.CodeTryAgainLater, refused.Code)
	require.Contains(t, refused.Error(), "readiness file")
	w.write("ready", "")
	require.Nil(t, call(cni.Add))
	require.Nil(t, call(cni.Check))
	require.Nil(t, call(cni.Del))
	require.NoError(t, w.client().DestroySandbox(background(), "c1"))
	p.stop()
}

// plugin sends a request as the CNI plugin does.
func (w *workspace) plugin(r cni.Request) *cni.Error {
	w.Helper()
	body, err := json.Marshal(r)
	require.NoError(w, err)
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", w.path("s"))
	}}
	response, err := (&http.Client{Transport: transport}).Post("http://localhost"+cni.Path, "application/json", bytes.NewReader(body))
	require.NoError(w, err)
	defer response.Body.Close()
	var answer cni.Response
	require.NoError(w, json.NewDecoder(response.Body).Decode(&answer))
	return answer.Error
}

// TestMoveToAnotherEngine checks that a reload logs changes of the engine.
func TestMoveToAnotherEngine(t *testing.T) {
	w := newWorkspace(t)
	w.write("conf/one.conflist", `{"cniVersion": "1.0.0", "name": "one", "plugins": [{"type": "loopback"}]}`)
	w.configure(`engine = "auto"`)
	p := w.start()
	w.configure(`engine = "exec"`)
	require.Equal(t, "ready", p.reload())
	require.Regexp(t, `\[INFO\] .* network=one engine=exec before=native`, p.logged("engine of the network has changed"))
	p.stop()
}

// TestRefusedReload: a reload that is refused leaves no pool of the new settings behind.
func TestRefusedReload(t *testing.T) {
	privhost.Require(t)
	w := newWorkspace(t)
	require.NoError(t, os.MkdirAll(w.path("conf"), 0o755))
	valid := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp","ipam":{"type":"host-local","subnet":"10.9.0.0/24","dataDir":"` + w.path("leases") + `"}}]}`
	w.write("conf/10-n.conflist", valid)
	s := settings.Default()
	s.StateDir, s.ConfDir = w.path("state"), w.path("conf")
	h, err := newHost(settings.Source{}, s, hclog.NewNullLogger())
	require.NoError(t, err)
	_, invalid := h.active().service.Networks(t.Context())
	require.Empty(t, invalid)
	w.write("conf/10-n.conflist", `{"broken`) // its last valid content stays active
	before := h.active()
	for i := range 2 {
		next := s
		next.Timeout = time.Duration(10+i) * time.Second
		next.Pool.Networks = []configurator.Pool{{Network: "allocnet", Size: 2}}
		require.ErrorContains(t, h.apply(before, &next), "10-n.conflist")
		require.Same(t, before, h.active())
	}
	w.write("conf/10-n.conflist", valid)
	next := s
	next.Pool.Networks = []configurator.Pool{{Network: "allocnet", Size: 2}}
	require.NoError(t, h.apply(before, &next))
	require.Eventually(t, func() bool { return h.pools()[0].Ready == 2 }, 30*time.Second, time.Millisecond)
	slots, err := os.ReadDir(w.path("state/allocs"))
	require.NoError(t, err)
	require.Len(t, slots, 2, "the pools of the refused settings have none")
	require.NoError(t, h.close())
}

// TestReplacedService: the service of a replaced generation is collected when it has nothing to
// delete any more.
func TestReplacedService(t *testing.T) {
	privhost.Require(t)
	w := newWorkspace(t)
	s := settings.Default()
	s.StateDir, s.ConfDir = w.path("state"), w.path("conf")
	h, err := newHost(settings.Source{}, s, hclog.NewNullLogger())
	require.NoError(t, err)
	_, err = h.active().service.Setup(t.Context(), configurator.Allocation{ID: "a", OwnNetns: true, Networks: []string{"allocnet"}})
	require.NoError(t, err)
	first := weak.Make(h.active().service)
	for i := range 2 { // the last one that was replaced is kept
		next := s
		next.Timeout = time.Duration(10+i) * time.Second
		require.NoError(t, h.apply(h.active(), &next))
	}
	require.Eventually(t, func() bool { runtime.GC(); return first.Value() == nil }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, h.active().service.Teardown(t.Context(), configurator.Allocation{ID: "a", OwnNetns: true, Wait: true}))
	require.NoError(t, h.close())
}

// TestReplacedServiceWithOperations: a service is kept while an operation of it runs, because that may
// leave something to delete.
func TestReplacedServiceWithOperations(t *testing.T) {
	privhost.Require(t)
	w := newWorkspace(t)
	s := settings.Default()
	s.StateDir, s.ConfDir = w.path("state"), w.path("conf")
	h, err := newHost(settings.Source{}, s, hclog.NewNullLogger())
	require.NoError(t, err)
	a := configurator.Allocation{ID: "a", OwnNetns: true, Networks: []string{"allocnet"}}
	first := h.active()
	_, err = first.service.Setup(t.Context(), a)
	require.NoError(t, err)
	unlock, err := record.Open(s.StateDir).Lock(t.Context(), "a")
	require.NoError(t, err)
	removed := make(chan error)
	go func() { removed <- first.service.Teardown(context.Background(), a) }()
	require.Eventually(t, func() bool { return first.running.Load() == 1 }, time.Minute, time.Millisecond)
	replace := func(seconds time.Duration) {
		next := s
		next.Timeout = seconds * time.Second
		require.NoError(t, h.apply(h.active(), &next))
	}
	replace(10)
	replace(11)
	require.Contains(t, h.retired, first)
	unlock()
	require.NoError(t, <-removed)
	require.NoError(t, h.close())
	ids, err := record.Open(s.StateDir).IDs()
	require.NoError(t, err)
	require.Empty(t, ids, "the removal was awaited")
}
