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
	"github.com/allocnet/allocnet/portmap"
)

// plain is a network that declares no capability, or those that are named.
func (w *world) plain(name string, capabilities ...string) {
	w.t.Helper()
	declared := map[string]bool{}
	for _, c := range capabilities {
		declared[c] = true
	}
	data, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "plugins": []any{
		map[string]any{"type": "one", "capabilities": declared, "fake": map[string]any{"log": w.log, "on": adds()}},
	}})
	require.NoError(w.t, err)
	w.file(name+".conflist", string(data))
}

// TestUnserved: a request that no plugin declares is an error before anything is
// done, whatever its field is called.
func TestUnserved(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Networks = []string{"a", "b"} })
	w.plain("a")
	w.plain("b", "aliases", "off")
	w.file("b.conflist", strings.Replace(w.read("b.conflist"), `"off":true`, `"off":false`, 1))
	for capability, change := range map[string]func(*Allocation){
		"portMappings": func(a *Allocation) { a.Ports = []portmap.Port{{Value: 80}} },
		"dns":          func(a *Allocation) { a.DNS = &DNS{Servers: []string{"192.0.2.53"}} },
		"bandwidth":    func(a *Allocation) { a.Bandwidth = &Bandwidth{IngressRate: 1} },
		"ips":          func(a *Allocation) { a.IPs = []string{"192.0.2.1"} },
		"ipRanges":     func(a *Allocation) { a.IPRanges = [][]IPRange{{{Subnet: "192.0.2.0/24"}}} },
		"mac":          func(a *Allocation) { a.MAC = "02:00:00:00:00:01" },
		"cgroupPath":   func(a *Allocation) { a.CgroupPath = "/x" },
		"off":          func(a *Allocation) { a.Capabilities = map[string]json.RawMessage{"off": json.RawMessage("1")} },
	} {
		a := w.alloc("a-" + strings.ToLower(capability))
		change(&a)
		_, err := w.Setup(t.Context(), a)
		require.ErrorIs(t, err, ErrUnserved, capability)
		var e *UnservedError
		require.ErrorAs(t, err, &e)
		require.Equal(t, &UnservedError{ID: a.ID, Capabilities: []string{capability}, Networks: []string{"a", "b"}}, e)
		require.ErrorContains(t, err, "declares "+capability+"; add a plugin")
	}
	a := w.alloc("several")
	a.MAC, a.CgroupPath = "02:00:00:00:00:01", "/x"
	a.Conflists = []json.RawMessage{json.RawMessage(w.read("a.conflist"))}
	_, err := w.Setup(t.Context(), a)
	require.ErrorContains(t, err, `no plugin of network "a" declares cgroupPath, mac; `)
	require.Empty(t, w.commands())
	w.requireNoRecords()
	require.Empty(t, claimed(t, w))

	asksNothing := w.alloc("empty")
	asksNothing.DNS, asksNothing.Bandwidth = &DNS{}, &Bandwidth{}
	asksNothing.Capabilities = map[string]json.RawMessage{"off": json.RawMessage(" [] "), "aliases": json.RawMessage(`["x"]`)}
	_, err = w.Setup(t.Context(), asksNothing)
	require.NoError(t, err)
}

// claimed are the reservations of ports and namespaces.
func claimed(t *testing.T, w *world) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(w.cfg.StateDir, "claims", "*", "*"))
	require.NoError(t, err)
	return found
}

// TestAllowUnserved: where it is allowed, everything says so, and the host port is
// nobody's.
func TestAllowUnserved(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, func(c *Config) {
		c.AllowUnserved, c.Logger = true, hclog.New(&hclog.LoggerOptions{Output: &log})
	})
	w.plain("net", "mac")
	w.network("other", "1.0.0", adds())
	a := w.alloc("a")
	a.Ports, a.CgroupPath, a.MAC = []portmap.Port{{Value: 80}}, "/x", "02:00:00:00:00:01"
	a.Networks = []string{"net"}
	status, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"cgroupPath", "portMappings"}, status.Unserved)
	require.Empty(t, status.Ports)
	require.Contains(t, log.String(), `capabilities=["cgroupPath", "portMappings"]`)

	again, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, found(status), again)
	record, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, found(status), record.Status)
	require.Equal(t, status.Unserved, record.Unserved)
	require.Empty(t, record.Ports)

	b := w.alloc("b")
	b.Ports, b.Networks = a.Ports, []string{"other"}
	status, err = w.Setup(t.Context(), b)
	require.NoError(t, err, "nobody listens on the port of the other one")
	require.Empty(t, status.Unserved)
	require.Len(t, status.Ports, 2)

	w.cfg.AllowUnserved = false
	_, err = w.restarted().Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrUnserved)
	require.NoError(t, w.Check(t.Context(), a), "it is left as it is")
}

// TestUnservedPortsOfAnOlderRecord are not shown as published.
func TestUnservedPortsOfAnOlderRecord(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.AllowUnserved = true })
	w.plain("net")
	a := w.alloc("a")
	a.Ports = []portmap.Port{{Value: 80, Protocols: []string{"tcp"}}}
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	older, err := w.store.Get("a")
	require.NoError(t, err)
	older.Ports = []portmap.Mapping{{HostPort: 80, ContainerPort: 80, Protocol: "tcp"}}
	require.NoError(t, w.store.Put(older))
	record, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Empty(t, record.Ports)
	require.Equal(t, []string{"portMappings"}, record.Unserved)
	require.Empty(t, record.Status.Ports)
}

// TestOneInterface: what concerns one interface goes to the first network that
// declares it, the rest to all that do.
func TestOneInterface(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineAuto} {
		t.Run(string(e), func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Networks, c.Engine = []string{"a", "b", "c"}, e })
			w.plain("a", "dns", "mac")
			w.plain("b", "dns", "portMappings", "mac")
			w.plain("c", "dns", "portMappings", "mac")
			a := w.alloc("a")
			a.Ports, a.MAC, a.DNS = []portmap.Port{{Value: 80}}, "02:00:00:00:00:01", &DNS{Domain: "x"}
			status, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Len(t, status.Ports, 2)
			require.NoError(t, w.Teardown(t.Context(), a))
			var got [][]string
			for _, call := range w.calls() {
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

// TestLoopbackNetwork: it is never the primary one, wherever it stands.
func TestLoopbackNetwork(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineAuto, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			w, _ := nativeWorld(t, "1.0.0")
			w.cfg.Engine, w.cfg.Networks, w.cfg.Network = e, []string{"lo", "net", "net2"}, ""
			w.cfg.PluginDirs = append(w.cfg.PluginDirs, filepath.Dir(refplugins.Path(t, "bridge")))
			w.Configurator = newConfigurator(t, w.cfg)
			w.file("lo.conflist", `{"cniVersion":"1.0.0","name":"lo","plugins":[{"type":"loopback","capabilities":{"mac":true,"ips":true}}]}`)
			w.file("net.conflist", strings.Replace(w.read("net.conflist"), `"type":"bridge",`, `"type":"bridge","capabilities":{"mac":true},`, 1))
			w.plain("net2", "mac")
			a := w.alloc("a")
			a.MAC = "02:00:00:00:00:01"
			status, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, "eth0", status.InterfaceName)
			require.True(t, strings.HasPrefix(status.Address, "10.77.0."))
			require.Contains(t, string(status.Results[1]), a.MAC, "given to the network that serves it")
			record, err := w.Get(t.Context(), "a")
			require.NoError(t, err)
			var names []string
			for _, n := range record.Networks {
				names = append(names, n.Interface)
			}
			require.Equal(t, []string{"lo", "eth0", "eth1"}, names)
			_, err = w.Setup(t.Context(), a)
			require.NoError(t, err)
			require.NoError(t, w.Check(t.Context(), a))
			require.NoError(t, w.Teardown(t.Context(), a))
			w.requireNoRecords()

			a.MAC, a.Networks, a.Interface = "", []string{"lo"}, "net1"
			status, err = w.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, "lo", status.InterfaceName, "there is no other")
			require.NoError(t, w.Teardown(t.Context(), a))

			a.IPs = []string{"192.0.2.1"}
			_, err = w.Setup(t.Context(), a)
			require.ErrorIs(t, err, ErrUnserved)
		})
	}
}

// TestInterfaceBehindLoopback: what is asked for is that of the primary network.
func TestInterfaceBehindLoopback(t *testing.T) {
	w := newWorld(t)
	w.file("lo.conflist", `{"cniVersion":"1.0.0","name":"lo","plugins":[{"type":"loopback"}]}`)
	w.plain("a")
	w.plain("b")
	a := w.alloc("a")
	a.Networks, a.Interface = []string{"lo", "a", "b"}, "eth1"
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	calls := w.calls()
	require.Len(t, calls, 2)
	require.Equal(t, []string{"eth1", "eth0"}, []string{calls[0].IfName, calls[1].IfName})

	// The two share a container, and with it the loopback interface.
	first := w.alloc("c")
	first.ID, first.ContainerID, first.Interface, first.Networks = "c.eth0", "c", "eth0", []string{"lo", "a"}
	second := first
	second.ID, second.Interface, second.Networks = "c.net1", "net1", []string{"lo", "b"}
	for _, a := range []Allocation{first, second} {
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
	}
}
