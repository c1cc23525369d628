package integration

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// TestEmbeddedNetworkWasABridge: allocations of the time when the embedded network was a
// bridge live on beside new ones, which are routed.
func TestEmbeddedNetworkWasABridge(t *testing.T) {
	testbed.Each(t, testbed.Engines, testEmbeddedNetworkWasABridge)
}

func testEmbeddedNetworkWasABridge(t *testing.T, w testbed.Way) {
	h := newHost(t, w.Engine, func(c *configurator.Config) {
		c.Network = "allocnet"
		if w.Engine == configurator.EngineNative { // published-only admits allocations with the plugin policy
			c.Policy = &policy.Policy{Presets: []policy.Preset{policy.NoHost}}
		}
	})
	bridge := testbed.Chain("bridge", testbed.Families{V4: "10.202.0.0/16", V6: "fd0a:110c:2e7::/64"}, w.Backend)
	bridge[1]["bridge"] = "allocnet0"
	bridge[1]["ipam"].(map[string]any)["dataDir"] = filepath.Join(configurator.DefaultStateDir, "leases")
	if w.Engine == configurator.EngineExec {
		bridge[2]["iptablesAdminChainName"] = "ALLOCNET-ADMIN"
	}
	h.Network("allocnet", bridge...)
	before := h.Alloc("before")
	before.Ports = []portmap.Port{{Value: 8080, To: 80}}
	old := h.SetUp(before)

	require.NoError(t, os.Remove(filepath.Join(h.ConfDir, "allocnet.conflist")))
	after := h.Alloc("after")
	after.Ports = []portmap.Port{{Value: 9090, To: 80}}
	routed := h.SetUp(after)
	require.NotEqual(t, old.Address, routed.Address)
	require.NotEqual(t, old.AddressIPv6, routed.AddressIPv6)
	h.WithoutSlots()
	leases, err := filepath.Glob(configurator.DefaultStateDir + "/leases/allocnet/10.*")
	require.NoError(t, err)
	require.Len(t, leases, 2, "both are in one directory")

	testbed.Serve(t, before.Netns, "tcp", 80, "before")
	testbed.Serve(t, after.Netns, "tcp", 80, "after")
	requireReached := func(s *configurator.Status, name string, port int, from ...string) {
		t.Helper()
		for _, address := range []string{s.Address, s.AddressIPv6} {
			testbed.RequireAnswer(t, "", "tcp", net.JoinHostPort(address, "80"), name)
		}
		for _, netns := range append(from, "", h.Outside.Path()) {
			for _, address := range []netip.Prefix{testhost.Host4, testhost.Host6} {
				testbed.RequireAnswer(t, netns, "tcp", testbed.HostPort(address, port), name)
			}
		}
		testbed.RequireAnswer(t, "", "tcp", testbed.HostPort(netip.MustParsePrefix("127.0.0.1/32"), port), name)
	}
	requireReached(old, "before", 8080, before.Netns, after.Netns)
	requireReached(routed, "after", 9090, before.Netns, after.Netns)

	// The bridge's allocations look for the others on the bridge, where the host answers
	// only if it is told to.
	toRouted := net.JoinHostPort(routed.Address, "80")
	testbed.RequireSilence(t, before.Netns, "tcp", toRouted)
	require.NoError(t, rtnl.SetSysctl("net/ipv4/conf/allocnet0/proxy_arp", "1"))
	testbed.RequireAnswer(t, before.Netns, "tcp", toRouted, "after")
	testbed.RequireAnswer(t, after.Netns, "tcp", net.JoinHostPort(old.Address, "80"), "before")

	for _, a := range []configurator.Allocation{before, after} {
		require.NoError(t, h.Check(h.Context(), a))
	}
	require.Equal(t, old, h.SetUp(before), "it is not attached again")
	h.TearDown(before)
	requireReached(routed, "after", 9090, after.Netns) // the bridge and its address stay
	h.TearDown(after)
}
