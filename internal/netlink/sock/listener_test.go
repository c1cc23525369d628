package sock

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestCloseEndsWait: the error tells a Listener that was closed from one that fails.
func TestCloseEndsWait(t *testing.T) {
	l, err := Listen(ListenOptions{Protocol: unix.NETLINK_ROUTE, Buffer: 1 << 16})
	require.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- l.Wait(func(*Notification) {}) }()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-ended, os.ErrClosed)
	require.ErrorIs(t, l.Drain(func(*Notification) {}), os.ErrClosed)
	require.NoError(t, l.Close())
}

// TestOwn: notifications of the process's own changes arrive only if they are requested.
func TestOwn(t *testing.T) {
	s := opened(t, unix.NETLINK_NETFILTER)
	change := func(kind uint16) error {
		return s.Transaction(context.Background(), func(r *Requests) {
			r.BeginNetfilter("table own", unix.NFNL_SUBSYS_NFTABLES, kind, unix.NLM_F_CREATE, unix.NFPROTO_IPV4)
			r.CString(unix.NFTA_TABLE_NAME, "own")
		})
	}
	listeners := map[bool]*Listener{}
	for _, own := range []bool{false, true} {
		l, err := Listen(ListenOptions{Protocol: unix.NETLINK_NETFILTER, Groups: []int{unix.NFNLGRP_NFTABLES}, Buffer: 1 << 20, Own: own})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		listeners[own] = l
	}
	require.NoError(t, change(unix.NFT_MSG_NEWTABLE))
	t.Cleanup(func() { require.NoError(t, change(unix.NFT_MSG_DELTABLE)) })
	for own, l := range listeners {
		made := false
		require.NoError(t, l.Drain(func(n *Notification) {
			made = made || n.Kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE
		}))
		require.Equal(t, own, made)
	}
}
