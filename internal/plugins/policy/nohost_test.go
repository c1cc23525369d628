package policy

import (
	"net"
	"net/netip"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/policystate"
	"github.com/allocnet/allocnet/policy"
)

// resultWith returns a result with addresses and their gateways.
func resultWith(t *testing.T, addresses ...string) *types100.Result {
	t.Helper()
	r := &types100.Result{Interfaces: []*types100.Interface{{Name: "eth0", Sandbox: "/n"}}}
	for i := 0; i < len(addresses); i += 2 {
		ip, network, err := net.ParseCIDR(addresses[i])
		require.NoError(t, err)
		network.IP = ip
		r.IPs = append(r.IPs, &types100.IPConfig{Interface: types100.Int(0), Address: *network, Gateway: net.ParseIP(addresses[i+1])})
	}
	return r
}

func TestOwnNetworks(t *testing.T) {
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64")},
		ownNetworks(resultWith(t, "10.1.0.2/16", "10.1.0.1", "fd00:1::2/64", "fd00:1::1", "10.1.0.3/24", "10.1.0.1")), "no network is within another one")
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("10.1.0.2/32"), netip.MustParsePrefix("169.254.1.1/32")},
		ownNetworks(resultWith(t, "10.1.0.2/32", "169.254.1.1")))
}

// TestNoHostIsPerNetwork: a policy with no-host or published-only depends on the network, other policies do not.
func TestNoHostIsPerNetwork(t *testing.T) {
	one, other := ownNetworks(resultWith(t, "10.1.0.2/16", "10.1.0.1")), ownNetworks(resultWith(t, "10.2.0.2/16", "10.2.0.1"))
	id := func(own []netip.Prefix, preset policy.Preset) string {
		c, err := compile("", "", own, &policy.Policy{Presets: []policy.Preset{preset}})
		require.NoError(t, err)
		return c.ID
	}
	require.NotEqual(t, id(one, policy.NoHost), id(other, policy.NoHost))
	require.NotEqual(t, id(one, policy.PublishedOnly), id(other, policy.PublishedOnly))
	require.Equal(t, id(one, policy.NoPrivate), id(other, policy.NoPrivate))
	require.Equal(t, id(one, policy.NoHost), id(ownNetworks(resultWith(t, "10.1.9.9/16", "10.1.0.1")), policy.NoHost))
}

// TestJudgeOfNoHost: which tracked connections a change to no-host ends.
func TestJudgeOfNoHost(t *testing.T) {
	own := ownNetworks(resultWith(t, "10.1.0.2/16", "10.1.0.1"))
	c, err := compile("", "", own, &policy.Policy{Presets: []policy.Preset{policy.NoHost}})
	require.NoError(t, err)
	addr := netip.MustParseAddr
	from := addr("10.1.0.2")
	j := &judge{
		members: map[netip.Addr]*policystate.Member{
			from: {Policy: c.ID}, addr("10.1.0.3"): {}, addr("10.2.0.3"): {},
		},
		via:      map[netip.Addr]*policystate.Member{},
		ownersTo: func(netip.Addr) ([]names.Owner, error) { return nil, nil },
		host:     rtnl.HostAddressesOf(netip.MustParsePrefix("10.1.0.1/16"), netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("fe80::1/64")),
		policies: map[string]*decided{c.ID: {content: c.content, selectors: map[string]*selector{}}},
	}
	require.Equal(t, []ruleset.Stage{{Rules: c.Egress[0].Rules}}, c.Egress)
	for to, want := range map[string]bool{
		"10.1.0.1": true, "fe80::1": true, "10.1.0.3": true, "198.51.100.1": true,
		"192.0.2.1": false, "192.0.2.255": false, "224.0.0.1": false, "10.2.0.3": false,
	} {
		got, err := j.allows(conntrack.Flow{Protocol: unix.IPPROTO_TCP, Source: from, Destination: addr(to), Port: 80})
		require.NoError(t, err)
		require.Equal(t, want, got, to)
	}
	got, err := j.allows(conntrack.Flow{Protocol: unix.IPPROTO_TCP, Source: from, Destination: addr("10.2.0.3"), Port: 80, Redirected: true})
	require.NoError(t, err)
	require.True(t, got, "through a host port")
}

// TestJudgeOfPublishedOnly: which tracked connections a change to published-only ends.
func TestJudgeOfPublishedOnly(t *testing.T) {
	own := ownNetworks(resultWith(t, "10.1.0.2/16", "10.1.0.1"))
	c, err := compile("", "", own, &policy.Policy{Presets: []policy.Preset{policy.PublishedOnly}})
	require.NoError(t, err)
	addr := netip.MustParseAddr
	to := addr("10.1.0.2")
	j := &judge{
		members:  map[netip.Addr]*policystate.Member{to: {Policy: c.ID}, addr("10.1.0.3"): {}, addr("10.2.0.3"): {}},
		via:      map[netip.Addr]*policystate.Member{},
		ownersTo: func(netip.Addr) ([]names.Owner, error) { return nil, nil },
		host:     rtnl.HostAddressesOf(netip.MustParsePrefix("10.1.0.1/16"), netip.MustParsePrefix("192.0.2.1/24")),
		policies: map[string]*decided{c.ID: {content: c.content, selectors: map[string]*selector{}}},
	}
	for from, want := range map[string]bool{
		"10.1.0.1": true, "192.0.2.1": true, "10.1.0.3": true, "10.1.0.9": false, "10.2.0.3": false, "198.51.100.1": false,
	} {
		for _, redirected := range []bool{false, true} {
			got, err := j.allows(conntrack.Flow{Protocol: unix.IPPROTO_TCP, Source: addr(from), Destination: to, Port: 80, Redirected: redirected})
			require.NoError(t, err)
			require.Equal(t, want || redirected, got, from)
		}
	}
}
