package configurator

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// plain writes a network that declares the named capabilities.
func (h *testHost) plain(name string, capabilities ...string) {
	h.t.Helper()
	declared := map[string]bool{}
	for _, c := range capabilities {
		declared[c] = true
	}
	data, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "plugins": []any{
		map[string]any{"type": "one", "capabilities": declared, "fake": map[string]any{"log": h.log, "on": adds()}},
	}})
	require.NoError(h.t, err)
	h.file(name+".conflist", string(data))
}

// TestUnserved: a request that no plugin declares is refused before anything is
// done, whichever field contains it.
func TestUnserved(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Networks = []string{"a", "b"} })
	h.plain("a")
	h.plain("b", "aliases", "off")
	h.file("b.conflist", strings.Replace(h.read("b.conflist"), `"off":true`, `"off":false`, 1))
	for capability, change := range map[string]func(*Allocation){
		"portMappings": func(a *Allocation) { a.Ports = []portmap.Port{{Value: 80}} },
		"dns":          func(a *Allocation) { a.DNS = &DNS{Servers: []string{"192.0.2.53"}} },
		"bandwidth":    func(a *Allocation) { a.Bandwidth = &Bandwidth{IngressRate: 8, IngressBurst: 8} },
		"ips":          func(a *Allocation) { a.IPs = []string{"192.0.2.1"} },
		"ipRanges":     func(a *Allocation) { a.IPRanges = [][]IPRange{{{Subnet: "192.0.2.0/24"}}} },
		"mac":          func(a *Allocation) { a.MAC = "02:00:00:00:00:01" },
		"cgroupPath":   func(a *Allocation) { a.CgroupPath = "/x" },
		"off":          func(a *Allocation) { a.Capabilities = map[string]json.RawMessage{"off": json.RawMessage("1")} },
	} {
		a := h.alloc("a-" + strings.ToLower(capability))
		change(&a)
		_, err := h.Setup(t.Context(), a)
		require.ErrorIs(t, err, ErrUnserved, capability)
		var e *UnservedError
		require.ErrorAs(t, err, &e)
		require.Equal(t, &UnservedError{ID: a.ID, Capabilities: []string{capability}, Networks: []string{"a", "b"}}, e)
		require.ErrorContains(t, err, "declares "+capability+"; add a plugin")
	}
	a := h.alloc("several")
	a.MAC, a.CgroupPath = "02:00:00:00:00:01", "/x"
	a.Conflists = []json.RawMessage{json.RawMessage(h.read("a.conflist"))}
	_, err := h.Setup(t.Context(), a)
	require.ErrorContains(t, err, `no plugin of network "a" declares cgroupPath, mac; `)
	require.Empty(t, h.commands())
	h.requireNoRecords()
	require.Empty(t, claimed(t, h))

	asksNothing := h.alloc("empty")
	asksNothing.DNS, asksNothing.Bandwidth = &DNS{}, &Bandwidth{}
	asksNothing.Capabilities = map[string]json.RawMessage{"off": json.RawMessage(" [] "), "aliases": json.RawMessage(`["x"]`)}
	_, err = h.Setup(t.Context(), asksNothing)
	require.NoError(t, err)
}

// claimed returns the reservations of ports and namespaces.
func claimed(t *testing.T, h *testHost) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(h.cfg.StateDir, "claims", "*", "*"))
	require.NoError(t, err)
	return found
}

// TestAllowUnserved: if unserved requests are allowed, log and status report
// them, and the host port is not reserved.
func TestAllowUnserved(t *testing.T) {
	var log bytes.Buffer
	h := newTestHost(t, func(c *Config) {
		c.AllowUnserved, c.Logger = true, hclog.New(&hclog.LoggerOptions{Output: &log})
	})
	h.plain("net", "mac")
	h.network("other", "1.0.0", adds())
	a := h.alloc("a")
	a.Ports, a.CgroupPath, a.MAC = []portmap.Port{{Value: 80}}, "/x", "02:00:00:00:00:01"
	a.Networks = []string{"net"}
	status, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"cgroupPath", "portMappings"}, status.Unserved)
	require.Empty(t, status.Ports)
	require.Contains(t, log.String(), `capabilities=["cgroupPath", "portMappings"]`)

	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, found(status), again)
	record, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, found(status), record.Status)
	require.Equal(t, status.Unserved, record.Unserved)
	require.Empty(t, record.Ports)

	b := h.alloc("b")
	b.Ports, b.Networks = a.Ports, []string{"other"}
	status, err = h.Setup(t.Context(), b)
	require.NoError(t, err, "nobody listens on the port of the other one")
	require.Empty(t, status.Unserved)
	require.Len(t, status.Ports, 2)

	h.cfg.AllowUnserved = false
	_, err = h.restarted().Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrUnserved)
	require.NoError(t, h.Check(t.Context(), a), "it is left as it is")
}

// TestUnservedPolicy: a policy that no plugin enforces is refused, also if unserved requests are allowed
// and another request is unserved.
func TestUnservedPolicy(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.AllowUnserved = true })
	h.plain("net")
	a := h.alloc("a")
	a.Policy = &policy.Policy{Presets: []policy.Preset{policy.Isolated}}
	for _, ports := range [][]portmap.Port{nil, {{Value: 80}}} {
		a.Ports = ports
		_, err := h.Setup(t.Context(), a)
		var unserved *UnservedError
		require.ErrorAs(t, err, &unserved)
		require.Equal(t, []string{"policy"}, unserved.Capabilities)
		require.Equal(t, []string{"net"}, unserved.Networks)
		require.NotContains(t, err.Error(), "allow unserved")
	}
	h.requireNoRecords()
}

// TestUnservedPortsOfAnOlderRecord: such ports are not shown as published.
func TestUnservedPortsOfAnOlderRecord(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.AllowUnserved = true })
	h.plain("net")
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 80, Protocols: []string{"tcp"}}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	older, err := h.store.Get("a")
	require.NoError(t, err)
	older.Ports = []portmap.Mapping{{HostPort: 80, ContainerPort: 80, Protocol: "tcp"}}
	require.NoError(t, h.store.Put(older))
	record, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Empty(t, record.Ports)
	require.Equal(t, []string{"portMappings"}, record.Unserved)
	require.Empty(t, record.Status.Ports)
}

// TestOneInterface: requests that concern one interface go to the first network
// that declares them, all others to every network that does.
func TestOneInterface(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineAuto} {
		t.Run(string(e), func(t *testing.T) {
			h := newTestHost(t, func(c *Config) { c.Networks, c.Engine = []string{"a", "b", "c"}, e })
			h.plain("a", "dns", "mac")
			h.plain("b", "dns", "portMappings", "mac")
			h.plain("c", "dns", "portMappings", "mac")
			a := h.alloc("a")
			a.Ports, a.MAC, a.DNS = []portmap.Port{{Value: 80}}, "02:00:00:00:00:01", &DNS{Domain: "x"}
			status, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Len(t, status.Ports, 2)
			require.NoError(t, h.Teardown(t.Context(), a))
			var got [][]string
			for _, call := range h.changes() {
				var conf struct{ RuntimeConfig map[string]json.RawMessage }
				require.NoError(t, json.Unmarshal(call.Stdin, &conf))
				var names []string
				for _, name := range []string{"dns", "mac", "portMappings"} {
					if conf.RuntimeConfig[name] != nil {
						names = append(names, name)
					}
				}
				got = append(got, names)
			}
			want := [][]string{{"dns", "mac"}, {"dns", "portMappings"}, {"dns"}}
			require.Len(t, got, 6)
			require.Equal(t, want, got[:3])
			require.ElementsMatch(t, want, got[3:], "DEL gets what ADD got")
		})
	}
}

// TestLoopbackNetwork: the loopback network is never the primary one, at
// whatever position.
func TestLoopbackNetwork(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineAuto, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			h, _ := nativeHost(t, "1.0.0")
			h.cfg.Engine, h.cfg.Networks, h.cfg.Network = e, []string{"lo", "net", "net2"}, ""
			h.cfg.PluginDirs = append(h.cfg.PluginDirs, filepath.Dir(refplugins.Path(t, "bridge")))
			h.Configurator = newConfigurator(t, h.cfg)
			h.file("lo.conflist", `{"cniVersion":"1.0.0","name":"lo","plugins":[{"type":"loopback","capabilities":{"mac":true,"ips":true}}]}`)
			h.file("net.conflist", strings.Replace(h.read("net.conflist"), `"type":"bridge",`, `"type":"bridge","capabilities":{"mac":true},`, 1))
			h.plain("net2", "mac")
			a := h.alloc("a")
			a.MAC = "02:00:00:00:00:01"
			status, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, "eth0", status.InterfaceName)
			require.True(t, strings.HasPrefix(status.Address, "10.77.0."))
			require.Contains(t, string(status.Results[1]), a.MAC, "given to the network that serves it")
			record, err := h.Get(t.Context(), "a")
			require.NoError(t, err)
			var names []string
			for _, n := range record.Networks {
				names = append(names, n.Interface)
			}
			require.Equal(t, []string{"lo", "eth0", "eth1"}, names)
			_, err = h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.NoError(t, h.Check(t.Context(), a))
			require.NoError(t, h.Teardown(t.Context(), a))
			h.requireNoRecords()

			a.MAC, a.Networks, a.Interface = "", []string{"lo"}, "net1"
			status, err = h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, "lo", status.InterfaceName, "there is no other")
			require.NoError(t, h.Teardown(t.Context(), a))

			a.IPs = []string{"192.0.2.1"}
			_, err = h.Setup(t.Context(), a)
			require.ErrorIs(t, err, ErrUnserved)
		})
	}
}

// TestInterfaceBehindLoopback: a requested interface name applies to the
// primary network.
func TestInterfaceBehindLoopback(t *testing.T) {
	h := newTestHost(t)
	h.file("lo.conflist", `{"cniVersion":"1.0.0","name":"lo","plugins":[{"type":"loopback"}]}`)
	h.plain("a")
	h.plain("b")
	a := h.alloc("a")
	a.Networks, a.Interface = []string{"lo", "a", "b"}, "eth1"
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	calls := h.changes()
	require.Len(t, calls, 2)
	require.Equal(t, []string{"eth1", "eth0"}, []string{calls[0].IfName, calls[1].IfName})

	// The two attachments share a container, and so its loopback interface.
	first := h.alloc("c")
	first.ID, first.ContainerID, first.Interface, first.Networks = "c.eth0", "c", "eth0", []string{"lo", "a"}
	second := first
	second.ID, second.Interface, second.Networks = "c.net1", "net1", []string{"lo", "b"}
	for _, a := range []Allocation{first, second} {
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
	}
}
