package configurator

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet"
)

// neighbours returns two Configurators with state directories of their own, and so with leases
// of their own, for the embedded network.
func neighbours(t *testing.T) (h *testHost, other *Configurator) {
	h = newTestHost(t, func(c *Config) { c.Networks, c.Retry.Attempts = []string{"allocnet"}, 1 })
	cfg := h.cfg
	cfg.StateDir = filepath.Join(h.dir, "other")
	return h, newConfigurator(t, cfg)
}

// TestAddressOfAnotherStateDirectory: an ADD passes over addresses that allocations of another
// state directory have, also under its own ID. Requested ones are refused.
func TestAddressOfAnotherStateDirectory(t *testing.T) {
	h, other := neighbours(t)
	a, b := h.alloc("a"), h.alloc("b")
	b.ID = a.ID
	first, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	second, err := other.Setup(t.Context(), b)
	require.NoError(t, err)
	require.NotEqual(t, first.Address, second.Address)
	require.NotEqual(t, first.AddressIPv6, second.AddressIPv6)
	require.NoError(t, h.Check(t.Context(), a))
	require.NoError(t, other.Check(t.Context(), b))

	c := h.alloc("c")
	c.IPs = []string{first.Address}
	_, err = other.Setup(t.Context(), c)
	require.ErrorContains(t, err, "allocnet:allocnet/a/eth0")
	a.Wait = true
	require.NoError(t, h.Teardown(t.Context(), a))
	third, err := other.Setup(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, first.Address, third.Address)
	for _, one := range []Allocation{b, c} {
		one.Wait = true
		require.NoError(t, other.Teardown(t.Context(), one))
	}
}

// TestAddressOfALostLease: the address of an allocation whose leases were lost with the state is
// not free while its link exists. It is when the link is gone, although elements name it.
func TestAddressOfALostLease(t *testing.T) {
	h, _ := neighbours(t)
	a, b := h.alloc("a"), h.alloc("b")
	first, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Close())
	require.NoError(t, os.RemoveAll(h.cfg.StateDir))
	h.Configurator = h.restarted()
	second, err := h.Setup(t.Context(), b)
	require.NoError(t, err)
	require.NotEqual(t, first.Address, second.Address)

	require.NoError(t, netlink.LinkDel(h.linkOf("a")))
	c := h.alloc("c")
	c.IPs = []string{first.Address}
	third, err := h.Setup(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, first.Address, third.Address)
	require.NoError(t, h.Check(t.Context(), c))
	_, err = h.GCScope(context.Background(), allocnet.Scope{Networks: []string{"allocnet"}})
	require.NoError(t, err)
	h.settle()
	h.requireNoRecords()
}
