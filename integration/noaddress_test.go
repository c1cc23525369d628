package integration

import (
	"encoding/json"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// bridgeWithoutAddresses returns a chain that adds an interface without an
// address.
func bridgeWithoutAddresses() []map[string]any {
	return []map[string]any{
		{"type": "bridge", "bridge": "br-test"},
		{"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true}},
	}
}

// TestNoAddresses: a network without addresses works, except for allocations
// that need an address.
func TestNoAddresses(t *testing.T) {
	each(t, engines, func(t *testing.T, w way) {
		h := newHost(t, w.engine)
		h.network("net", bridgeWithoutAddresses()...)
		a := h.alloc("plain")
		status := h.setUp(a)
		require.Equal(t, "eth0", status.InterfaceName)
		require.Empty(t, status.Address)
		for name, needy := range map[string]configurator.Allocation{
			"required": {RequireAddress: true},
			"ports":    {Ports: []portmap.Port{{Value: 8080, To: 80}}},
		} {
			own := h.alloc(name)
			needy.ID, needy.Netns, needy.OwnNetns = name, own.Netns, own.OwnNetns
			_, err := h.Setup(h.ctx(), needy)
			require.ErrorIs(t, err, configurator.ErrNoAddress)
			require.ErrorContains(t, err, `"net"`)
			require.NotErrorIs(t, err, configurator.ErrIncomplete)
			_, err = h.Get(t.Context(), name)
			require.Error(t, err, "nothing was done")
		}
		if w == native { // without ipam, the reference plugin bridge has no CHECK
			require.Equal(t, status, h.setUp(a))
			require.NoError(t, h.Check(h.ctx(), a))
			a.RequireAddress = true
			_, err := h.Setup(h.ctx(), a)
			require.ErrorIs(t, err, configurator.ErrNoAddress)
			require.NoError(t, h.Check(h.ctx(), a), "what was set up stays")
		}
		h.tearDown(a)
	})
}

// TestNoAddressesByRuntimes: the plugin also returns a result without
// addresses.
func TestNoAddressesByRuntimes(t *testing.T) {
	h := newHost(t, native.engine)
	h.network("net", bridgeWithoutAddresses()...)
	d := h.startDaemon(`networks = ["net"]`)
	config := d.pluginConfig(map[string]any{"delegate": "net"})
	for _, program := range []string{pluginProgram, "allocnet-cni"} {
		a := h.alloc("by-" + program)
		out, err := d.run(program, "ADD", a.ID, a.Netns, config)
		require.NoError(t, err)
		var result types100.Result
		require.NoError(t, json.Unmarshal(out, &result))
		require.Len(t, result.Interfaces, 3)
		require.Empty(t, result.IPs)
		for _, command := range []string{"CHECK", "DEL"} {
			_, err = d.run(program, command, a.ID, a.Netns, config)
			require.NoError(t, err, command)
		}
	}
	d.term()
}
