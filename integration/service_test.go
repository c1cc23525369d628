package integration

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// TestServiceAddresses: host ports of every address leave the addresses alone that kube-proxy keeps for IPVS on a link
// of its own, also those that come later. A server of the host stands for IPVS.
func TestServiceAddresses(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
	h.Network("net", testbed.Chain("ptp", testbed.Dual, "")...)
	testbed.Shell(t, "ip link add kube-ipvs0 type veth peer name ipvs-peer")
	t.Cleanup(func() { testbed.Shell(t, "ip link del kube-ipvs0") })
	services := []string{"10.96.0.1", "fd00:96::1"}
	testbed.Shell(t, "ip link set ipvs-peer up && ip link set kube-ipvs0 up && ip addr add 10.96.0.1/32 dev kube-ipvs0 && ip addr add fd00:96::1/128 dev kube-ipvs0 nodad")
	testbed.Shell(t, "ip -n outside route add 10.96.0.0/16 via "+testhost.Host4.Addr().String()+" && ip -n outside route add fd00:96::/64 via "+testhost.Host6.Addr().String())
	testbed.Serve(t, "", "tcp", 8080, "service")
	a, client := h.Alloc("a"), h.Alloc("client")
	a.Ports = []portmap.Port{testbed.TCPPort(8080, 80)}
	h.InNew(a, func() { testbed.Serve(t, a.Netns, "tcp", 80, "a") })
	h.SetUp(a)
	h.SetUp(client)
	requireReach := func() {
		t.Helper()
		for _, from := range []string{"", h.Outside.Path(), client.Netns} {
			for _, service := range services {
				testbed.RequireAnswer(t, from, "tcp", testbed.At(netip.MustParseAddr(service), 8080), "service")
			}
			for _, host := range []netip.Prefix{testhost.Host4, testhost.Host6} {
				testbed.RequireAnswer(t, from, "tcp", testbed.HostPort(host, 8080), "a")
			}
		}
	}
	requireReach()
	services = append(services, "10.96.0.2")
	testbed.Shell(t, "ip addr add 10.96.0.2/32 dev kube-ipvs0")
	_, err := h.Restore(h.Context())
	require.NoError(t, err)
	requireReach()
	testbed.Shell(t, "nft flush ruleset")
	_, err = h.Repair(h.Context())
	require.NoError(t, err)
	requireReach()
	h.TearDown(a, client)
}
