package configurator

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/subnets"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// ip runs the program ip with the words of a line.
func ip(t *testing.T, line string) {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
	require.NoError(t, err, "ip %s: %s", line, out)
}

// lan gives the host an uplink in a network with a gateway, and a default route.
func lan(t *testing.T, address, gateway string) {
	t.Helper()
	ip(t, "link add uplink type veth peer name router")
	t.Cleanup(func() { ip(t, "link del uplink") })
	ip(t, "link set uplink up")
	ip(t, "link set router up")
	ip(t, "addr add "+address+" dev uplink")
	ip(t, "route add default via "+gateway+" dev uplink")
}

// TestSubnetOfTheHost: a network whose subnet holds what the host has is refused, before anything changes, until
// the host has it no more.
func TestSubnetOfTheHost(t *testing.T) {
	for name, c := range map[string]struct{ prepare, undo, taken string }{
		"an address":       {"addr add 10.77.0.9/30 dev uplink", "addr del 10.77.0.9/30 dev uplink", "address 10.77.0.9/30 of uplink"},
		"a next hop":       {"route add 198.51.100.0/24 via 10.77.0.1 dev uplink onlink", "route del 198.51.100.0/24", "10.77.0.1, the next hop of the route 198.51.100.0/24 via 10.77.0.1 through uplink"},
		"a narrower route": {"route add 10.77.0.128/25 dev uplink", "route del 10.77.0.128/25", "route 10.77.0.128/25 through uplink"},
		"in another table": {"route add 10.77.0.128/25 dev uplink table 77", "route del 10.77.0.128/25 table 77", "route 10.77.0.128/25 through uplink"},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := nativeHost(t, "1.0.0")
			lan(t, "192.0.2.7/24", "192.0.2.1")
			h.file("other.conflist", `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"ptp","ipam":{"type":"host-local","dataDir":"`+t.TempDir()+`","subnet":"10.76.0.0/24"}}]}`)
			present := h.alloc("present")
			present.Networks = []string{"other"}
			_, err := h.Setup(t.Context(), present)
			require.NoError(t, err)

			ip(t, c.prepare)
			h.prefixes.until = h.now() // as if it had not been looked at lately
			requireTaken := func(err error) {
				t.Helper()
				require.ErrorIs(t, err, ErrSubnetTaken)
				var taken *SubnetError
				require.ErrorAs(t, err, &taken)
				require.Equal(t, &SubnetError{Network: "net", File: filepath.Join(h.conf, "net.conflist"), Subnet: netip.MustParsePrefix("10.77.0.0/24"), Taken: c.taken}, taken)
				require.ErrorContains(t, err, "choose another subnet in "+taken.File)
			}
			a := h.alloc("a")
			_, err = h.Setup(t.Context(), a)
			requireTaken(err)
			_, err = h.Attach(t.Context(), "present", "net", AttachOptions{})
			requireTaken(err)
			requireTaken(h.Ready(t.Context()))
			out, err := exec.Command("ip", "link", "show", "brtest").CombinedOutput()
			require.Error(t, err, "%s", out)
			require.Empty(t, h.slept, "it is not tried again")
			_, err = h.Get(t.Context(), "a")
			require.ErrorIs(t, err, ErrNotFound)

			ip(t, c.undo) // what was seen before does not refuse it
			_, err = h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.NoError(t, h.Teardown(t.Context(), a))
			require.NoError(t, h.Teardown(t.Context(), present))
		})
	}
}

// TestSubnetOfOwnLinks: addresses and routes of allocations, and of the network's own bridge, are no obstacle to a Setup.
func TestSubnetOfOwnLinks(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	leases := t.TempDir()
	h.file("other.conflist", `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"ptp","ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.76.0.0/24"}}]}`)
	var all []Allocation
	for _, id := range []string{"a", "b", "c", "d"} {
		a := h.alloc(id)
		if id > "b" {
			a.Networks = []string{"other"}
		}
		h.prefixes.until = h.now()
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err, id)
		all = append(all, a)
	}
	for _, a := range all {
		require.NoError(t, h.Teardown(t.Context(), a))
	}
}

// TestSubnetsOfTheEmbeddedNetwork: the first Setup chooses subnets in which the host has nothing. They stay.
func TestSubnetsOfTheEmbeddedNetwork(t *testing.T) {
	first, second := conflist.EmbeddedSubnets[0][0], conflist.EmbeddedSubnets[0][1]
	h := newTestHost(t, func(c *Config) { c.Engine, c.Networks = EngineNative, []string{conflist.EmbeddedName} })
	t.Cleanup(func() { privhost.FlushRuleset(t) })
	setUp := func(c *Configurator, id string) netip.Addr {
		t.Helper()
		a := h.alloc(id)
		status, err := c.Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, c.Teardown(t.Context(), a))
		return netip.MustParseAddr(status.Address)
	}
	require.NoError(t, h.Ready(t.Context()))
	lan(t, first.Addr().Next().Next().String()+"/16", first.Addr().Next().String()) // after the start of the process
	listed := func() netip.Prefix {
		all, _ := h.confs.Networks()
		return subnets.Of(all[len(all)-1])[0].Prefix
	}
	require.Equal(t, first, listed(), "each list of networks looks at all links of the host")
	require.NoError(t, h.Ready(t.Context()))
	require.Equal(t, second, listed())
	require.True(t, second.Contains(setUp(h.Configurator, "a")))

	ip(t, "link del uplink")
	ip(t, "link add uplink type bridge") // for the end of the test
	require.True(t, second.Contains(setUp(h.restarted(), "b")), "another process, when the first subnet is free")
	require.True(t, second.Contains(setUp(h.Configurator, "c")))
	require.NoError(t, os.Remove(filepath.Join(h.cfg.StateDir, "subnets")))
	require.True(t, first.Contains(setUp(h.restarted(), "d")), "leases without a choice are of an earlier version")
}

// TestSubnetOfARequestedAddress: the plugin looks itself when the bridge gets an address that no configuration
// names, and takes the address back.
func TestSubnetOfARequestedAddress(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,"capabilities":{"ips":true},"ipam":{"type":"static"}}]}`)
	lan(t, "10.77.0.7/16", "10.77.0.1")
	a := h.alloc("a")
	a.IPs = []string{"10.77.0.9/24"}
	_, err := h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrSubnetTaken)
	require.ErrorContains(t, err, `network "net": its subnet 10.77.0.0/24 holds address 10.77.0.7/16 of uplink, which the host would lose`)
	require.Empty(t, h.slept, "it is not tried again")
	out, err := exec.Command("ip", "-brief", "addr", "show", "brtest").CombinedOutput()
	require.NoError(t, err)
	require.NotContains(t, string(out), "10.77.0.1")
	h.requireNoRecords()

	a.IPs = []string{"10.78.0.9/24"}
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), a))
}
