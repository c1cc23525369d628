package rtnl_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestIPs: links may share an address, and only those that have it count.
func TestIPs(t *testing.T) {
	h := open(t)
	v4, v6 := net.ParseIP("10.7.0.1"), net.ParseIP("fd00:7::1")
	var indexes []int
	for _, name := range []string{"h0", "h1", "h2"} {
		addBridge(t, h, name)
		link, err := h.LinkByName(name)
		require.NoError(t, err)
		indexes = append(indexes, link.Attrs().Index)
	}
	for _, index := range indexes[:2] {
		require.NoError(t, h.AddAddress(index, &net.IPNet{IP: v4, Mask: net.CIDRMask(32, 32)}, 0))
		require.NoError(t, h.AddAddress(index, &net.IPNet{IP: v6, Mask: net.CIDRMask(128, 128)}, rtnl.NoDAD))
	}
	for i, index := range indexes {
		list, err := h.Addresses(index)
		require.NoError(t, err)
		var texts []string
		for _, a := range list {
			if ip := a.IP; !ip.IsLinkLocalUnicast() {
				texts = append(texts, ip.String())
			}
		}
		var want []string
		if i < 2 {
			want = []string{v4.String(), v6.String()}
		}
		require.Equal(t, want, texts)
	}
	list, err := h.Addresses(1 << 30)
	require.NoError(t, err, "no such link")
	require.Empty(t, list)
}

func TestState(t *testing.T) {
	h := open(t)
	for _, name := range []string{"none", "a-name-that-is-too-long-for-a-link"} {
		_, _, err := h.State(name)
		require.Error(t, err)
	}
	_, _, err := h.State("none")
	require.True(t, rtnl.IsNotFound(err), err)
	addBridge(t, h, "s0")
	link, err := h.LinkByName("s0")
	require.NoError(t, err)
	for _, want := range []bool{false, true} {
		set := h.LinkSetDown
		if want {
			set = h.LinkSetUp
		}
		require.NoError(t, set(link))
		index, flags, err := h.State("s0")
		require.NoError(t, err)
		require.Equal(t, link.Attrs().Index, index)
		require.Equal(t, want, flags&unix.IFF_UP != 0)
	}
}
