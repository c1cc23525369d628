package integration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// TestForwardingIsRestored: CHECK finds that the host no longer forwards packets of an allocation,
// and Repair restores it.
func TestForwardingIsRestored(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
			a := h.Alloc("a")
			a.Ports = []portmap.Port{testbed.TCPPort(8080, 80)}
			h.InNew(a, func() { testbed.Serve(t, a.Netns, "tcp", 80, "served") })
			testbed.Serve(t, h.Outside.Path(), "tcp", 81, "outside")
			s := h.SetUp(a)
			link := "br-test"
			if main == "ptp" {
				link = testbed.HostLink(t, s)
			}
			requireReach := func() {
				t.Helper()
				for _, to := range []string{testbed.HostPort(testhost.Host4, 8080), testbed.HostPort(testhost.Host6, 8080)} {
					testbed.RequireAnswer(t, h.Outside.Path(), "tcp", to, "served")
				}
				for _, to := range []string{testbed.HostPort(testhost.Outside4, 81), testbed.HostPort(testhost.Outside6, 81)} {
					testbed.RequireAnswer(t, a.Netns, "tcp", to, "outside")
				}
				testbed.RequireAnswer(t, "", "tcp", "127.0.0.1:8080", "served")
			}
			requireReach()
			for _, sysctl := range []string{
				"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
				"net/ipv4/conf/" + link + "/forwarding", "net/ipv4/conf/" + link + "/route_localnet",
			} {
				require.NoError(t, h.CheckOnly(h.Context(), a))
				testbed.Shell(t, "sysctl -qw "+sysctl+"=0")
				err := h.CheckOnly(h.Context(), a)
				require.ErrorIs(t, err, configurator.ErrUnhealthy)
				require.ErrorContains(t, err, strings.ReplaceAll(sysctl, "/", ".")+" is 0")
				report, err := h.Repair(h.Context())
				require.NoError(t, err)
				require.Equal(t, []string{a.ID}, report.Repaired, sysctl)
				require.NoError(t, h.CheckOnly(h.Context(), a))
				requireReach()

				testbed.Shell(t, "sysctl -qw "+sysctl+"=0")
				restored, err := h.Restore(h.Context())
				require.NoError(t, err)
				require.Equal(t, []string{a.ID}, restored.Restored, sysctl)
				requireReach()
			}
			restored, err := h.Restore(h.Context())
			require.NoError(t, err)
			require.Empty(t, restored.Restored)
			h.TearDown(a)
		})
	}
}

// TestForwardingOffByDefault: an allocation is reachable also if the host does not forward packets
// from new links by default.
func TestForwardingOffByDefault(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
			testbed.SetSysctls(t, "", map[string]string{"net/ipv4/ip_forward": "1"})
			testbed.SetSysctls(t, "", map[string]string{"net/ipv4/conf/default/forwarding": "0"})
			testbed.Serve(t, h.Outside.Path(), "tcp", 81, "outside")
			a := h.Alloc("a")
			h.SetUp(a)
			testbed.RequireAnswer(t, a.Netns, "tcp", testbed.HostPort(testhost.Outside4, 81), "outside")
			h.TearDown(a)
		})
	}
}

// TestIPv6IsEnabledAgain: if another program disables IPv6 on the interface of the host, CHECK finds
// it, and Repair enables it and restores what the kernel has removed.
func TestIPv6IsEnabledAgain(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
			a := h.Alloc("a")
			a.Ports = []portmap.Port{testbed.TCPPort(8080, 80)}
			h.InNew(a, func() { testbed.Serve(t, a.Netns, "tcp", 80, "served") })
			s := h.SetUp(a)
			h.WithoutSlots() // a slot being prepared would enable IPv6 on the bridge
			link := "br-test"
			if main == "ptp" {
				link = testbed.HostLink(t, s)
			}
			for range 2 {
				testbed.Shell(t, "sysctl -qw net/ipv6/conf/"+link+"/disable_ipv6=1")
				require.ErrorIs(t, h.CheckOnly(h.Context(), a), configurator.ErrUnhealthy)
				report, err := h.Repair(h.Context())
				require.NoError(t, err)
				require.Equal(t, []string{a.ID}, report.Repaired)
				testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, 8080), "served")
				require.NoError(t, h.CheckOnly(h.Context(), a))
			}
			h.TearDown(a)
		})
	}
}
