package configurator

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestStaticAddressOfAnother: IPAM plugins such as static assign an address as often as they are asked.
// An allocation that requests that of another one is refused, and the other one is not changed. The
// address is free as soon as Teardown has returned.
func TestStaticAddressOfAnother(t *testing.T) {
	for kind, keys := range map[string]string{"bridge": `"bridge":"brfixed","isGateway":true`, "ptp": `"mtu":1400`} {
		t.Run(kind, func(t *testing.T) {
			h, _ := nativeHost(t, "1.0.0")
			t.Cleanup(func() {
				if link, err := netlink.LinkByName("brfixed"); err == nil {
					require.NoError(t, netlink.LinkDel(link))
				}
			})
			h.file("fixed.conflist", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"fixed","plugins":[{"type":%q,%s,"ipMasq":true,
				"ipam":{"type":"static","addresses":[{"address":"10.81.0.5/24","gateway":"10.81.0.1"}]}},{"type":"firewall"},%s]}`, kind, keys, policyPlugin))
			first, second, third := h.alloc("first"), h.alloc("second"), h.alloc("third")
			first.Networks, second.Networks = []string{"fixed"}, []string{"fixed"}
			_, err := h.Setup(t.Context(), first)
			require.NoError(t, err)
			exchangePackets(t, "brfixed", "10.81.0.5")
			before := hostNeighbours(t)
			refused := func(err error) {
				t.Helper()
				require.Equal(t, before, hostNeighbours(t), "nothing was changed")
				require.ErrorIs(t, err, ErrAddressUnavailable)
				require.ErrorContains(t, err, "allocnet:fixed/first/eth0")
				require.NoError(t, h.Check(t.Context(), first))
			}
			_, err = h.Setup(t.Context(), second)
			refused(err)
			_, err = h.Setup(t.Context(), third)
			require.NoError(t, err)
			_, err = h.Attach(t.Context(), third.ID, "fixed", AttachOptions{})
			refused(err)
			require.NoError(t, h.Teardown(t.Context(), third))
			repaired, err := h.Repair(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"first"}, repaired.Healthy)
			require.NoError(t, h.Teardown(t.Context(), second), "it is not set up")
			require.NoError(t, h.Check(t.Context(), first))

			require.NoError(t, h.Teardown(t.Context(), first))
			status, err := h.Setup(t.Context(), second)
			require.NoError(t, err)
			require.Equal(t, "10.81.0.5", status.Address)
			require.NoError(t, h.Check(t.Context(), second))
			require.NoError(t, h.Teardown(t.Context(), second))
			h.requireNoRecords()
		})
	}
}

// exchangePackets makes the host know the MAC of an address over a link, if the link exists.
func exchangePackets(t *testing.T, name, address string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		return
	}
	mac, err := net.ParseMAC("02:aa:00:00:00:01")
	require.NoError(t, err)
	require.NoError(t, netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, State: netlink.NUD_STALE, IP: net.ParseIP(address), HardwareAddr: mac,
	}))
}

// hostNeighbours returns the MACs of the IPv4 addresses that the host knows.
func hostNeighbours(t *testing.T) map[string]string {
	t.Helper()
	list, err := netlink.NeighList(0, netlink.FAMILY_V4)
	require.NoError(t, err)
	macs := map[string]string{}
	for _, n := range list {
		if n.State&netlink.NUD_NOARP == 0 {
			macs[n.IP.String()] = n.HardwareAddr.String()
		}
	}
	return macs
}

// TestRepairOfATakenAddress: without policies, nothing shows after a flush that a bridge has the address, so
// another allocation can get it. Repair of the first one takes nothing of that one.
func TestRepairOfATakenAddress(t *testing.T) {
	h, first, second := sameAddress(t, "")
	_, err := h.Setup(t.Context(), second)
	require.NoError(t, err)
	for range 2 {
		repaired, err := h.Repair(t.Context())
		require.ErrorIs(t, err, ErrAddressUnavailable)
		require.ErrorContains(t, err, "allocnet:fixed/second/eth0")
		require.Equal(t, []string{"first"}, repaired.Broken)
		require.Equal(t, []string{"second"}, repaired.Healthy)
		require.NoError(t, h.Check(t.Context(), second))
	}
	require.NoError(t, h.Teardown(t.Context(), first))
	require.NoError(t, h.Check(t.Context(), second))
	require.NoError(t, h.Teardown(t.Context(), second))
}

// TestAddressIsNotTakenAfterAFlush: in a network with policies, a Setup after a flush of the ruleset first adds the
// addresses of all allocations, so it does not take one of them.
func TestAddressIsNotTakenAfterAFlush(t *testing.T) {
	h, first, second := sameAddress(t, ","+policyPlugin)
	_, err := h.Setup(t.Context(), second)
	require.ErrorIs(t, err, ErrAddressUnavailable)
	repaired, err := h.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"first"}, repaired.Repaired)
	require.NoError(t, h.Teardown(t.Context(), first))
	_, err = h.Setup(t.Context(), second)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), second))
}

// sameAddress returns two allocations with the same static address. The first one is set up, and the ruleset
// was flushed after that. more are further plugins of the network.
func sameAddress(t *testing.T, more string) (h *testHost, first, second Allocation) {
	h, _ = nativeHost(t, "1.0.0")
	h.file("fixed.conflist", `{"cniVersion":"1.0.0","name":"fixed","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,"ipMasq":true,
		"ipam":{"type":"static","addresses":[{"address":"10.81.0.5/24","gateway":"10.81.0.1"}]}},{"type":"firewall"}`+more+`]}`)
	first, second = h.alloc("first"), h.alloc("second")
	first.Networks, second.Networks = []string{"fixed"}, []string{"fixed"}
	_, err := h.Setup(t.Context(), first)
	require.NoError(t, err)
	privhost.FlushRuleset(t)
	return h, first, second
}
