package policy

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
)

// TestPolicyOfSeveralNetworks: over a bridge, an allocation sends from the addresses of its other
// networks, too, and receives on them. The policy applies to all of them.
func TestPolicyOfSeveralNetworks(t *testing.T) {
	for _, order := range [][2]string{{"bridged", "routed"}, {"routed", "bridged"}} {
		for _, attach := range []bool{false, true} {
			name := order[0] + " first"
			if attach {
				name += ", attach"
			}
			t.Run(name, func(t *testing.T) { testSeveral(t, order, attach) })
		}
	}
}

func testSeveral(t *testing.T, order [2]string, attach bool) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"bridged", "routed"} })
	testbed.SetSysctls(t, "", testbed.Quick)
	h.Network("bridged", policed("bridge", testbed.Dual)...)
	h.Network("routed", policed("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"})...)
	for _, netns := range []string{"", h.Outside.Path()} {
		testbed.Serve(t, netns, "tcp", 90, "server")
	}
	x, neighbour := h.Alloc("x"), h.Alloc("neighbour")
	neighbour.Networks = []string{"bridged"}
	h.SetUp(neighbour)
	isolated := &policy.Policy{Presets: []policy.Preset{policy.Isolated}}
	x.Policy, x.Networks = isolated, order[:]
	if attach {
		x.Networks = order[:1]
	}
	s := h.SetUp(x)
	if attach {
		var err error
		s, err = h.Attach(h.Context(), x.ID, order[1], configurator.AttachOptions{})
		require.NoError(t, err)
	}
	testbed.Serve(t, x.Netns, "tcp", 80, "x")
	addresses := map[string][]netip.Addr{}
	device := ""
	for _, i := range s.Interfaces {
		if i.Sandbox == "" {
			continue
		}
		for _, one := range i.Addresses {
			addresses[i.Network] = append(addresses[i.Network], netip.MustParsePrefix(one.Address).Addr())
		}
		if i.Network == "bridged" {
			device = i.Name
		}
	}
	// The neighbour and the host reach the addresses of the routed network over the bridge as well,
	// and x sends everything over it.
	gateways := map[bool]string{true: "10.99.0.1", false: "fd00:99::1"}
	for i, via := range addresses["bridged"] {
		to := addresses["routed"][i]
		testbed.Within(t, neighbour.Netns, func() error {
			return testbed.Command("ip", "route", "replace", to.String(), "via", via.String())
		})
		for _, target := range []netip.Prefix{testhost.Outside4, testhost.Outside6} {
			if target.Addr().Is4() == to.Is4() {
				sendVia(t, x.Netns, target.Addr(), "via", gateways[to.Is4()], "dev", device)
			}
		}
		sendVia(t, x.Netns, netip.MustParseAddr(gateways[to.Is4()]), "dev", device)
	}
	requireIsolated := func() {
		t.Helper()
		var probes sync.WaitGroup
		refused := func(netns string, from, to netip.Addr, port uint16) {
			if from.IsValid() && to.Is4() != from.Is4() {
				return
			}
			probes.Go(func() { assert.Error(t, dialFrom(t, netns, from, netip.AddrPortFrom(to, port)), "%s to %s", from, to) })
		}
		for _, list := range addresses {
			for _, address := range list {
				refused(x.Netns, address, testhost.Outside4.Addr(), 90)
				refused(x.Netns, address, testhost.Outside6.Addr(), 90)
				refused(x.Netns, address, netip.MustParseAddr(gateways[address.Is4()]), 90)
				refused(neighbour.Netns, netip.Addr{}, address, 80)
			}
		}
		probes.Wait()
	}
	requireIsolated()
	require.NoError(t, h.CheckOnly(h.Context(), x))
	privhost.FlushRuleset(t)
	_, err := h.Repair(h.Context())
	require.NoError(t, err)
	requireIsolated()

	_, err = h.Update(h.Context(), x.ID, configurator.Change{Policy: &policy.Policy{}})
	require.NoError(t, err)
	for _, from := range addresses["bridged"] {
		for _, to := range []netip.Prefix{testhost.Outside4, testhost.Outside6} {
			if to.Addr().Is4() == from.Is4() {
				require.NoError(t, dialFrom(t, x.Netns, from, netip.AddrPortFrom(to.Addr(), 90)), "%s", from)
			}
		}
	}
	_, err = h.Update(h.Context(), x.ID, configurator.Change{Policy: isolated})
	require.NoError(t, err)
	requireIsolated()
	_, err = h.Detach(h.Context(), x.ID, "eth1", "")
	require.NoError(t, err)
	require.NoError(t, h.CheckOnly(h.Context(), x))
	h.TearDown(x, neighbour)
}

// dialFrom connects from an address inside a namespace, or from any.
func dialFrom(t *testing.T, netns string, from netip.Addr, to netip.AddrPort) (dialErr error) {
	t.Helper()
	testbed.Within(t, netns, func() error {
		d := net.Dialer{Timeout: time.Second / 2}
		if from.IsValid() {
			d.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
		}
		c, err := d.DialContext(t.Context(), "tcp", to.String())
		if dialErr = err; err == nil {
			c.Close()
		}
		return nil
	})
	return dialErr
}
