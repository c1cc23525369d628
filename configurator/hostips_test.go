package configurator

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/portmap"
)

const (
	absentHostIP = "host ports on 203.0.113.9: no interface of the host has this address; they do not answer until one has it"
	withoutIPv6  = "host ports on ::: the allocation has no IPv6 address, so they do not answer"
	loopback6    = "host ports on ::1: the kernel routes nothing from ::1 off the loopback, so they do not answer; use 127.0.0.1 or another address of the host"
)

// TestHostIPsAreChecked: Setup and Update warn about host ports on an address that the host does
// not have, and on ::1, once for each address. Nothing else about host ports is a warning.
func TestHostIPsAreChecked(t *testing.T) {
	for name, newTestHost := range listenerHosts {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			var log bytes.Buffer
			h.cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
			h.Configurator = h.restarted()
			a := h.alloc("a")
			for ip, want := range map[string][]string{
				"": nil, "0.0.0.0": nil, "::": {withoutIPv6}, "127.0.0.1": nil, "127.9.9.9": nil,
				"203.0.113.9": {absentHostIP}, "::ffff:203.0.113.9": {absentHostIP}, "::1": {loopback6},
			} {
				log.Reset()
				a.Ports = []portmap.Port{{Value: 7300, To: 80, Range: 3, HostIP: ip}}
				status, err := h.Setup(t.Context(), a)
				require.NoError(t, err)
				require.Equal(t, want, status.Warnings, ip)
				require.Equal(t, len(want), strings.Count(log.String(), "[WARN]"), log.String())
				again, err := h.Setup(t.Context(), a)
				require.NoError(t, err)
				require.Equal(t, found(status), again, "a repeated Setup warns as well")
				require.NoError(t, h.Teardown(context.Background(), a))
			}
		})
	}
}

// TestHostIPsThatComeLater: with the address, the warning ends. An Update warns about the host
// ports that it adds.
func TestHostIPsThatComeLater(t *testing.T) {
	h := listenerHosts["native"](t)
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 7300, To: 80, Range: 3, HostIP: "203.0.113.9"}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	more := Change{Publish: []portmap.Port{{Value: 7310, To: 80, HostIP: "203.0.113.9"}}}
	status, err := h.Update(t.Context(), "a", more)
	require.NoError(t, err)
	require.Equal(t, []string{absentHostIP}, status.Warnings)
	status, err = h.Update(t.Context(), "a", Change{Publish: []portmap.Port{{Value: 7311, To: 80}}})
	require.NoError(t, err)
	require.Empty(t, status.Warnings)

	bridge, err := netlink.LinkByName("brtest")
	require.NoError(t, err)
	address, err := netlink.ParseAddr("203.0.113.9/32")
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(bridge, address))
	a.Ports = append(a.Ports, more.Publish[0], portmap.Port{Value: 7311, To: 80})
	status, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Empty(t, status.Warnings)
	require.NoError(t, h.Teardown(context.Background(), a))
}
