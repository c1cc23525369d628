package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/portmap"
)

// TestNoAddresses: a network without addresses works, except for allocations
// that need an address.
func TestNoAddresses(t *testing.T) {
	testbed.Each(t, testbed.Engines, func(t *testing.T, w testbed.Way) {
		h := newHost(t, w.Engine)
		h.Network("net", testbed.BridgeWithoutAddresses()...)
		a := h.Alloc("plain")
		status := h.SetUp(a)
		require.Equal(t, "eth0", status.InterfaceName)
		require.Empty(t, status.Address)
		for name, needy := range map[string]configurator.Allocation{
			"required": {RequireAddress: true},
			"ports":    {Ports: []portmap.Port{{Value: 8080, To: 80}}},
		} {
			own := h.Alloc(name)
			needy.ID, needy.Netns, needy.OwnNetns = name, own.Netns, own.OwnNetns
			_, err := h.Setup(h.Context(), needy)
			require.ErrorIs(t, err, configurator.ErrNoAddress)
			require.ErrorContains(t, err, `"net"`)
			require.NotErrorIs(t, err, configurator.ErrIncomplete)
			_, err = h.Get(t.Context(), name)
			require.Error(t, err, "nothing was done")
		}
		require.Equal(t, status, h.SetUp(a))
		require.NoError(t, h.Check(h.Context(), a))
		a.RequireAddress = true
		_, err := h.Setup(h.Context(), a)
		require.ErrorIs(t, err, configurator.ErrNoAddress)
		require.NoError(t, h.Check(h.Context(), a), "what was set up stays")
		h.TearDown(a)
	})
}
