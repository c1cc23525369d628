package main

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestServicesThatCome: the daemon finds the addresses of services that IPVS has got since host ports were published.
func TestServicesThatCome(t *testing.T) {
	privhost.Require(t)
	rules, err := ruleset.Open()
	require.NoError(t, err)
	defer rules.Close()
	e := &ruleset.Elements{
		Owner:    names.Owner{Network: "net", ID: "a", IfName: "eth0"},
		Mappings: []ruleset.Mapping{{Protocol: unix.IPPROTO_TCP, HostPort: 443, To: netip.MustParseAddrPort("10.1.0.2:443")}},
	}
	require.NoError(t, rules.Add(t.Context(), e))
	defer func() { require.NoError(t, rules.Del(context.Background(), e)) }()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: rtnl.ServiceLinks[0]}, PeerName: "ipvs-peer"}
	require.NoError(t, netlink.LinkAdd(link))
	t.Cleanup(func() { deleteLink(t, link.Name) })
	require.NoError(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 96, 0, 1), Mask: net.CIDRMask(32, 32)}}))

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- (&host{rules: rules, logger: hclog.NewNullLogger()}).exceptServices(ctx) }()
	require.Eventually(t, func() bool {
		m, _, err := rules.Destination(t.Context(), netip.MustParseAddr("10.96.0.1"), unix.IPPROTO_TCP, 443)
		return err == nil && m == nil
	}, time.Minute, 10*time.Millisecond)
	m, _, err := rules.Destination(t.Context(), netip.MustParseAddr("192.0.2.1"), unix.IPPROTO_TCP, 443)
	require.NoError(t, err)
	require.NotNil(t, m, "other addresses")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}
