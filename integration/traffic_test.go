package integration

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// TestTraffic reaches two neighbours on every way that a host port has.
func TestTraffic(t *testing.T) {
	each(t, []way{execTables, execNFT, native, nativeTables, nativeNFT}, func(t *testing.T, w way) {
		for _, main := range []string{"bridge", "ptp"} {
			for name, f := range map[string]families{"v4": v4Only, "v6": v6Only, "dual": dual} {
				t.Run(fmt.Sprintf("%s %s", main, name), func(t *testing.T) {
					h := newHost(t, w.engine)
					h.network("net", chain(main, f, w.backend)...)
					testTraffic(h, f)
				})
			}
		}
	})
}

func testTraffic(h *host, f families) {
	a, b := h.alloc("alloc-a"), h.alloc("alloc-b")
	a.Ports = []portmap.Port{
		{Label: "any", Value: 8080, To: 80},
		{Label: "one", Value: 9090, To: 80, HostIP: host4b.Addr().String()},
		{Label: "one6", Value: 9090, To: 80, HostIP: host6b.Addr().String()},
	}
	statusA, statusB := h.setUp(a), h.setUp(b)
	for _, protocol := range []string{"tcp", "udp"} {
		serve(h.t, a.Netns, protocol, 80, "a")
		serve(h.t, b.Netns, protocol, 80, "b")
		serve(h.t, h.outside.Path(), protocol, 7000, "outside")
		if f.v4 != "" {
			h.testFamily(protocol, a, b, host4, host4b, outside4, statusA.Address, statusB.Address)
			require.NotEmpty(h.t, requireAnswer(h.t, "", protocol, "127.0.0.1:8080", "a"))
		}
		if f.v6 != "" {
			h.testFamily(protocol, a, b, host6, host6b, outside6, statusA.AddressIPv6, statusB.AddressIPv6)
		}
	}
	require.NoError(h.t, h.Check(h.ctx(), a))
	require.NoError(h.t, h.Check(h.ctx(), b))
	h.tearDown(a, b)
	if f.v4 != "" {
		requireSilence(h.t, h.outside.Path(), "tcp", hostPort(host4, 8080))
	}
}

// testFamily reaches the ports of a over one address family.
func (h *host) testFamily(protocol string, a, b configurator.Allocation, any, one, client netip.Prefix, addrA, addrB string) {
	h.t.Helper()
	// From outside, and the server sees who asks.
	require.Equal(h.t, client.Addr().String(), requireAnswer(h.t, h.outside.Path(), protocol, hostPort(any, 8080), "a"))
	require.Equal(h.t, client.Addr().String(), requireAnswer(h.t, h.outside.Path(), protocol, hostPort(one, 9090), "a"))
	// From the host, a neighbour and the allocation itself.
	requireAnswer(h.t, "", protocol, hostPort(any, 8080), "a")
	requireAnswer(h.t, b.Netns, protocol, hostPort(any, 8080), "a")
	requireAnswer(h.t, a.Netns, protocol, hostPort(any, 8080), "a")
	// Directly, in both directions.
	direct := func(addr string) string { return netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String() }
	require.Equal(h.t, addrB, requireAnswer(h.t, b.Netns, protocol, direct(addrA), "a"))
	require.Equal(h.t, addrA, requireAnswer(h.t, a.Netns, protocol, direct(addrB), "b"))
	// Out of the host, masqueraded as one of its addresses.
	require.Contains(h.t, []string{any.Addr().String(), one.Addr().String()},
		requireAnswer(h.t, a.Netns, protocol, hostPort(client, 7000), "outside"))
	// What is not mapped.
	if protocol == "tcp" {
		requireSilence(h.t, h.outside.Path(), protocol, hostPort(any, 9090))
		requireSilence(h.t, h.outside.Path(), protocol, hostPort(any, 8081))
	}
}
