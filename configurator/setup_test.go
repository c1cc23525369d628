package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

func TestSetupIsIdempotent(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	a.Ports = []portmap.Port{{Label: "http", Value: 8080}}
	a.Args = map[string]string{"K": "V"}
	first, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, "lo", first.InterfaceName)
	require.Equal(t, "127.0.0.1", first.Address)
	require.Len(t, first.Ports, 2)
	require.Equal(t, []string{"one ADD"}, w.commands())

	again, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, found(first), again)
	require.Equal(t, []string{"one CHECK"}, w.commands(), "CHECK and no ADD")

	// The same in a new process, with the conflist gone.
	require.NoError(t, os.RemoveAll(w.conf))
	w.Configurator = newConfigurator(t, w.cfg)
	again, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, found(first), again)

	r, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseReady, r.Phase)
	require.Equal(t, found(first), r.Status)
	require.Equal(t, EngineExec, r.Engine)
}

func TestSetupRepairs(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"CHECK": {Code: 100, Msg: "rule is gone", Only: 1}}))
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD", "one CHECK", "one DEL", "one ADD"}, w.commands())
	require.NoError(t, w.Check(t.Context(), a))
}

// TestRepairThatFails: the record no longer says that the allocation is ready.
func TestRepairThatFails(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"CHECK": {Code: 100, Msg: "rule is gone"}, "DEL": {Code: 100, Msg: "del trouble"}}))
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	r, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseDeleting, r.Phase)
	require.Nil(t, r.Status)
}

func TestSetupOfADifferentAllocation(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	w.network("other", "1.0.0", adds())
	a := w.alloc("a")
	a.Ports = []portmap.Port{{Value: 80}}
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.commands()
	for part, change := range map[string]func(*Allocation){
		"netns":      func(a *Allocation) { a.Netns = "/run/netns/b" },
		"networks":   func(a *Allocation) { a.Networks = []string{"other"} },
		"ports":      func(a *Allocation) { a.Ports = []portmap.Port{{Value: 81}} },
		"CNI_ARGS":   func(a *Allocation) { a.Args = map[string]string{"K": "V"} },
		"capability": func(a *Allocation) { a.MAC = "02:00:00:00:00:01" },
	} {
		b := a
		change(&b)
		_, err := w.Setup(t.Context(), b)
		require.ErrorIs(t, err, ErrDifferent, part)
		require.ErrorContains(t, err, part)
	}
	require.Empty(t, w.commands(), "nothing was touched")
}

// TestSetupAfterTheConfigurationChanged: what is set up stays as it is, though
// new allocations are to get another network.
func TestSetupAfterTheConfigurationChanged(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Network = "old" })
	w.network("old", "1.0.0", adds())
	w.network("new", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.cfg.Network, w.cfg.Networks = "new", nil
	w.Configurator = newConfigurator(t, w.cfg)
	_, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD", "one CHECK"}, w.commands())
	r, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "old", r.Networks[0].Network)
}

func TestSetupWithAnEndedContext(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := w.Setup(ctx, w.alloc("a"))
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, w.commands())
	w.requireNoRecords()
}

func TestRetry(t *testing.T) {
	for name, c := range map[string]struct {
		add      fakeplugin.Behaviour
		wantErr  string
		commands []string
		sleeps   int
	}{
		"passes": {add: fakeplugin.Behaviour{Code: 11, Msg: "later", Only: 2},
			commands: []string{"one ADD", "one DEL", "one ADD", "one DEL", "one ADD"}, sleeps: 2},
		"does not pass": {add: fakeplugin.Behaviour{Code: 11, Msg: "later"}, wantErr: "later",
			commands: []string{"one ADD", "one DEL", "one ADD", "one DEL", "one ADD", "one DEL"}, sleeps: 2},
		"text error": {add: fakeplugin.Behaviour{Exit: 1, Stderr: "boom", Only: 1},
			commands: []string{"one ADD", "one DEL", "one ADD"}, sleeps: 1},
		"invalid network configuration": {add: fakeplugin.Behaviour{Code: 7, Msg: "bad key"}, wantErr: "bad key",
			commands: []string{"one ADD", "one DEL"}},
		"no JSON": {add: fakeplugin.Behaviour{Stdout: "%%%"}, wantErr: "invalid character",
			commands: []string{"one ADD", "one DEL"}},
		"no output": {add: fakeplugin.Behaviour{Stdout: " "}, wantErr: "end of JSON",
			commands: []string{"one ADD", "one DEL"}},
		"no address": {add: fakeplugin.Behaviour{Stdout: `{"cniVersion":"1.0.0"}`}, wantErr: "no interface has an address",
			commands: []string{"one ADD", "one DEL"}},
		"index out of range": {add: fakeplugin.Behaviour{Stdout: `{"cniVersion":"1.0.0","interfaces":[{"name":"x"}],"ips":[{"address":"10.0.0.1/8","interface":1}]}`},
			wantErr: "invalid CNI result", commands: []string{"one ADD", "one DEL"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.network("net", "1.0.0", adds(behaviours{"ADD": c.add}))
			a := w.alloc("a")
			a.RequireAddress = true
			_, err := w.Setup(t.Context(), a)
			require.Equal(t, c.commands, w.commands())
			require.Len(t, w.slept, c.sleeps)
			for _, d := range w.slept {
				require.GreaterOrEqual(t, d, time.Second)
				require.Less(t, d, 2*time.Second)
			}
			if c.wantErr == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.wantErr)
			require.NotErrorIs(t, err, ErrIncomplete)
			require.Equal(t, name == "index out of range", errors.Is(err, ErrInvalidResult))
			if c.add.Code != 0 {
				var cniErr *types.Error
				require.ErrorAs(t, err, &cniErr)
				require.Equal(t, c.add.Code, cniErr.Code)
			}
			w.requireNoRecords()
		})
	}
}

func TestRetryEndsWithTheContext(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 11, Msg: "later"}}))
	ctx, cancel := context.WithCancel(t.Context())
	w.sleep = func(ctx context.Context, d time.Duration) error {
		cancel() // in the middle of the wait
		return sleep(ctx, time.Hour)
	}
	_, err := w.Setup(ctx, w.alloc("a"))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "later", "the first cause is kept")
	require.Equal(t, []string{"one ADD", "one DEL"}, w.commands())
	w.requireNoRecords()
}

// TestRollBackThatFails keeps the record, so that nothing is forgotten.
func TestRollBackThatFails(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 7, Msg: "add trouble", Only: 1}, "DEL": {Code: 100, Msg: "del trouble", Only: 1}}))
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorContains(t, err, "add trouble")
	require.ErrorContains(t, err, "del trouble")
	r, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseAdding, r.Phase)
	w.commands()

	_, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, w.Teardown(t.Context(), a))
	w.requireNoRecords()
}

func TestPortConflicts(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	first := w.alloc("first")
	first.Ports = []portmap.Port{{Value: 8080, Protocols: []string{"tcp"}}, {Value: 9090, HostIP: "192.0.2.1"}}
	_, err := w.Setup(t.Context(), first)
	require.NoError(t, err)
	w.commands()

	second := w.alloc("second")
	for name, c := range map[string]struct {
		port     portmap.Port
		conflict bool
	}{
		"the same":                  {portmap.Port{Value: 8080, To: 1, Protocols: []string{"tcp"}}, true},
		"specific against wildcard": {portmap.Port{Value: 8080, HostIP: "192.0.2.7", Protocols: []string{"tcp"}}, true},
		"wildcard against specific": {portmap.Port{Value: 9090, Protocols: []string{"udp"}}, true},
		"another protocol":          {portmap.Port{Value: 8080, Protocols: []string{"udp"}}, false},
		"another address":           {portmap.Port{Value: 9090, HostIP: "192.0.2.2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			second.Ports = []portmap.Port{c.port}
			_, err := w.Setup(t.Context(), second)
			if !c.conflict {
				require.NoError(t, err)
				require.NoError(t, w.Teardown(t.Context(), second))
				w.commands()
				return
			}
			var conflict *portmap.ConflictError
			require.ErrorAs(t, err, &conflict)
			require.Equal(t, "first", conflict.OtherID)
			require.ErrorContains(t, err, `"first"`)
			require.Empty(t, w.commands(), "found before ADD")
			_, err = w.Get(t.Context(), "second")
			require.ErrorIs(t, err, ErrNotFound)
		})
	}
	second.Ports = first.Ports
	_, err = w.Setup(t.Context(), second)
	require.NotContains(t, err.Error(), "is gone")
	require.NoError(t, sandbox.Destroy(first.Netns))
	_, err = w.Setup(t.Context(), second)
	require.ErrorContains(t, err, `network namespace "/run/netns/first" is gone: tear that allocation down`)
	require.NoError(t, w.Teardown(t.Context(), first))
	_, err = w.Setup(t.Context(), second)
	require.NoError(t, err, "the ports are free again")
}

func TestConflictInsideOneAllocation(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	a.Ports = []portmap.Port{{Value: 80}, {Value: 80, HostIP: "192.0.2.1", To: 81}}
	_, err := w.Setup(t.Context(), a)
	var conflict *portmap.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.Empty(t, w.commands())
}

func TestSeveralNetworks(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Networks = []string{"a", "b"} })
	w.network("a", "1.0.0", adds())
	w.network("b", "1.0.0", adds(), behaviours{})
	alloc := w.alloc("x")
	alloc.Ports = []portmap.Port{{Value: 80}}
	alloc.MAC = "02:00:00:00:00:01"
	s, err := w.Setup(t.Context(), alloc)
	require.NoError(t, err)
	require.Len(t, s.Interfaces, 2)
	calls := w.calls()
	require.Len(t, calls, 3)
	require.Equal(t, []string{"eth0", "eth1", "eth1"}, []string{calls[0].IfName, calls[1].IfName, calls[2].IfName})
	require.Contains(t, string(calls[0].Stdin), "hostPort")
	require.NotContains(t, string(calls[1].Stdin), "hostPort", "ports and addresses are asked of the primary network alone")
	require.NotContains(t, string(calls[1].Stdin), "02:00:00:00:00:01")
	require.NoError(t, w.Teardown(t.Context(), alloc))
	w.requireNoRecords()
}

func TestSecondNetworkFails(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Networks = []string{"a", "b"} })
	w.network("a", "1.0.0", adds())
	w.network("b", "1.0.0", adds(), behaviours{"ADD": {Code: 7, Msg: "no"}})
	_, err := w.Setup(t.Context(), w.alloc("x"))
	require.ErrorContains(t, err, "no")
	require.Equal(t, []string{"one ADD", "one ADD", "two ADD", "two DEL", "one DEL", "one DEL"}, w.commands())
	w.requireNoRecords()
}

func TestNetworkNamedTwice(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Networks = []string{"a", "a"} })
	w.network("a", "1.0.0", adds())
	_, err := w.Setup(t.Context(), w.alloc("x"))
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.ErrorContains(t, err, `"a" is named twice`)
}

func TestTwoSetupsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	var wg sync.WaitGroup
	for range 8 {
		other := newConfigurator(t, w.cfg) // as another process would
		wg.Go(func() {
			_, err := other.Setup(context.Background(), a)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	commands := w.commands()
	require.Len(t, commands, 8)
	require.Equal(t, "one ADD", commands[0])
	require.NotContains(t, commands[1:], "one ADD")
}

// TestHungPlugin: the operation ends at its deadline, others go on meanwhile,
// and what the plugin may have done is not forgotten.
func TestHungPlugin(t *testing.T) {
	w := newWorld(t)
	w.network("hangs", "1.0.0", adds(behaviours{"ADD": {Hang: true, Grandchild: true, Only: 1}}))
	w.network("works", "1.0.0", adds())
	hung := w.alloc("hung")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := w.Setup(ctx, hung); done <- err }()
	w.waitForCommand("one ADD")
	r, err := w.Get(t.Context(), "hung")
	require.NoError(t, err)
	require.Equal(t, PhaseAdding, r.Phase, "the intent is recorded before ADD")

	free := w.alloc("free")
	free.Networks = []string{"works"}
	_, err = w.Setup(t.Context(), free)
	require.NoError(t, err)
	require.NoError(t, w.Teardown(t.Context(), free))
	select {
	case err := <-done:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(10 * time.Second):
		t.Fatal("held past the deadline")
	}
	_, err = w.Setup(t.Context(), hung)
	require.NoError(t, err)
}

func TestBadNetworks(t *testing.T) {
	for name, c := range map[string]struct {
		file, content string
		network       string
		want          []string
		is            error
	}{
		"unknown":              {"a.conflist", `{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"one"}]}`, "nope", []string{`"nope"`, "a"}, ErrUnknownNetwork},
		"empty directory":      {"README", "", "nope", []string{"nope"}, ErrUnknownNetwork},
		"no default":           {"README", "", "", nil, ErrUnknownNetwork},
		"broken":               {"a.conflist", `{"cniVersion":`, "a", []string{"a.conflist"}, ErrUnknownNetwork},
		"no plugins":           {"a.conflist", `{"cniVersion":"1.0.0","name":"a","plugins":[]}`, "a", []string{"a.conflist"}, ErrUnknownNetwork},
		"plugin not installed": {"a.conflist", `{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"one"},{"type":"absent"}]}`, "a", []string{`"absent"`, "bin"}, ErrPluginNotInstalled},
		"IPAM not installed":   {"a.conflist", `{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"one","ipam":{"type":"absent-ipam"}}]}`, "a", []string{`"absent-ipam"`}, ErrPluginNotInstalled},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.file(c.file, c.content)
			a := w.alloc("x")
			a.Networks = []string{c.network}
			_, err := w.Setup(t.Context(), a)
			require.ErrorIs(t, err, c.is)
			for _, part := range c.want {
				require.ErrorContains(t, err, part)
			}
			require.Empty(t, w.commands())
			w.requireNoRecords()
			require.ErrorIs(t, w.ReadyFor(t.Context(), a), c.is, "Ready says so too")
		})
	}
}

func TestVendorDirectory(t *testing.T) {
	w := newWorld(t)
	vendor := t.TempDir()
	require.NoError(t, fakeplugin.Install(filepath.Join(vendor, "opt", "one", "bin"), "one"))
	w.network("net", "1.0.0", adds())
	w.cfg.VendorDir, w.cfg.PluginDirs = vendor, []string{"/nonexistent"}
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD"}, w.commands())
}

func TestBadNetns(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	file := filepath.Join(w.dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, path := range map[string]string{
		"missing": "/run/netns/missing", "regular file": file, "directory": w.dir, "the host's own": "/proc/self/ns/net",
	} {
		_, err := w.Setup(t.Context(), Allocation{ID: "x", Netns: path})
		require.ErrorIs(t, err, ErrInvalidAllocation, name)
		require.ErrorContains(t, err, path, name)
		require.Empty(t, w.commands(), name)
		w.requireNoRecords()
	}
}

func TestDelGetsWhatAddWasGiven(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	a.Args = map[string]string{"K": "V"}
	a.Ports = []portmap.Port{{Value: 80}}
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"absent"}]}`)
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "a"}), "only the ID is needed")
	calls := w.calls()
	require.Len(t, calls, 2)
	add, del := calls[0], calls[1]
	require.Equal(t, "DEL", del.Command)
	require.Equal(t, add.Args, del.Args)
	require.Equal(t, add.Inode, del.Inode, "the same namespace")
	require.NotZero(t, del.Inode)
	var added, deleted map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(add.Stdin, &added))
	require.NoError(t, json.Unmarshal(del.Stdin, &deleted))
	require.Contains(t, string(deleted["prevResult"]), "127.0.0.1")
	delete(deleted, "prevResult")
	require.Equal(t, added, deleted, "the same configuration and runtimeConfig")
}

// late is a context that ends as soon as an allocation is ready, in one way or the
// other.
type late struct {
	context.Context
	w  *world
	id string
	as error
}

func (l late) Err() error {
	if r, err := l.w.Get(context.Background(), l.id); err == nil && r.Phase == PhaseReady {
		return l.as
	}
	return l.Context.Err()
}

// TestTooLate: who gets an error has nothing, and who had something keeps it.
func TestTooLate(t *testing.T) {
	for name, end := range map[string]error{"canceled": context.Canceled, "deadline": context.DeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.network("net", "1.0.0", adds(nil))
			a := w.alloc("a")
			status, err := w.Setup(late{t.Context(), w, "a", end}, a)
			require.ErrorIs(t, err, end)
			require.ErrorContains(t, err, `"a" was set up too late`)
			require.Nil(t, status)
			require.Equal(t, []string{"one ADD", "one DEL"}, w.commands())
			_, err = w.Get(t.Context(), "a")
			require.ErrorIs(t, err, ErrNotFound)

			_, err = w.Setup(t.Context(), a)
			require.NoError(t, err)
			_, err = w.Setup(late{t.Context(), w, "a", end}, a)
			require.ErrorIs(t, err, end)
			require.NotContains(t, w.commands(), "one DEL")
			require.NoError(t, w.Check(t.Context(), a))
		})
	}
}

// TestTooLateBesideAnother has one wait for the same allocation, which gets one that
// stays.
func TestTooLateBesideAnother(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(nil))
	a := w.alloc("a")
	second := make(chan error, 1)
	var begin sync.Once
	ctx := late{t.Context(), w, "a", context.Canceled}
	first := &during{late: ctx, then: func() {
		begin.Do(func() {
			go func() {
				_, err := newConfigurator(t, w.cfg).Setup(t.Context(), a)
				second <- err
			}()
		})
	}}
	_, err := w.Setup(first, a)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, <-second)
	require.NoError(t, w.Check(t.Context(), a))
}

// during does something when it ends.
type during struct {
	late
	then func()
}

func (d *during) Err() error {
	err := d.late.Err()
	if err != nil {
		d.then()
	}
	return err
}
