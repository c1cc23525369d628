package rtnl_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestAnnounce: neighbours replace the MACs that they have of the addresses.
func TestAnnounce(t *testing.T) {
	h := open(t)
	bridge := addBridge(t, h, "brannounce")
	setSysctl(t, "net/ipv6/conf/brannounce/accept_dad", "0")
	var changes rtnl.Batch
	for _, own := range []string{"10.1.0.1/24", "fd01::1/64"} {
		ip, network, err := net.ParseCIDR(own)
		require.NoError(t, err)
		changes.AddAddress(bridge, &net.IPNet{IP: ip, Mask: network.Mask}, rtnl.NoDAD)
	}
	require.NoError(t, h.Apply(&changes))
	s, v := newSandbox(t, "announce"), veth("announce")
	v.Master = bridge
	require.NoError(t, h.CreateVeth(v, s))
	require.NoError(t, s.SetUp(v.PeerIndex))
	require.Eventually(t, func() bool {
		up, err := h.AreOperational(v.Name, "brannounce")
		return err == nil && up
	}, waitTime, pollTime)
	require.NoError(t, h.AwaitReception(t.Context(), bridge, net.ParseIP("fd01::1")))

	ips := []net.IP{net.ParseIP("10.1.0.7"), net.ParseIP("fd01::7")}
	for _, ip := range ips {
		former := &netlink.Neigh{LinkIndex: bridge, IP: ip, HardwareAddr: rtnl.RandomMAC(), State: unix.NUD_STALE}
		require.NoError(t, h.NeighAdd(former))
	}
	require.NoError(t, s.Announce(v.PeerIndex, v.PeerMAC, ips...))
	for _, ip := range ips {
		require.Eventually(t, func() bool {
			list, err := h.NeighList(bridge, netlink.FAMILY_ALL)
			for _, n := range list {
				if n.IP.Equal(ip) && n.HardwareAddr.String() == v.PeerMAC.String() {
					return err == nil
				}
			}
			return false
		}, waitTime, pollTime, ip)
	}
	require.ErrorIs(t, s.Announce(99, v.PeerMAC, ips...), unix.ENXIO)
}
