package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// damageToSlots is what other programs may do while network namespaces wait in a pool. VETH
// stands for each of the slots' links.
var damageToSlots = map[string][]string{
	"bridge": {
		"ip link del br-test", "ip link set br-test down", "ip link set VETH nomaster", "ip link set VETH down", "ip link del VETH",
		"ip -6 route del fd00:99::/64", "ip route del 10.99.0.0/24",
		"nft flush ruleset", "nft delete table ip allocnet", "nft flush set ip allocnet masqueraded", "nft flush set ip6 allocnet open",
		"sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv6.conf.all.forwarding=0",
		"iptables -F FORWARD", "printf '*filter\\n:FORWARD DROP\\nCOMMIT\\n' | iptables-restore",
	},
	"ptp": {
		"ip address flush dev VETH", "ip -6 address flush dev VETH", "ip route flush dev VETH", "ip -6 route flush dev VETH",
		"ip link set VETH down", "ip link del VETH", "nft flush ruleset", "nft delete table ip6 allocnet",
		"sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.conf.VETH.forwarding=0",
	},
}

// TestPoolDamaged: whatever another program removes of the network namespaces that wait in a
// pool, an allocation gets none of them as it is. It is as healthy as one without a pool.
func TestPoolDamaged(t *testing.T) {
	testhost.EachElsewhere(t, slices.Sorted(maps.Keys(damageToSlots)), func(t *testing.T, main string) {
		for _, line := range damageToSlots[main] {
			t.Run(line, func(t *testing.T) { testPoolDamaged(t, main, line) })
		}
	})
}

func testPoolDamaged(t *testing.T, main, line string) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
	h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
	slots := 2
	if testing.Short() {
		slots = 1
	}
	h.pooled(slots)
	testbed.DamageSlots(t, line)
	if strings.HasSuffix(line, "iptables-restore") {
		t.Cleanup(func() { testbed.Shell(t, "iptables -P FORWARD ACCEPT") })
	}
	var allocs []configurator.Allocation
	for i := range slots + 1 {
		a := configurator.Allocation{ID: fmt.Sprint("a", i), OwnNetns: true, Wait: true, Ports: []portmap.Port{{Value: 8080 + i, To: 80}}}
		_, err := h.Setup(h.Context(), a)
		require.NoError(t, err)
		h.requireHealthy(a)
		allocs = append(allocs, a)
	}
	for _, a := range allocs {
		require.NoError(t, h.Teardown(h.Context(), a))
	}
	require.Eventually(t, func() bool { return h.Pools()[0].Ready == slots }, 20*time.Second, time.Millisecond, "damaged slots are replaced")
}

// requireHealthy checks an allocation from a pool, and connects to its first host port.
func (h *host) requireHealthy(a configurator.Allocation) {
	h.T.Helper()
	require.NoError(h.T, h.Check(h.Context(), a))
	testbed.Serve(h.T, "/run/netns/"+a.ID, "tcp", 80, a.ID)
	testbed.RequireAnswer(h.T, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, a.Ports[0].Value), a.ID)
	testbed.RequireAnswer(h.T, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, a.Ports[0].Value), a.ID)
}

// TestPoolOfAnotherTime: what an ADD would now choose differently is not handed out.
func TestPoolOfAnotherTime(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
			h.pooled(2)
			h.behindOverlay(1400)
			ordinary := h.Alloc("ordinary") // has a network namespace already
			ordinary.Wait = true
			require.Eventually(t, func() bool { // the MTU of the default route is looked up once a second
				s := h.SetUp(ordinary)
				require.NoError(t, h.Teardown(h.Context(), ordinary))
				return mtuOfStatus(s, "eth0") == 1400
			}, 20*time.Second, 10*time.Millisecond)
			a := configurator.Allocation{ID: "a", OwnNetns: true, Wait: true}
			for range 4 {
				s, err := h.Setup(h.Context(), a)
				require.NoError(t, err)
				require.Equal(t, 1400, mtuOfStatus(s, "eth0"))
				require.NoError(t, h.Teardown(h.Context(), a))
			}
		})
	}
}
