package daemon

import (
	"encoding/json"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// TestNoAddressesByRuntimes: the plugin also returns a result without
// addresses.
func TestNoAddressesByRuntimes(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.BridgeWithoutAddresses()...)
	d := h.startDaemon(`networks = ["net"]`)
	config := d.pluginConfig(map[string]any{"delegate": "net"})
	for _, program := range []string{pluginProgram, "allocnet-cni"} {
		a := h.Alloc("by-" + program)
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
