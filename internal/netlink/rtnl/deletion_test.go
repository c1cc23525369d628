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
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "x0"}, PeerName: "px0"}))
	h.deleter.busy = true // with an earlier one
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.DeleteLink(ended, "x0")
	require.ErrorIs(t, err, context.Canceled)
	h.deleter.busy = false
	_, err = h.DeleteLink(t.Context(), "absent")
	require.NoError(t, err)
	found, err := h.DeleteLink(t.Context(), "x0")
	require.NoError(t, err)
	require.True(t, found, "it was left alone")
}
