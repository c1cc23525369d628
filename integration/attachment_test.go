package integration

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// interfaceOf returns the interface of an allocation in a network; nil if it has none.
func interfaceOf(s *configurator.Status, network string) *configurator.Interface {
	for _, i := range s.Interfaces {
		if i.Network == network && i.Sandbox != "" {
			return &i
		}
	}
	return nil
}

// requireInterface fails unless the namespace of an allocation has a link, or has none.
func requireInterface(t *testing.T, netns, name string, has bool) {
	t.Helper()
	s, err := sandbox.Open(netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		_, err := netlink.LinkByName(name)
		require.Equal(t, has, err == nil, name)
		return nil
	}))
}

// TestAttach adds networks to an allocation while it runs, and removes them, without any effect
// on the others.
func TestAttach(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"front"} })
	h.Network("front", testbed.Chain("bridge", testbed.Dual, "")...)
	h.Network("back", testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, "")...)
	h.Network("third", testbed.Chain("ptp", testbed.Families{V4: "10.97.0.0/24"}, "")...)
	a := h.Alloc("a")
	a.Ports = []portmap.Port{testbed.TCPPort(8080, 80), testbed.TCPPort(8081, 81)}
	h.InNew(a, func() {
		testbed.ServeStreams(t, a.Netns)
		testbed.Serve(t, a.Netns, "tcp", 81, "eighty-one")
	})
	first := h.SetUp(a)
	outside, kept := h.Outside.Path(), h.Echo(testbed.HostPort(testhost.Host4, 8080))

	s, err := h.Attach(h.Context(), a.ID, "back", configurator.AttachOptions{Revision: first.Revision})
	require.NoError(t, err)
	back := interfaceOf(s, "back")
	require.Equal(t, "eth1", back.Name)
	require.Len(t, back.Addresses, 2)
	require.Equal(t, first.Address, s.Address)
	require.Equal(t, first.Ports, s.Ports)
	for _, one := range back.Addresses {
		address := netip.MustParsePrefix(one.Address).Addr()
		testbed.RequireAnswer(t, "", "tcp", net.JoinHostPort(address.String(), "81"), "eighty-one")
	}
	testbed.RequireAnswer(t, outside, "tcp", testbed.HostPort(testhost.Host4, 8081), "eighty-one")
	require.NoError(t, h.CheckOnly(h.Context(), a))
	s, err = h.Attach(h.Context(), a.ID, "third", configurator.AttachOptions{Interface: "storage"})
	require.NoError(t, err)
	require.Equal(t, "storage", interfaceOf(s, "third").Name)

	privhost.FlushRuleset(t)
	report, err := h.Repair(h.Context())
	require.NoError(t, err)
	require.Equal(t, []string{a.ID}, report.Repaired)
	testbed.RequireAnswer(t, outside, "tcp", testbed.HostPort(testhost.Host4, 8081), "eighty-one")

	_, err = h.Setup(h.Context(), a)
	require.ErrorIs(t, err, configurator.ErrDifferent)
	as := a
	as.Networks = []string{"front", "back", "third"}
	again, err := h.Setup(h.Context(), as)
	require.NoError(t, err)
	require.False(t, again.Created)

	s, err = h.Detach(h.Context(), a.ID, "eth1", s.Revision)
	require.NoError(t, err)
	require.Nil(t, interfaceOf(s, "back"))
	requireInterface(t, a.Netns, "eth1", false)
	requireInterface(t, a.Netns, "storage", true)
	require.NoError(t, h.CheckOnly(h.Context(), a))
	require.NoError(t, kept(), "a connection to the first network goes on")
	s, err = h.Attach(h.Context(), a.ID, "back", configurator.AttachOptions{})
	require.NoError(t, err)
	require.Equal(t, "eth1", interfaceOf(s, "back").Name)
	h.TearDown(a)
}

// TestDefaultRouteStays: an allocation uses the default routes of its first network. Another
// network with default routes of its own does not end the connections that the allocation has to
// the outside, neither when it comes nor when it goes.
func TestDefaultRouteStays(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"front"} })
			front := testbed.Chain(main, testbed.Dual, "")
			if main == "ptp" { // its metrics come after those of routes without one
				front[1]["ipam"].(map[string]any)["routes"] = []map[string]any{{"dst": "0.0.0.0/0", "priority": 50}, {"dst": "::/0", "priority": 5000}}
			}
			h.Network("front", front...)
			h.Network("routed", testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, "")...)
			second := testbed.Chain("bridge", testbed.Families{V4: "10.97.0.0/24", V6: "fd00:97::/64"}, "")
			second[1]["bridge"] = "br-second"
			h.Network("bridged", second...)
			testbed.ServeStreams(t, h.Outside.Path())
			a := h.Alloc("a")
			h.SetUp(a)
			open := map[string]func() error{}
			for _, p := range []netip.Prefix{testhost.Outside4, testhost.Outside6} {
				open[p.String()] = h.EchoFrom(a.Netns, testbed.HostPort(p, 80))
			}
			requireOpen := func() {
				t.Helper()
				for to, echo := range open {
					require.NoError(t, echo(), to)
				}
				for _, p := range []netip.Prefix{testhost.Outside4, testhost.Outside6} {
					h.EchoFrom(a.Netns, testbed.HostPort(p, 80))
				}
				requireDefaultRoutes(t, a.Netns, "eth0")
				require.NoError(t, h.CheckOnly(h.Context(), a))
			}
			requireOpen()
			for _, network := range []string{"routed", "bridged"} {
				s, err := h.Attach(h.Context(), a.ID, network, configurator.AttachOptions{})
				require.NoError(t, err)
				requireOpen()
				attached := interfaceOf(s, network)
				for _, one := range attached.Addresses {
					requireAnswersOver(t, a.Netns, attached.Name, netip.MustParsePrefix(one.Address).Addr())
				}
			}
			for _, name := range []string{"eth1", "eth2"} {
				_, err := h.Detach(h.Context(), a.ID, name, "")
				require.NoError(t, err)
				requireOpen()
			}
			require.Len(t, sourceRules(t, a.Netns), map[string]int{"ptp": 2}[main], "those for the priorities of the first network")
			h.TearDown(a)

			a.Networks = []string{"front", "bridged", "routed"}
			h.SetUp(a)
			open = nil
			requireOpen()
			h.TearDown(a)
		})
	}
}

// requireDefaultRoutes fails unless packets from a namespace to the outside leave over one link
// only. The kernel uses the first of the routes that have the lowest priority number.
func requireDefaultRoutes(t *testing.T, netns, name string) {
	t.Helper()
	testbed.Within(t, netns, func() error {
		link, err := netlink.LinkByName(name)
		require.NoError(t, err)
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST)
			require.NoError(t, err)
			best := slices.MinFunc(routes, func(a, b netlink.Route) int { return a.Priority - b.Priority })
			require.Equal(t, link.Attrs().Index, best.LinkIndex, "%v", routes)
			require.Empty(t, best.MultiPath)
		}
		return nil
	})
}
