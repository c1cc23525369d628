package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
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
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Label: "http", Value: 8080}}
	a.Args = map[string]string{"K": "V"}
	first, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, "lo", first.InterfaceName)
	require.Equal(t, "127.0.0.1", first.Address)
	require.Len(t, first.Ports, 2)
	require.Equal(t, []string{"one ADD"}, h.commands())

	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, found(first), again)
	require.Equal(t, []string{"one CHECK"}, h.commands(), "CHECK and no ADD")

	// The same in a new process, without the conflist.
	require.NoError(t, os.RemoveAll(h.conf))
	h.Configurator = newConfigurator(t, h.cfg)
	again, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, found(first), again)

	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseReady, r.Phase)
	require.Equal(t, found(first), r.Status)
	require.Equal(t, EngineExec, r.Engine)
}

func TestSetupRepairs(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	loseAddress(t, a.Netns)
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD", "one DEL", "one ADD"}, h.commands())
	require.NoError(t, h.Check(t.Context(), a))
}

// TestRepairThatFails: after a failed repair, the record no longer marks the
// allocation as ready.
func TestRepairThatFails(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 100, Msg: "del trouble"}}))
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	loseAddress(t, a.Netns)
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseDeleting, r.Phase)
	require.Nil(t, r.Status)
}

func TestSetupOfADifferentAllocation(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	h.network("other", "1.0.0", adds())
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 80}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.commands()
	for part, change := range map[string]func(*Allocation){
		"netns":      func(a *Allocation) { a.Netns = "/run/netns/b" },
		"networks":   func(a *Allocation) { a.Networks = []string{"other"} },
		"ports":      func(a *Allocation) { a.Ports = []portmap.Port{{Value: 81}} },
		"CNI_ARGS":   func(a *Allocation) { a.Args = map[string]string{"K": "V"} },
		"capability": func(a *Allocation) { a.MAC = "02:00:00:00:00:01" },
	} {
		b := a
		change(&b)
		_, err := h.Setup(t.Context(), b)
		require.ErrorIs(t, err, ErrDifferent, part)
		require.ErrorContains(t, err, part)
	}
	require.Empty(t, h.commands(), "nothing was touched")
}

// TestSetupAfterTheConfigurationChanged: an existing allocation is unchanged,
// although new allocations get another network.
func TestSetupAfterTheConfigurationChanged(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Network = "old" })
	h.network("old", "1.0.0", adds())
	h.network("new", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.cfg.Network, h.cfg.Networks = "new", nil
	h.Configurator = newConfigurator(t, h.cfg)
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD", "one CHECK"}, h.commands())
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, "old", r.Networks[0].Network)
}

func TestSetupWithAnEndedContext(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.Setup(ctx, h.alloc("a"))
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, h.commands())
	h.requireNoRecords()
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
		"full range": {add: fakeplugin.Behaviour{Code: 999, Msg: "no IP addresses available in range set: 10.0.0.2-10.0.0.3"}, wantErr: "no IP addresses",
			commands: []string{"one ADD", "one DEL"}},
		"missing file": {add: fakeplugin.Behaviour{Code: 999, Msg: "open /absent/resolv.conf: no such file or directory"}, wantErr: "/absent",
			commands: []string{"one ADD", "one DEL"}},
		"namespace gone": {add: fakeplugin.Behaviour{Code: 999, Msg: `failed to open netns "/absent/a": failed to Statfs "/absent/a": no such file or directory`}, wantErr: "/absent",
			commands: []string{"one ADD", "one DEL"}},
		"missing delegate": {add: fakeplugin.Behaviour{Code: 999, Msg: `failed to find plugin "host-local" in path [/opt/cni/bin]`}, wantErr: "host-local",
			commands: []string{"one ADD", "one DEL"}},
		"missing file of the kernel": {add: fakeplugin.Behaviour{Code: 999, Msg: "open /proc/sys/net/ipv4/conf/veth1/arp_notify: no such file or directory", Only: 1},
			commands: []string{"one ADD", "one DEL", "one ADD"}, sleeps: 1},
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
			h := newTestHost(t)
			h.network("net", "1.0.0", adds(behaviours{"ADD": c.add}))
			a := h.alloc("a")
			a.RequireAddress = true
			_, err := h.Setup(t.Context(), a)
			require.Equal(t, c.commands, h.commands())
			require.Len(t, h.slept, c.sleeps)
			for _, d := range h.slept {
				require.GreaterOrEqual(t, d, time.Second)
				require.Less(t, d, 2*time.Second)
			}
			if c.wantErr == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.wantErr)
			require.NotErrorIs(t, err, ErrIncomplete)
			require.Equal(t, slices.Contains([]string{"no JSON", "no output", "index out of range"}, name), errors.Is(err, ErrInvalidResult))
			if c.add.Code != 0 {
				var cniErr *types.Error
				require.ErrorAs(t, err, &cniErr)
				require.Equal(t, c.add.Code, cniErr.Code)
			}
			h.requireNoRecords()
		})
	}
}

func TestRetryEndsWithTheContext(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 11, Msg: "later"}}))
	ctx, cancel := context.WithCancel(t.Context())
	h.sleep = func(ctx context.Context, d time.Duration) error {
		cancel() // during the wait
		return sleep(ctx, time.Hour)
	}
	_, err := h.Setup(ctx, h.alloc("a"))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "later", "the first cause is kept")
	require.Equal(t, []string{"one ADD", "one DEL"}, h.commands())
	h.requireNoRecords()
}

// TestCanceledDuringRollBack: the roll-back continues, so that nothing is left.
func TestCanceledDuringRollBack(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := newTestHost(t, func(c *Config) { c.Observer = &atStep{name: StepDel, do: cancel} })
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 7, Msg: "add trouble"}}))
	_, err := h.Setup(ctx, h.alloc("a"))
	require.ErrorIs(t, ctx.Err(), context.Canceled, "the roll-back began")
	require.ErrorContains(t, err, "add trouble")
	require.NotErrorIs(t, err, ErrIncomplete)
	require.Equal(t, []string{"one ADD", "one DEL"}, h.commands())
	h.requireNoRecords()
}

// TestRollBackThatFails: the record is kept, so that a later operation can
// remove the rest.
func TestRollBackThatFails(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 7, Msg: "add trouble", Only: 1}, "DEL": {Code: 100, Msg: "del trouble", Only: 1}}))
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorContains(t, err, "add trouble")
	require.ErrorContains(t, err, "del trouble")
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseAdding, r.Phase)
	h.commands()

	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), a))
	h.requireNoRecords()
}

func TestPortConflicts(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	first := h.alloc("first")
	first.Ports = []portmap.Port{{Value: 8080, Protocols: []string{"tcp"}}, {Value: 9090, HostIP: "192.0.2.1"}}
	_, err := h.Setup(t.Context(), first)
	require.NoError(t, err)
	h.commands()

	second := h.alloc("second")
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
			_, err := h.Setup(t.Context(), second)
			if !c.conflict {
				require.NoError(t, err)
				require.NoError(t, h.Teardown(t.Context(), second))
				h.commands()
				return
			}
			var conflict *portmap.ConflictError
			require.ErrorAs(t, err, &conflict)
			require.Equal(t, "first", conflict.OtherID)
			require.ErrorContains(t, err, `"first"`)
			require.Empty(t, h.commands(), "found before ADD")
			_, err = h.Get(t.Context(), "second")
			require.ErrorIs(t, err, ErrNotFound)
		})
	}
	second.Ports = first.Ports
	_, err = h.Setup(t.Context(), second)
	require.NotContains(t, err.Error(), "is gone")
	require.NoError(t, sandbox.Destroy(first.Netns))
	_, err = h.Setup(t.Context(), second)
	require.ErrorContains(t, err, `network namespace "/run/netns/first" is gone: tear that allocation down`)
	require.NoError(t, h.Teardown(t.Context(), first))
	_, err = h.Setup(t.Context(), second)
	require.NoError(t, err, "the ports are free again")
}

func TestConflictInsideOneAllocation(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 80}, {Value: 80, HostIP: "192.0.2.1", To: 81}}
	_, err := h.Setup(t.Context(), a)
	var conflict *portmap.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.Empty(t, h.commands())
}

func TestSeveralNetworks(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Networks = []string{"a", "b"} })
	h.network("a", "1.0.0", adds())
	h.network("b", "1.0.0", adds(), behaviours{})
	alloc := h.alloc("x")
	alloc.Ports = []portmap.Port{{Value: 80}}
	alloc.MAC = "02:00:00:00:00:01"
	s, err := h.Setup(t.Context(), alloc)
	require.NoError(t, err)
	require.Len(t, s.Interfaces, 2)
	calls := slices.DeleteFunc(h.calls(), func(c fakeplugin.Call) bool { return c.Command == "CHECK" }) // right after ADD
	require.Len(t, calls, 3)
	require.Equal(t, []string{"eth0", "eth1", "eth1"}, []string{calls[0].IfName, calls[1].IfName, calls[2].IfName})
	require.Contains(t, string(calls[0].Stdin), "hostPort")
	require.NotContains(t, string(calls[1].Stdin), "hostPort", "ports and addresses are asked of the primary network alone")
	require.NotContains(t, string(calls[1].Stdin), "02:00:00:00:00:01")
	require.NoError(t, h.Teardown(t.Context(), alloc))
	h.requireNoRecords()
}

func TestSecondNetworkFails(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Networks = []string{"a", "b"} })
	h.network("a", "1.0.0", adds())
	h.network("b", "1.0.0", adds(), behaviours{"ADD": {Code: 7, Msg: "no"}})
	_, err := h.Setup(t.Context(), h.alloc("x"))
	require.ErrorContains(t, err, "no")
	require.Equal(t, []string{"one ADD", "one ADD", "two ADD", "two DEL", "one DEL", "one DEL"}, h.commands())
	h.requireNoRecords()
}

func TestNetworkNamedTwice(t *testing.T) {
	h := newTestHost(t)
	h.network("a", "1.0.0", adds())
	a := h.alloc("x")
	a.Networks = []string{"a", "a"}
	_, err := h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.ErrorContains(t, err, `"a" is named twice`)
}

func TestTwoSetupsAtOnce(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	var wg sync.WaitGroup
	for range 8 {
		other := newConfigurator(t, h.cfg) // like another process
		wg.Go(func() {
			_, err := other.Setup(context.Background(), a)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	commands := h.commands()
	require.Len(t, commands, 8)
	require.Equal(t, "one ADD", commands[0])
	require.NotContains(t, commands[1:], "one ADD")
}

// TestHungPlugin: the operation ends at its deadline, other operations continue
// meanwhile, and the record of what the plugin may have done is kept.
func TestHungPlugin(t *testing.T) {
	h := newTestHost(t)
	h.network("hangs", "1.0.0", adds(behaviours{"ADD": {Hang: true, Grandchild: true, Only: 1}}))
	h.network("works", "1.0.0", adds())
	hung := h.alloc("hung")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := h.Setup(ctx, hung); done <- err }()
	h.waitForCommand("one ADD")
	r, err := h.Get(t.Context(), "hung")
	require.NoError(t, err)
	require.Equal(t, PhaseAdding, r.Phase, "the intent is recorded before ADD")

	free := h.alloc("free")
	free.Networks = []string{"works"}
	_, err = h.Setup(t.Context(), free)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), free))
	select {
	case err := <-done:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(10 * time.Second):
		t.Fatal("held past the deadline")
	}
	_, err = h.Setup(t.Context(), hung)
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
			h := newTestHost(t)
			h.file(c.file, c.content)
			a := h.alloc("x")
			a.Networks = []string{c.network}
			_, err := h.Setup(t.Context(), a)
			require.ErrorIs(t, err, c.is)
			for _, part := range c.want {
				require.ErrorContains(t, err, part)
			}
			require.Empty(t, h.commands())
			h.requireNoRecords()
			require.ErrorIs(t, h.ReadyFor(t.Context(), a), c.is, "Ready says so too")
		})
	}
}

func TestVendorDirectory(t *testing.T) {
	h := newTestHost(t)
	vendor := t.TempDir()
	require.NoError(t, fakeplugin.Install(filepath.Join(vendor, "opt", "one", "bin"), "one"))
	h.network("net", "1.0.0", adds())
	h.cfg.VendorDir, h.cfg.PluginDirs = vendor, []string{"/nonexistent"}
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD"}, h.commands())
}

func TestBadNetns(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	file := filepath.Join(h.dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, path := range map[string]string{
		"missing": "/run/netns/missing", "regular file": file, "directory": h.dir, "the host's own": "/proc/self/ns/net",
	} {
		_, err := h.Setup(t.Context(), Allocation{ID: "x", Netns: path})
		require.ErrorIs(t, err, ErrInvalidAllocation, name)
		require.ErrorContains(t, err, path, name)
		require.Empty(t, h.commands(), name)
		h.requireNoRecords()
	}
}

func TestDelGetsWhatAddWasGiven(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	a.Args = map[string]string{"K": "V"}
	a.Ports = []portmap.Port{{Value: 80}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"absent"}]}`)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}), "only the ID is needed")
	calls := h.calls()
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

// late is a context that ends, with a given error, as soon as an allocation is
// ready.
type late struct {
	context.Context
	h  *testHost
	id string
	as error
}

func (l late) Err() error {
	if r, err := l.h.Get(context.Background(), l.id); err == nil && r.Phase == PhaseReady {
		return l.as
	}
	return l.Context.Err()
}

// TestTooLate: a Setup that returns an error leaves nothing, except an
// allocation that existed before.
func TestTooLate(t *testing.T) {
	for name, end := range map[string]error{"canceled": context.Canceled, "deadline": context.DeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.network("net", "1.0.0", adds(nil))
			a := h.alloc("a")
			status, err := h.Setup(late{t.Context(), h, "a", end}, a)
			require.ErrorIs(t, err, end)
			require.ErrorContains(t, err, `"a" was set up too late`)
			require.Nil(t, status)
			require.Equal(t, []string{"one ADD", "one DEL"}, h.commands())
			_, err = h.Get(t.Context(), "a")
			require.ErrorIs(t, err, ErrNotFound)

			_, err = h.Setup(t.Context(), a)
			require.NoError(t, err)
			_, err = h.Setup(late{t.Context(), h, "a", end}, a)
			require.ErrorIs(t, err, end)
			require.NotContains(t, h.commands(), "one DEL")
			require.NoError(t, h.Check(t.Context(), a))
		})
	}
}

// TestTooLateBesideAnother: a second Setup waits for the same allocation, and
// gets one that stays.
func TestTooLateBesideAnother(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(nil))
	a := h.alloc("a")
	second := make(chan error, 1)
	var begin sync.Once
	ctx := late{t.Context(), h, "a", context.Canceled}
	first := &during{late: ctx, then: func() {
		begin.Do(func() {
			go func() {
				_, err := newConfigurator(t, h.cfg).Setup(t.Context(), a)
				second <- err
			}()
		})
	}}
	_, err := h.Setup(first, a)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, <-second)
	require.NoError(t, h.Check(t.Context(), a))
}

// during is a late context that calls a function when it ends.
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

// TestSetupWithARecordOfOthers: Setup does not replace a network because others than root may have
// changed its record. It says what is wrong.
func TestSetupWithARecordOfOthers(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	a := h.alloc("a")
	before, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	file := filepath.Join(h.cfg.StateDir, "allocs", "a.json")
	require.NoError(t, os.Chmod(file, 0o666))
	_, err = h.Setup(t.Context(), a)
	require.ErrorAs(t, err, new(*RecordError))
	require.ErrorContains(t, err, "chmod it go-w")
	require.NoError(t, os.Chmod(file, 0o600))
	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.False(t, again.Created)
	require.Equal(t, before.Address, again.Address)
	require.NoError(t, os.Chmod(file, 0o666))
	require.NoError(t, h.Teardown(t.Context(), a), "a teardown needs no record")
	h.requireNoRecords()
}
