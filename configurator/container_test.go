package configurator

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// otherNetwork makes network "other" like "net", with a bridge of its own.
func (w *world) otherNetwork() {
	w.t.Helper()
	w.file("other.conflist", strings.NewReplacer(`"name":"net"`, `"name":"other"`, "10.77.0.0", "10.78.0.0", "brtest", "brother").Replace(w.read("net.conflist")))
	w.t.Cleanup(func() {
		link, err := netlink.LinkByName("brother")
		require.NoError(w.t, err)
		require.NoError(w.t, netlink.LinkDel(link))
	})
}

// TestSeveralInterfacesOfOneContainer: a runtime that speaks CNI attaches the same
// namespace several times, and takes each interface away by itself.
func TestSeveralInterfacesOfOneContainer(t *testing.T) {
	w, leases := nativeWorld(t, "1.0.0")
	w.otherNetwork()
	first := w.alloc("c")
	first.ID, first.ContainerID, first.Interface = "c.eth0", "c", "eth0"
	second := first
	second.ID, second.Interface, second.Networks = "c.net1", "net1", []string{"other"}
	for _, a := range []Allocation{first, second} {
		status, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, a.Interface, status.InterfaceName)
		again, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, found(status), again)
	}
	require.Equal(t, []string{"c"}, leaseHolders(t, filepath.Join(leases, "net")))
	for name, change := range map[string]func(*Allocation){
		"the same interface": func(a *Allocation) { a.Interface = "net1" },
		"another container":  func(a *Allocation) { a.ContainerID = "d" },
		"no container":       func(a *Allocation) { a.ContainerID = "" },
	} {
		third := first
		third.ID, third.Interface = "third", "eth2"
		change(&third)
		_, err := w.Setup(t.Context(), third)
		require.ErrorIs(t, err, ErrInUse, name)
	}
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: first.ID}))
	require.NoError(t, w.Check(t.Context(), second))
	require.NoError(t, w.Teardown(t.Context(), Allocation{ID: second.ID}))
	w.requireNoRecords()
	require.Empty(t, leaseHolders(t, filepath.Join(leases, "other")))
}

// TestSharedPorts: the attachments of one container publish the same host ports.
// Whichever goes, the other stays as it was set up.
func TestSharedPorts(t *testing.T) {
	w, _ := nativeWorld(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
	w.otherNetwork()
	first := w.alloc("c")
	first.ID, first.ContainerID, first.Interface = "c.eth0", "c", "eth0"
	first.Ports = []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp"}}}
	second := first
	second.ID, second.Interface, second.Networks = "c.eth1", "eth1", []string{"other"}
	other := w.alloc("d")
	other.Ports = first.Ports
	for _, goes := range []Allocation{first, second} {
		for _, a := range []Allocation{first, second} {
			_, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
		}
		_, err := w.Setup(t.Context(), other)
		require.ErrorIs(t, err, portmap.ErrConflict)
		stays := map[string]Allocation{first.ID: second, second.ID: first}[goes.ID]
		require.NoError(t, w.Check(t.Context(), goes))
		require.NoError(t, w.Teardown(t.Context(), goes))
		require.NoError(t, w.Check(t.Context(), stays))
		require.NoError(t, exec.Command("nft", "flush", "ruleset").Run())
		report, err := w.Repair(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{stays.ID}, report.Repaired)
		require.NoError(t, w.Teardown(t.Context(), stays))
	}
	w.requireNoRecords()
	_, err := w.Setup(t.Context(), other)
	require.NoError(t, err)
	require.NoError(t, w.Teardown(t.Context(), other))
}

// TestRepairOfSharedPorts: the attachment that was made first has the host ports again,
// whatever the IDs.
func TestRepairOfSharedPorts(t *testing.T) {
	w, _ := nativeWorld(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
	w.otherNetwork()
	first := w.alloc("c")
	first.ID, first.ContainerID, first.Interface = "c.eth1", "c", "eth1"
	first.Ports = []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp"}}}
	second := first
	second.ID, second.Interface, second.Networks = "c.eth0", "eth0", []string{"other"}
	for _, a := range []Allocation{first, second} {
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, w.Teardown(context.Background(), a)) })
	}
	answers := func() string {
		out, err := exec.Command("nft", "list", "map", "ip", "allocnet", "host_ports").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Contains(t, answers(), "10.77.0.")
	require.NoError(t, exec.Command("nft", "flush", "ruleset").Run())
	report, err := w.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{second.ID, first.ID}, report.Repaired, "sorted by ID")
	require.Contains(t, answers(), "10.77.0.")
	require.NotContains(t, answers(), "10.78.0.")
	require.NoError(t, w.Check(t.Context(), first))
	require.NoError(t, w.Check(t.Context(), second))
}

// TestInterfaceOfTheSecondNetwork is not the one that was asked for already.
func TestInterfaceOfTheSecondNetwork(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.network(name, "1.0.0", adds())
	}
	a := w.alloc("x")
	a.Interface, a.Networks = "eth1", []string{"a", "b", "c"}
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	var names []string
	for _, c := range w.calls() {
		names = append(names, c.IfName)
	}
	require.Equal(t, []string{"eth1", "eth0", "eth2"}, names)
}

// TestConflistsOfItsOwn: what the allocation brings along is all that is needed,
// for DEL as well, and the chain goes on from the result that it was given.
func TestConflistsOfItsOwn(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineAuto} {
		t.Run(string(e), func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Engine = e })
			a := w.alloc("c")
			w.foreign(a.Netns, "vprev"+string(e)) // which whoever made the result has made
			a.ID, a.ContainerID, a.Interface, a.Scope = "c.eth0", "c", "eth0", "cni/net"
			a.Conflists = []json.RawMessage{json.RawMessage(w.conflist("inline", "1.0.0", nil, adds(), adds()))}
			a.PrevResult = json.RawMessage(strings.ReplaceAll(result, `"lo"`, `"eth0"`))
			a.Capabilities = map[string]json.RawMessage{"mac": json.RawMessage(`"x"`)}
			_, err := w.Setup(t.Context(), a)
			require.ErrorContains(t, err, `capabilities: "mac" has a field of its own`)
			a.Capabilities = nil
			_, err = w.Setup(t.Context(), a)
			require.NoError(t, err)
			_, err = w.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, []string{"one ADD", "two ADD", "one CHECK", "two CHECK"}, w.commands())
			add := w.calls()[0]
			require.Equal(t, []string{"c", "eth0"}, []string{add.ID, add.IfName})
			require.Contains(t, previousOfCall(t, add.Stdin), `"eth0"`)
			r, err := w.Get(t.Context(), a.ID)
			require.NoError(t, err)
			require.Equal(t, []string{"c", "cni/net"}, []string{r.ContainerID, r.Scope})
			for what, change := range map[string]func(*Allocation){
				"list of networks (of its own)": func(a *Allocation) {
					a.Conflists = []json.RawMessage{json.RawMessage(w.conflist("inline", "1.0.0", nil, adds()))}
				},
				"prevResult": func(a *Allocation) { a.PrevResult = json.RawMessage(result) },
				"scope":      func(a *Allocation) { a.Scope = "" },
			} {
				other := a
				change(&other)
				_, err := w.Setup(t.Context(), other)
				require.ErrorIs(t, err, ErrDifferent)
				require.ErrorContains(t, err, "with another "+what)
			}
			require.NoError(t, w.Teardown(t.Context(), Allocation{ID: a.ID}))
			require.Equal(t, []string{"two DEL", "one DEL"}, w.commands())
			w.requireLinkIn(a.Netns, "eth0")
			w.requireNoRecords()
		})
	}
}

// TestTeardownOfALostRecordWithConflists: they serve in its place.
func TestTeardownOfALostRecordWithConflists(t *testing.T) {
	w, leases := nativeWorld(t, "1.0.0")
	a := w.alloc("c")
	a.ID, a.ContainerID, a.Interface = "c.eth0", "c", "eth0"
	a.Conflists = []json.RawMessage{json.RawMessage(w.read("net.conflist"))}
	require.NoError(t, os.Remove(filepath.Join(w.conf, "net.conflist")))
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(w.cfg.StateDir))
	require.NoError(t, w.Teardown(t.Context(), a))
	require.Empty(t, leaseHolders(t, filepath.Join(leases, "net")))
	w.requireNoRecords()
}

// TestInvalidConflists have their place in the error.
func TestInvalidConflists(t *testing.T) {
	w := newWorld(t)
	a := w.alloc("a")
	a.Conflists = []json.RawMessage{json.RawMessage(w.conflist("one", "1.0.0", nil, adds())), json.RawMessage(`{"name":"two"}`)}
	_, err := w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.ErrorContains(t, err, `conflists[1]: no plugins`)
	a.Conflists = []json.RawMessage{json.RawMessage(`{"cniVersion":"1.0.0","name":"loop","plugins":[{"type":"bridge"},{"type":"allocnet"}]}`)}
	_, err = w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.ErrorContains(t, err, `conflists[0]: type "allocnet" would call itself`)
	a.Networks = []string{"net"}
	_, err = w.Setup(t.Context(), a)
	require.ErrorContains(t, err, "conflists and networks: give only one of them")
	a = w.alloc("b")
	a.ContainerID, a.Interface, a.Scope = "../x", "a/b", strings.Repeat("x", 300)
	_, err = w.Setup(t.Context(), a)
	for _, text := range []string{`container ID "../x"`, `interface "a/b"`, "scope: must be at most"} {
		require.ErrorContains(t, err, text)
	}
	require.Empty(t, w.commands())
}

// TestGCScope: everybody collects what is his.
func TestGCScope(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.1.0", adds())
	for id, scope := range map[string]string{"a": "", "b": "cni/net", "c": "cni/net", "d": "cni/other"} {
		a := w.alloc(id)
		a.Scope = scope
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	w.commands()
	valid := types.GCAttachment{ContainerID: "lost", IfName: "eth0"}
	report, err := w.GCScope(t.Context(), Scope{
		Name: "cni/net", Live: []string{"c"}, Attachments: []types.GCAttachment{valid}, Networks: []string{"net"},
	})
	require.NoError(t, err)
	requireReport(t, &GCReport{Removed: []string{"b"}, Kept: []string{"c"}}, report)
	require.Equal(t, []string{"one DEL", "one GC"}, w.commands())
	var conf struct {
		Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	calls := w.calls()
	require.NoError(t, json.Unmarshal(calls[len(calls)-1].Stdin, &conf))
	require.ElementsMatch(t, []types.GCAttachment{
		{ContainerID: "a", IfName: "eth0"}, {ContainerID: "c", IfName: "eth0"}, {ContainerID: "d", IfName: "eth0"}, valid,
	}, conf.Valid)

	report, err = w.GC(t.Context(), nil)
	require.NoError(t, err)
	requireReport(t, &GCReport{Removed: []string{"a"}, Kept: []string{}}, report)
	_, err = w.GCScope(t.Context(), Scope{Name: "cni/net", Networks: []string{"missing"}, Conflists: []json.RawMessage{json.RawMessage(`{}`)}})
	require.ErrorIs(t, err, ErrUnknownNetwork)
	require.ErrorContains(t, err, "missing")
	_, err = w.Get(t.Context(), "d")
	require.NoError(t, err)
}

// TestGCKnowsContainers: what the kernel names by its container has a record under
// another ID.
func TestGCKnowsContainers(t *testing.T) {
	w, _ := nativeWorld(t, "1.0.0")
	a := w.alloc("c")
	a.ID, a.ContainerID, a.Interface, a.Scope = "c.eth0", "c", "eth0", "cni/net"
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	report, err := w.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, report.Removed)
	require.NoError(t, w.Check(t.Context(), a))
	require.NoError(t, w.Teardown(t.Context(), a))
}

func previousOfCall(t *testing.T, stdin json.RawMessage) string {
	t.Helper()
	var conf struct{ PrevResult json.RawMessage }
	require.NoError(t, json.Unmarshal(stdin, &conf))
	return string(conf.PrevResult)
}

// leaseHolders are the containers that hold addresses in a directory of leases.
func leaseHolders(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var holders []string
	for _, e := range entries {
		if net.ParseIP(e.Name()) == nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		id, _, _ := strings.Cut(string(text), "\r\n")
		holders = append(holders, id)
	}
	return holders
}

// read is the content of a configuration file.
func (w *world) read(name string) string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.conf, name))
	require.NoError(w.t, err)
	return string(text)
}

// requireLinkIn finds a link in a network namespace.
func (w *world) requireLinkIn(netns, name string) {
	w.t.Helper()
	s, err := sandbox.Open(netns)
	require.NoError(w.t, err)
	defer s.Close()
	require.NoError(w.t, s.Do(func() error {
		_, err := netlink.LinkByName(name)
		return err
	}))
}
