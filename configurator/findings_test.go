package configurator

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/portmap"
)

// chained returns a host with a network of both families that ends with a fake plugin: a bridge with the
// given keys, more plugins, and the fake. EngineExec runs the reference plugin.
func chained(t *testing.T, e Engine, bridge string, fake fakeplugin.Config, more ...string) (h *testHost, leases string) {
	t.Helper()
	h, leases = nativeHost(t, "1.0.0")
	if e == EngineExec {
		h.cfg.PluginDirs = append(h.cfg.PluginDirs, filepath.Dir(refplugins.Path(t, "bridge")))
	}
	h.cfg.Engine = e
	h.Configurator = h.restarted()
	fake.Log = h.log
	text, err := json.Marshal(fake)
	require.NoError(t, err)
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest"`+bridge+`,"ipam":{"type":"host-local","dataDir":"`+leases+`",
		"ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"10.99.0.0/16"}]}},
		`+strings.Join(append(more, `{"type":"one","fake":`+string(text)+`}`), ",")+`]}`)
	return h, leases
}

var (
	firewallPlugin = `{"type":"firewall"}`
	portmapPlugin  = `{"type":"portmap","capabilities":{"portMappings":true}}`
)

// requireSame requires that Setup, Check and Repair find an allocation as it was set up.
func (h *testHost) requireSame(a Allocation, first *Status) {
	h.t.Helper()
	require.NoError(h.t, h.Check(h.t.Context(), a))
	again, err := h.restarted().Setup(h.t.Context(), a)
	require.NoError(h.t, err)
	require.Equal(h.t, found(first), again)
	report, err := h.Repair(h.t.Context())
	require.NoError(h.t, err)
	require.Equal(h.t, []string{a.ID}, report.Healthy)
}

// TestVMBehindATap: the plugin tc-redirect-tap adds the interface of a virtual machine to the result, which has the
// name of the tap and the addresses of the container's interface. It is neither selected nor looked for.
func TestVMBehindATap(t *testing.T) {
	for e, more := range map[Engine][]string{EngineAuto: {firewallPlugin, portmapPlugin, policyPlugin, `{"type":"routes","table":100}`}, EngineExec: nil} {
		t.Run(string(e), func(t *testing.T) {
			h, _ := chained(t, e, `,"isGateway":true`, fakeplugin.Config{VM: "tap0", Inside: map[string]string{
				"ADD": "ip tuntap add dev tap0 mode tap || ip link add tap0 type veth peer name tap0-peer", "DEL": "ip link del tap0 || true",
			}}, more...)
			a := h.alloc("a")
			a.Interface = "veth0" // tap0 comes before it
			if e != EngineExec {
				a.Ports = []portmap.Port{tcpPort(8080, 80)}
			}
			first, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, "veth0", first.InterfaceName)
			last := first.Interfaces[len(first.Interfaces)-1]
			require.Equal(t, []string{"tap0", "a"}, []string{last.Name, last.Sandbox})
			require.Len(t, last.Addresses, 2)
			h.requireSame(a, first)
			if e != EngineExec {
				privhost.FlushRuleset(t)
				report, err := h.Repair(t.Context())
				require.NoError(t, err)
				require.Equal(t, []string{"a"}, report.Repaired)
				h.requireSame(a, first)
			}

			inside(t, a.Netns, "ip link del tap0")
			require.ErrorContains(t, h.Check(t.Context(), a), `interface "tap0"`)
			again, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.True(t, again.SetUpAgain)
			require.NoError(t, h.Check(t.Context(), a))
			require.NoError(t, h.Teardown(t.Context(), a))
			h.requireNoRecords()
		})
	}
}

// moves is what a plugin that changes the interface of others does: another MAC address, a route in another table,
// another route removed.
const moves = `ip link set eth0 address 02:00:00:00:07:77
ip rule add from 10.77.0.0/24 table 100
ip route add default via 10.77.0.1 table 100
ip route del default
ip -6 route del default`

// TestLaterPluginChangesTheInterface: a later plugin may change what CHECK compares. That is no finding, and what
// changes after ADD is one.
func TestLaterPluginChangesTheInterface(t *testing.T) {
	changes := fakeplugin.Config{Inside: map[string]string{"ADD": moves}}
	// requireReplaced requires that Setup replaces what was lost after ADD.
	requireReplaced := func(h *testHost, a Allocation) {
		t.Helper()
		require.ErrorIs(t, h.Check(t.Context(), a), ErrUnhealthy)
		again, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.True(t, again.SetUpAgain)
		require.NoError(t, h.Check(t.Context(), a))
		require.NoError(t, h.Teardown(t.Context(), a))
		h.requireNoRecords()
	}
	t.Run("native", func(t *testing.T) {
		h, _ := chained(t, EngineAuto, `,"isGateway":true`, changes, firewallPlugin, portmapPlugin)
		a := h.alloc("a")
		a.Ports = []portmap.Port{tcpPort(8080, 80)}
		first, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		h.requireSame(a, first)
		privhost.FlushRuleset(t) // the rules are checked all the same
		require.ErrorIs(t, h.CheckOnly(t.Context(), a), ErrUnhealthy)
		again, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, found(first), again)
		inside(t, a.Netns, "ip route del 10.99.0.0/16")
		require.ErrorContains(t, h.Check(t.Context(), a), "no route to 10.99.0.0/16")
		requireReplaced(h, a)
	})
	t.Run("binaries", func(t *testing.T) {
		h, leases := chained(t, EngineExec, `,"isGateway":true`, changes)
		a := h.alloc("a")
		first, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		h.requireSame(a, first)
		for _, address := range []string{first.Address, first.AddressIPv6} {
			require.NoError(t, os.Remove(filepath.Join(leases, "net", address)))
		}
		requireReplaced(h, a)
	})
}

// TestFindingAloneReplacesNothing: Setup returns what differs, and what to do, but removes nothing that works.
func TestFindingAloneReplacesNothing(t *testing.T) {
	t.Run("native", func(t *testing.T) { // it is repaired
		h, _ := nativeHost(t, "1.0.0")
		a := h.alloc("a")
		first, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		link := h.linkOf("a").Attrs().Index
		inside(t, a.Netns, "ip link set eth0 address 02:00:00:00:07:77")
		again, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, found(first), again)
		require.Equal(t, link, h.linkOf("a").Attrs().Index)
		require.NoError(t, h.Teardown(t.Context(), a))
	})
	t.Run("a route of another program", func(t *testing.T) {
		h, _ := nativeHost(t, "1.0.0")
		a := h.alloc("a")
		first, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		ip(t, "route add unreachable "+first.Address+" metric 50")
		_, err = h.Setup(t.Context(), a)
		require.ErrorIs(t, err, ErrUnhealthy)
		require.ErrorContains(t, err, "left as it is: undo what has changed it, or tear it down")
		require.ErrorContains(t, err, "delete it: ip route del unreachable "+first.Address)
		ip(t, "route del unreachable "+first.Address)
		h.requireSame(a, first)
		require.NoError(t, h.Teardown(t.Context(), a))
	})
	t.Run("a binary", func(t *testing.T) {
		h := newTestHost(t)
		h.network("net", "1.0.0", adds(behaviours{"CHECK": {Code: 100, Msg: "the color is red", Only: 1}}))
		a := h.alloc("a")
		first, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		_, err = h.Setup(t.Context(), a)
		require.ErrorIs(t, err, ErrUnhealthy)
		require.ErrorContains(t, err, "the color is red")
		require.ErrorContains(t, err, "left as it is")
		var coded *types.Error
		require.ErrorAs(t, err, &coded)
		require.EqualValues(t, 100, coded.Code)
		again, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, found(first), again)
		require.Equal(t, []string{"one ADD", "one CHECK", "one CHECK"}, h.commands())
		require.NoError(t, h.Teardown(t.Context(), a))
	})
}

// TestBridgeWithoutIPAMHasNoCheck: that of the reference plugin always fails. Its interface is looked for.
func TestBridgeWithoutIPAMHasNoCheck(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	h.cfg.Engine, h.cfg.PluginDirs = EngineExec, []string{filepath.Dir(refplugins.Path(t, "bridge"))}
	h.Configurator = h.restarted()
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest"}]}`)
	a := h.alloc("a")
	first, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.requireSame(a, first)
	inside(t, a.Netns, "ip link del eth0")
	require.ErrorIs(t, h.Check(t.Context(), a), ErrUnhealthy)
	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.True(t, again.SetUpAgain)
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestLostBridgeIsMadeAgain: the reference plugins cannot restore the bridge that they have made; another ADD does.
func TestLostBridgeIsMadeAgain(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	h.cfg.Engine, h.cfg.PluginDirs = EngineExec, []string{filepath.Dir(refplugins.Path(t, "bridge"))}
	h.Configurator = h.restarted()
	h.file("net.conflist", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,
		"ipam":{"type":"host-local","dataDir":%q,"subnet":"10.77.0.0/24"}}]}`, leases))
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	ip(t, "link del brtest")
	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.True(t, again.SetUpAgain)
	require.NoError(t, h.Check(t.Context(), a))
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestKnownFindingsAreOfTheirPlugin: what one plugin finds right after ADD hides no other one, whatever runs the
// plugins, and however many networks without CHECK come before.
func TestKnownFindingsAreOfTheirPlugin(t *testing.T) {
	for name, c := range map[string]struct {
		engine Engine
		ifName string
	}{"go-cni": {EngineExec, ""}, "steps": {EngineExec, "net7"}, "native": {EngineNative, ""}} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t, func(cfg *Config) { cfg.Engine, cfg.Networks = c.engine, []string{"old", "off", "net"} })
			h.network("old", "0.3.1", behaviours{"ADD": {Result: json.RawMessage(strings.Replace(result, "1.0.0", "0.3.1", 1))}})
			h.file("off.conflist", h.conflist("off", "1.0.0", map[string]any{"disableCheck": true}, adds()))
			broken := behaviours{"CHECK": {Code: 100, Msg: "never right"}}
			h.network("net", "1.0.0", adds(broken), behaviours{"CHECK": {}}, behaviours{"CHECK": {Code: 101, Msg: "nor this", Only: 2}})
			a := h.alloc("a")
			a.Interface = c.ifName
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			r, err := h.store.Get("a")
			require.NoError(t, err)
			require.Len(t, r.Attachments[2].Known, 2)
			require.Contains(t, r.Attachments[2].Known[0][0], "never right")
			require.Contains(t, r.Attachments[2].Known[2][0], "nor this")
			h.commands()
			require.NoError(t, h.Check(t.Context(), a))
			require.Equal(t, []string{"one CHECK", "two CHECK", "three CHECK"}, h.commands())

			h.changeRecord("a", func(r *record.Record) { delete(r.Attachments[2].Known, 0) })
			require.ErrorContains(t, h.Check(t.Context(), a), "never right")
			p := h.planOf(r)
			p.BeginAdd()
			require.True(t, p.Absent == nil && p.Attachments[2].Known == nil, "another ADD begins anew")
			require.NoError(t, h.Teardown(t.Context(), a))
		})
	}
}
