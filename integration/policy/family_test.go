package policy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// TestPolicyWithoutIPv6: an allocation that has no IPv6 address, and a policy, sends and receives no
// IPv6 packet, even if both ends get addresses later. A network with IPv6 that is attached is not
// concerned.
func TestPolicyWithoutIPv6(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
	testbed.SetSysctls(t, "", testbed.Quick)
	h.Network("net", policed("ptp", testbed.V4Only)...)
	h.Network("more", policed("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"})...)
	testbed.Serve(t, "", "tcp", 82, "host")
	testbed.Serve(t, h.Outside.Path(), "tcp", 81, "outside")
	host6, inside6 := netip.MustParseAddr("fd00:77::1"), netip.MustParseAddr("fd00:77::2")
	address := func(a configurator.Allocation, s *configurator.Status) {
		testbed.Serve(t, a.Netns, "tcp", 80, a.ID)
		link := testbed.HostLink(t, s)
		testbed.Shell(t, "ip -6 address add fd00:77::1/64 dev "+link+" nodad")
		testbed.Within(t, a.Netns, func() error {
			return testbed.Command("ip", "-6", "address", "add", "fd00:77::2/64", "dev", "eth0", "nodad")
		})
	}
	free, bound := h.Alloc("free"), h.Alloc("bound")
	bound.Policy = mustPolicy(t, `{"presets":["no-metadata"]}`)

	address(free, h.SetUp(free))
	testbed.RequireAnswer(t, free.Netns, "tcp", testbed.At(host6, 82), "host")
	testbed.RequireAnswer(t, "", "tcp", testbed.At(inside6, 80), "free")
	h.TearDown(free)

	s := h.SetUp(bound)
	address(bound, s)
	testbed.RequireSilence(t, bound.Netns, "tcp", testbed.At(host6, 82))
	testbed.RequireSilence(t, "", "tcp", testbed.At(inside6, 80))
	testbed.RequireAnswer(t, bound.Netns, "tcp", testbed.HostPort(testhost.Outside4, 81), "outside")
	require.NoError(t, h.CheckOnly(h.Context(), bound))

	s, err := h.Attach(h.Context(), bound.ID, "more", configurator.AttachOptions{})
	require.NoError(t, err)
	for _, i := range s.Interfaces {
		if i.Network == "more" && i.Sandbox != "" {
			for _, one := range i.Addresses {
				testbed.RequireAnswer(t, "", "tcp", testbed.At(netip.MustParsePrefix(one.Address).Addr(), 80), "bound")
			}
		}
	}
	testbed.RequireAnswer(t, bound.Netns, "tcp", testbed.HostPort(testhost.Outside6, 81), "outside")
	testbed.RequireSilence(t, bound.Netns, "tcp", testbed.At(netip.MustParseAddr("169.254.169.254"), 80))
	require.NoError(t, h.CheckOnly(h.Context(), bound))
	h.TearDown(bound)
}
