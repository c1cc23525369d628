package subnets

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

func network(t *testing.T, dir, ipam string) *conflist.Network {
	t.Helper()
	return parse(t, fmt.Sprintf(`{"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "dataDir": %q, %s}}`, dir, ipam))
}

func parse(t *testing.T, plugin string) *conflist.Network {
	t.Helper()
	n, err := conflist.Parse([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [` + plugin + `]}`))
	require.NoError(t, err)
	return n
}

func TestPools(t *testing.T) {
	n := network(t, "/d", `"ranges": [[{"subnet": "10.1.2.3/24"}], [{"subnet": "fd00::/64", "rangeStart": "fd00::10", "rangeEnd": "fd00::1f"}]]`)
	pools, err := Pools(n)
	require.NoError(t, err)
	require.Len(t, pools, 2)
	require.Equal(t, "10.1.2.0/24 10.1.2.1 10.1.2.254 10.1.2.1", fmt.Sprint(pools[0].Subnet, pools[0].Range.First, pools[0].Range.Last, pools[0].Range.Gateway))
	require.Equal(t, "fd00::/64 fd00::10 fd00::1f fd00::1", fmt.Sprint(pools[1].Subnet, pools[1].Range.First, pools[1].Range.Last, pools[1].Range.Gateway))
	require.Equal(t, "/d", pools[0].DataDir)
	require.Equal(t, "bridge", pools[0].Plugin)
}

func FuzzPools(f *testing.F) {
	f.Add([]byte(`{"ipam":{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.5","gateway":"::ffff:10.1.0.1"}}`))
	f.Add([]byte(`{"ipam":{"dataDir":"/x","ranges":[[{"subnet":"fd00::/8"},{"subnet":"0.0.0.0/0"}],null]}}`))
	f.Fuzz(func(t *testing.T, conf []byte) {
		pools, _ := poolsOf("x", conf)
		for _, p := range pools {
			require.NotEmpty(t, p.DataDir)
			r := p.Range
			require.Equal(t, r.First.BitLen(), r.Last.BitLen())
			require.LessOrEqual(t, r.First.Compare(r.Last), 0)
		}
	})
}

func TestOf(t *testing.T) {
	for plugin, want := range map[string]string{
		`{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00::/64"}]]}}`:                      "[10.1.0.0/16 at  true 10.1.0.1 fd00::/64 at  true fd00::1]",
		`{"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}`:                                                              "[10.1.0.0/16 at cni0 false 10.1.0.1]",
		`{"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}`:                   "[10.1.0.0/16 at br0 true 10.1.0.1]",
		`{"type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.7/16", "gateway": "10.1.0.1"}, {"address": "fd00::7/64"}]}}`: "[10.1.0.0/16 at  true 10.1.0.1 fd00::/64 at  true invalid IP]",
		`{"type": "macvlan", "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}`:                                                             "[]",
		`{"type": "ptp", "ipam": {"type": "static", "addresses": "10.1.0.7"}}`:                                                                     "[]",
	} {
		var got []string
		for _, s := range Of(parse(t, plugin)) {
			got = append(got, fmt.Sprint(s.Prefix, " at ", s.Bridge, " ", s.Gateway, " ", s.Range.Gateway))
		}
		require.Equal(t, want, fmt.Sprint(got), plugin)
	}
}

func TestCovers(t *testing.T) {
	const wide = `{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}`
	const noGateway = `{"type": "bridge", "bridge": "br0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}`
	const ptp = `{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}`
	at := func(kind Kind, prefix, link string) Taken {
		return Taken{Kind: kind, Prefix: netip.MustParsePrefix(prefix), Link: link}
	}
	owned := at(Route, "10.1.0.9/32", "vethabc")
	owned.Owner = names.Owner{Network: "other", ID: "a", IfName: "eth0"}
	for _, c := range []struct {
		name, plugin string
		taken        Taken
		want         bool
	}{
		{"an address", wide, at(Address, "10.1.2.3/24", "eth0"), true},
		{"an address, ptp", ptp, at(Address, "10.1.2.3/24", "eth0"), true},
		{"an address in a wider network of the host", wide, at(Address, "10.1.2.3/8", "eth0"), true},
		{"an address elsewhere in a wider network of the host", wide, at(Address, "10.2.2.3/8", "eth0"), false},
		{"a next hop", wide, at(NextHop, "10.1.0.1/32", "eth0"), true},
		{"a next hop, ptp", ptp, at(NextHop, "10.1.0.1/32", "eth0"), true},
		{"a narrower route", wide, at(Route, "10.1.4.0/24", "wg0"), true},
		{"an equal route", wide, at(Route, "10.1.0.0/16", "wg0"), true},
		{"an equal route as a fallback", wide, Taken{Kind: Route, Prefix: netip.MustParsePrefix("10.1.0.0/16"), Link: "wg0", Fallback: true}, false},
		{"a narrower route as a fallback", wide, Taken{Kind: Route, Prefix: netip.MustParsePrefix("10.1.4.0/24"), Link: "wg0", Fallback: true}, true},
		{"a wider route", wide, at(Route, "10.0.0.0/8", "wg0"), false},
		{"a route elsewhere", wide, at(Route, "10.2.0.0/16", "wg0"), false},
		{"a route that drops", wide, at(Route, "10.1.0.0/16", ""), false},
		{"the own bridge", wide, at(Address, "10.1.0.1/16", "br0"), false},
		{"the own bridge's route", wide, at(Route, "10.1.0.0/16", "br0"), false},
		{"a next hop at the own bridge", wide, at(NextHop, "10.1.0.9/32", "br0"), false},
		{"a next hop at the own bridge that is the gateway", wide, at(NextHop, "10.1.0.1/32", "br0"), true},
		{"the same, without an address of the host", noGateway, at(NextHop, "10.1.0.1/32", "br0"), false},
		{"an address, without one of the host", noGateway, at(Address, "10.1.2.3/24", "eth0"), false},
		{"an attachment", ptp, owned, false},
		{"the gateway at a link of the reference plugins", ptp, at(Address, "10.1.0.1/32", "veth1234"), false},
		{"flannel's tunnel", wide, at(Address, "10.1.0.0/32", "flannel.1"), false},
		{"IPv6", wide, at(Address, "fd00::1/64", "eth0"), false},
	} {
		require.Equal(t, c.want, Of(parse(t, c.plugin))[0].Covers(c.taken), c.name)
	}
}

// TestRoutesOfDeletedLinks: a route is left out if its link was deleted before the links were listed.
func TestRoutesOfDeletedLinks(t *testing.T) {
	_, dst, err := net.ParseCIDR("10.99.0.1/32")
	require.NoError(t, err)
	h := host{}
	h.addRoute(&netlink.Route{LinkIndex: 7, Dst: dst})
	require.Empty(t, h.taken)
	h.addRoute(&netlink.Route{Dst: dst})
	require.Len(t, h.taken, 1)
	require.Equal(t, "route 10.99.0.1/32 without a link", h.taken[0].What)
}
