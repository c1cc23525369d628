package rtnl

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestAbandonedDeletion: when its turn comes, the name may be that of another
// link.
func TestAbandonedDeletion(t *testing.T) {
	privhost.Require(t)
	h := OpenHost()
	defer h.Close()
	add := func(name string) netlink.Link {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "p" + name}
		require.NoError(t, netlink.LinkAdd(link))
		return link
	}
	add("next")
	h.deleter.busy = true // with an earlier one
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, abandoned := range []string{"x0", "x1"} {
		link := add(abandoned)
		_, err := h.DeleteLink(ended, abandoned)
		require.ErrorIs(t, err, context.Canceled)
		if abandoned == "x0" {
			require.NoError(t, netlink.LinkDel(link))
			add("x0")
		}
	}
	h.deleter.busy = false
	found, err := h.DeleteLink(t.Context(), "next")
	require.NoError(t, err)
	require.True(t, found)
	_, err = netlink.LinkByName("x1")
	require.True(t, IsNotFound(err), "it was abandoned, and is deleted all the same: %v", err)
	found, err = h.DeleteLink(t.Context(), "x0")
	require.NoError(t, err)
	require.True(t, found, "it is another link than the one to be deleted")
}
