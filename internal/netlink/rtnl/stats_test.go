package rtnl_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestStatistics sends from the host to a sandbox.
func TestStatistics(t *testing.T) {
	h := open(t)
	s := newSandbox(t, "stats")
	v := veth("stats")
	require.NoError(t, h.CreateVeth(v, s))
	index, err := h.Index(v.Name)
	require.NoError(t, err)
	link, err := h.LinkByName(v.Name)
	require.NoError(t, err)
	require.NoError(t, h.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 9, 0, 1).To4(), Mask: net.CIDRMask(24, 32)}}))
	require.NoError(t, h.LinkSetUp(link))
	peer, err := s.Index("eth0")
	require.NoError(t, err)
	require.NoError(t, s.SetUp(peer))
	require.NoError(t, s.Do(func() error {
		inside, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		return netlink.AddrAdd(inside, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 9, 0, 2).To4(), Mask: net.CIDRMask(24, 32)}})
	}))

	before, err := h.Statistics()
	require.NoError(t, err)
	require.Contains(t, before, index)
	require.Contains(t, before, 1, "the loopback link")
	c, err := net.Dial("udp", "10.9.0.2:9")
	require.NoError(t, err)
	defer c.Close()
	const packets, size = 10, 1000
	for range packets {
		_, err := c.Write(make([]byte, size))
		if err != nil { // the answer that nothing listens
			require.ErrorContains(t, err, "refused")
		}
	}
	require.Eventually(t, func() bool {
		after, err := h.Statistics()
		require.NoError(t, err)
		return after[index].TxBytes-before[index].TxBytes >= packets/2*size && after[index].RxPackets > before[index].RxPackets
	}, waitTime, pollTime, "half of the writes can fail with the answer to another one")

	owner, ok, err := h.OwnerOf(index)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, v.Alias, owner.String())
	_, ok, err = h.OwnerOf(1)
	require.NoError(t, err)
	require.False(t, ok, "the loopback link")
	_, ok, err = h.OwnerOf(1 << 20)
	require.NoError(t, err)
	require.False(t, ok, "there is no such link")
}

// BenchmarkStatistics reads the counters of many links.
func BenchmarkStatistics(b *testing.B) {
	privhost.Require(b)
	h := rtnl.OpenHost()
	defer h.Close()
	for i := range 2000 {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprint("va", i)
		require.NoError(b, h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprint("vb", i)}))
	}
	b.Run("statistics", func(b *testing.B) {
		for b.Loop() {
			_, err := h.Statistics()
			require.NoError(b, err)
		}
	})
	b.Run("links", func(b *testing.B) {
		for b.Loop() {
			_, err := h.LinkList()
			require.NoError(b, err)
		}
	})
}
