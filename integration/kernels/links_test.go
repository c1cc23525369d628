package kernels

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// TestDummy: a network of a link type that allocnet has no native plugin for.
func TestDummy(t *testing.T) {
	h := testbed.New(t, configurator.EngineAuto)
	needsLink(t, &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "test"}})
	h.Network("net", map[string]any{"type": "dummy", "ipam": testbed.Dual.IPAM()})
	a := h.Alloc("a")
	s := h.SetUp(a)
	testbed.Within(t, a.Netns, func() error {
		link, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		require.Equal(t, "dummy", link.Type())
		require.NotZero(t, link.Attrs().Flags&net.FlagUp)
		return nil
	})
	testbed.Serve(t, a.Netns, "tcp", 80, "a")
	for _, address := range []string{s.Address, s.AddressIPv6} {
		testbed.RequireAnswer(t, a.Netns, "tcp", testbed.At(netip.MustParseAddr(address), 80), "a")
	}
	require.NoError(t, h.Check(h.Context(), a))
	testbed.Within(t, a.Netns, func() error { return testbed.Command("ip", "addr", "flush", "dev", "eth0") })
	require.ErrorIs(t, h.Check(h.Context(), a), configurator.ErrUnhealthy)
	h.SetUp(a)
	require.NoError(t, h.Check(h.Context(), a))
	h.TearDown(a)
}

// TestInAVRF: the plugin vrf of the reference moves the interface into a VRF of the container. The allocation
// accepts packets as soon as Setup returns, its host ports lead there, and everything is removed.
func TestInAVRF(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		for name, families := range map[string]testbed.Families{"v4": testbed.V4Only, "dual": testbed.Dual} {
			t.Run(main+" "+name, func(t *testing.T) {
				h := testbed.New(t, configurator.EngineAuto)
				a := h.Alloc("a")
				testbed.Within(t, a.Netns, func() error { // the first VRF of a namespace leaves a rule
					needsLink(t, &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "test"}, Table: 99})
					return nil
				})
				testbed.SetSysctls(t, "", testbed.Quick)
				h.Network("net", append(testbed.Chain(main, families, ""), map[string]any{"type": "vrf", "vrfname": "red"})...)
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				s := h.SetUp(a)
				require.NoError(t, h.Check(h.Context(), a))
				// Sockets of the container also accept what arrives in a VRF.
				testbed.SetSysctls(t, a.Netns, map[string]string{"net/ipv4/udp_l3mdev_accept": "1", "net/ipv4/tcp_l3mdev_accept": "1"})
				testbed.Serve(t, a.Netns, "tcp", 80, "a")
				received := sink(t, a.Netns)
				addresses := []string{s.Address}
				if families.V6 != "" {
					addresses = append(addresses, s.AddressIPv6)
				}
				for _, address := range addresses {
					send(t, "", netip.MustParseAddr(address), address, 1)
					select {
					case got := <-received:
						require.Equal(t, address, got)
					case <-time.After(testbed.Timeout):
						t.Errorf("the first packet to %s is lost", address)
					}
					testbed.RequireAnswer(t, "", "tcp", testbed.At(netip.MustParseAddr(address), 80), "a")
				}
				testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
				again := h.SetUp(a)
				require.Equal(t, s, again)
				h.TearDown(a)
			})
		}
	}
}
