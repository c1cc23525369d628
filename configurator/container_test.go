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

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// otherNetwork writes a network "other" like "net", with its own bridge.
func (h *testHost) otherNetwork() {
	h.t.Helper()
	h.file("other.conflist", strings.NewReplacer(`"name":"net"`, `"name":"other"`, "10.77.0.0", "10.78.0.0", "brtest", "brother").Replace(h.read("net.conflist")))
	h.t.Cleanup(func() {
		link, err := netlink.LinkByName("brother")
		require.NoError(h.t, err)
		require.NoError(h.t, netlink.LinkDel(link))
	})
}

// TestSeveralInterfacesOfOneContainer: a CNI runtime attaches the same
// namespace several times, and removes each interface separately.
func TestSeveralInterfacesOfOneContainer(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	h.otherNetwork()
	first := h.alloc("c")
	first.ID, first.ContainerID, first.Interface = "c.eth0", "c", "eth0"
	second := first
	second.ID, second.Interface, second.Networks = "c.net1", "net1", []string{"other"}
	for _, a := range []Allocation{first, second} {
		status, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, a.Interface, status.InterfaceName)
		again, err := h.Setup(t.Context(), a)
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
		_, err := h.Setup(t.Context(), third)
		require.ErrorIs(t, err, ErrInUse, name)
	}
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: first.ID}))
	require.NoError(t, h.Check(t.Context(), second))
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: second.ID}))
	h.requireNoRecords()
	require.Empty(t, leaseHolders(t, filepath.Join(leases, "other")))
}

// TestSharedPorts: the attachments of one container publish the same host
// ports. After one is removed, the other is unchanged.
func TestSharedPorts(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
	h.otherNetwork()
	first := h.alloc("c")
	first.ID, first.ContainerID, first.Interface = "c.eth0", "c", "eth0"
	first.Ports = []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp"}}}
	second := first
	second.ID, second.Interface, second.Networks = "c.eth1", "eth1", []string{"other"}
	other := h.alloc("d")
	other.Ports = first.Ports
	for _, goes := range []Allocation{first, second} {
		for _, a := range []Allocation{first, second} {
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
		}
		_, err := h.Setup(t.Context(), other)
		require.ErrorIs(t, err, portmap.ErrConflict)
		stays := map[string]Allocation{first.ID: second, second.ID: first}[goes.ID]
		require.NoError(t, h.Check(t.Context(), goes))
		require.NoError(t, h.Teardown(t.Context(), goes))
		require.NoError(t, h.Check(t.Context(), stays))
		privhost.FlushRuleset(t)
		report, err := h.Repair(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{stays.ID}, report.Repaired)
		require.NoError(t, h.Teardown(t.Context(), stays))
	}
	h.requireNoRecords()
	_, err := h.Setup(t.Context(), other)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), other))
}

// TestRepairOfSharedPorts: after a repair, the oldest attachment has the host
// ports, whatever its ID.
func TestRepairOfSharedPorts(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
	h.otherNetwork()
	first := h.alloc("c")
	first.ID, first.ContainerID, first.Interface = "c.eth1", "c", "eth1"
	first.Ports = []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp"}}}
	second := first
	second.ID, second.Interface, second.Networks = "c.eth0", "eth0", []string{"other"}
	for _, a := range []Allocation{first, second} {
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.Teardown(context.Background(), a)) })
	}
	answers := func() string {
		out, err := exec.Command("nft", "list", "map", "ip", "allocnet", "host_ports").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Contains(t, answers(), "10.77.0.")
	privhost.FlushRuleset(t)
	report, err := h.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{second.ID, first.ID}, report.Repaired, "sorted by ID")
	require.Contains(t, answers(), "10.77.0.")
	require.NotContains(t, answers(), "10.78.0.")
	require.NoError(t, h.Check(t.Context(), first))
	require.NoError(t, h.Check(t.Context(), second))
}

// TestInterfaceOfTheSecondNetwork: the second network does not get the
// interface name that was requested for the first.
func TestInterfaceOfTheSecondNetwork(t *testing.T) {
	h := newTestHost(t)
	for _, name := range []string{"a", "b", "c"} {
		h.network(name, "1.0.0", adds())
	}
	a := h.alloc("x")
	a.Interface, a.Networks = "eth1", []string{"a", "b", "c"}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	var names []string
	for _, c := range h.changes() {
		names = append(names, c.IfName)
	}
	require.Equal(t, []string{"eth1", "eth0", "eth2"}, names)
}

// TestConflistsOfItsOwn: Setup and DEL need only the allocation's own
// conflists, and the chain continues from the result in the request.
func TestConflistsOfItsOwn(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineAuto} {
		t.Run(string(e), func(t *testing.T) {
			h := newTestHost(t, func(c *Config) { c.Engine = e })
			a := h.alloc("c")
			h.foreign(a.Netns, "vprev"+string(e)) // the interface that prevResult names
			a.ID, a.ContainerID, a.Interface, a.Scope = "c.eth0", "c", "eth0", "cni/net"
			a.Conflists = []json.RawMessage{json.RawMessage(h.conflist("inline", "1.0.0", nil, adds(), adds()))}
			a.PrevResult = json.RawMessage(strings.ReplaceAll(result, `"lo"`, `"eth0"`))
			a.Capabilities = map[string]json.RawMessage{"mac": json.RawMessage(`"x"`)}
			_, err := h.Setup(t.Context(), a)
			require.ErrorContains(t, err, `capabilities: "mac" has a field of its own`)
			a.Capabilities = nil
			_, err = h.Setup(t.Context(), a)
			require.NoError(t, err)
			_, err = h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, []string{"one ADD", "two ADD", "one CHECK", "two CHECK", "one CHECK", "two CHECK"}, h.commands(), "also right after ADD")
			add := h.calls()[0]
			require.Equal(t, []string{"c", "eth0"}, []string{add.ID, add.IfName})
			require.Contains(t, previousOfCall(t, add.Stdin), `"eth0"`)
			r, err := h.Get(t.Context(), a.ID)
			require.NoError(t, err)
			require.Equal(t, []string{"c", "cni/net"}, []string{r.ContainerID, r.Scope})
			for what, change := range map[string]func(*Allocation){
				"list of networks (of its own)": func(a *Allocation) {
					a.Conflists = []json.RawMessage{json.RawMessage(h.conflist("inline", "1.0.0", nil, adds()))}
				},
				"prevResult": func(a *Allocation) { a.PrevResult = json.RawMessage(result) },
				"scope":      func(a *Allocation) { a.Scope = "" },
			} {
				other := a
				change(&other)
				_, err := h.Setup(t.Context(), other)
				require.ErrorIs(t, err, ErrDifferent)
				require.ErrorContains(t, err, "with another "+what)
			}
			require.NoError(t, h.Teardown(t.Context(), Allocation{ID: a.ID}))
			require.Equal(t, []string{"two DEL", "one DEL"}, h.commands())
			h.requireLinkIn(a.Netns, "eth0")
			h.requireNoRecords()
		})
	}
}

// TestTeardownOfALostRecordWithConflists: the allocation's own conflists
// replace the record.
func TestTeardownOfALostRecordWithConflists(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	a := h.alloc("c")
	a.ID, a.ContainerID, a.Interface = "c.eth0", "c", "eth0"
	a.Conflists = []json.RawMessage{json.RawMessage(h.read("net.conflist"))}
	require.NoError(t, os.Remove(filepath.Join(h.conf, "net.conflist")))
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(h.cfg.StateDir))
	require.NoError(t, h.Teardown(t.Context(), a))
	require.Empty(t, leaseHolders(t, filepath.Join(leases, "net")))
	h.requireNoRecords()
}

// TestInvalidConflists: errors name the position of an invalid conflist.
func TestInvalidConflists(t *testing.T) {
	h := newTestHost(t)
	a := h.alloc("a")
	a.Conflists = []json.RawMessage{json.RawMessage(h.conflist("one", "1.0.0", nil, adds())), json.RawMessage(`{"name":"two"}`)}
	_, err := h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.ErrorContains(t, err, `conflists[1]: no plugins`)
	a.Conflists = []json.RawMessage{json.RawMessage(`{"cniVersion":"1.0.0","name":"loop","plugins":[{"type":"bridge"},{"type":"allocnet"}]}`)}
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.ErrorContains(t, err, `conflists[0]: type "allocnet" would call itself`)
	a.Networks = []string{"net"}
	_, err = h.Setup(t.Context(), a)
	require.ErrorContains(t, err, "conflists and networks: give only one of them")
	a = h.alloc("b")
	a.ContainerID, a.Interface, a.Scope = "../x", "a/b", strings.Repeat("x", 300)
	_, err = h.Setup(t.Context(), a)
	for _, text := range []string{`container ID "../x"`, `interface "a/b"`, "scope: must be at most"} {
		require.ErrorContains(t, err, text)
	}
	require.Empty(t, h.commands())
}

// TestGCScope: GC of a scope removes only allocations of that scope.
func TestGCScope(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.1.0", adds())
	for id, scope := range map[string]string{"a": "", "b": "cni/net", "c": "cni/net", "d": "cni/other"} {
		a := h.alloc(id)
		a.Scope = scope
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	h.commands()
	valid := types.GCAttachment{ContainerID: "lost", IfName: "eth0"}
	report, err := h.GCScope(t.Context(), Scope{
		Name: "cni/net", Live: []string{"c"}, Attachments: []types.GCAttachment{valid}, Networks: []string{"net"},
	})
	require.NoError(t, err)
	requireReport(t, &GCReport{Removed: []string{"b"}, Kept: []string{"c"}}, report)
	require.Equal(t, []string{"one DEL", "one GC"}, h.commands())
	var conf struct {
		Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	calls := h.calls()
	require.NoError(t, json.Unmarshal(calls[len(calls)-1].Stdin, &conf))
	require.ElementsMatch(t, []types.GCAttachment{
		{ContainerID: "a", IfName: "eth0"}, {ContainerID: "c", IfName: "eth0"}, {ContainerID: "d", IfName: "eth0"}, valid,
	}, conf.Valid)

	report, err = h.GC(t.Context(), nil)
	require.NoError(t, err)
	requireReport(t, &GCReport{Removed: []string{"a"}, Kept: []string{}}, report)
	_, err = h.GCScope(t.Context(), Scope{Name: "cni/net", Networks: []string{"missing"}, Conflists: []json.RawMessage{json.RawMessage(`{}`)}})
	require.ErrorIs(t, err, ErrUnknownNetwork)
	require.ErrorContains(t, err, "missing")
	_, err = h.Get(t.Context(), "d")
	require.NoError(t, err)
}

// TestGCKnowsContainers: objects in the kernel that name a container have a
// record under another ID.
func TestGCKnowsContainers(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	a := h.alloc("c")
	a.ID, a.ContainerID, a.Interface, a.Scope = "c.eth0", "c", "eth0", "cni/net"
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	report, err := h.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, report.Removed)
	require.NoError(t, h.Check(t.Context(), a))
	require.NoError(t, h.Teardown(t.Context(), a))
}

func previousOfCall(t *testing.T, stdin json.RawMessage) string {
	t.Helper()
	var conf struct{ PrevResult json.RawMessage }
	require.NoError(t, json.Unmarshal(stdin, &conf))
	return string(conf.PrevResult)
}

// leaseHolders returns the containers that have addresses in a directory of
// leases.
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

// read returns the content of a configuration file.
func (h *testHost) read(name string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.conf, name))
	require.NoError(h.t, err)
	return string(text)
}

// requireLinkIn checks that a network namespace has a link.
func (h *testHost) requireLinkIn(netns, name string) {
	h.t.Helper()
	s, err := sandbox.Open(netns)
	require.NoError(h.t, err)
	defer s.Close()
	require.NoError(h.t, s.Do(func() error {
		_, err := netlink.LinkByName(name)
		return err
	}))
}
