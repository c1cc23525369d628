package rtnl_test

import (
	"net"
	"os/exec"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

func TestRouteExists(t *testing.T) {
	h := open(t)
	s, v := newSandbox(t, "a"), veth("exists")
	require.NoError(t, h.CreateVeth(v, s))
	require.NoError(t, s.SetUp(v.PeerIndex))
	prefix := func(text string) net.IPNet {
		ip, n, err := net.ParseCIDR(text)
		require.NoError(t, err)
		return net.IPNet{IP: ip, Mask: n.Mask}
	}
	route := func(to, via string, table int) (want types.Route) {
		want.Dst = prefix(to)
		if via != "" {
			want.GW = net.ParseIP(via)
		}
		if table != 0 {
			want.Table = &table
		}
		return want
	}
	for _, want := range []types.Route{
		route("0.0.0.0/0", "10.9.0.1", 0), route("10.8.0.0/16", "10.9.0.1", 100), route("::/0", "fd00:9::1", 0), route("fd00:8::/64", "fd00:9::1", 100),
	} {
		exists, err := s.RouteExists(&want)
		require.NoError(t, err)
		require.False(t, exists, want.String())
	}
	v4, v6 := prefix("10.9.0.2/24"), prefix("fd00:9::2/64")
	var b rtnl.Batch
	b.AddAddress(v.PeerIndex, &v4, 0)
	b.AddAddress(v.PeerIndex, &v6, rtnl.NoDAD)
	for _, r := range []struct {
		to, via string
		table   int
	}{{"0.0.0.0/0", "10.9.0.1", 0}, {"10.8.0.0/16", "10.9.0.1", 100}, {"::/0", "fd00:9::1", 0}, {"fd00:8::/64", "fd00:9::1", 100}} {
		to := prefix(r.to)
		b.AddRoute(&rtnl.Route{Index: v.PeerIndex, Dst: &to, Via: net.ParseIP(r.via), Table: r.table})
	}
	require.NoError(t, s.Apply(&b))
	zero := route("0.0.0.0/0", "10.9.0.1", 0)
	zero.Table = new(int)
	for _, test := range []struct {
		want   types.Route
		exists bool
	}{
		{zero, true},
		{route("0.0.0.0/0", "10.9.0.1", 0), true},
		{route("0.0.0.0/0", "", 0), true},
		{route("0.0.0.0/0", "10.9.0.7", 0), false},
		{route("0.0.0.0/0", "10.9.0.1", 100), false},
		{route("0.0.0.0/1", "10.9.0.1", 0), false},
		{route("10.9.0.0/24", "", 0), true},
		{route("10.9.0.0/24", "10.9.0.1", 0), false},
		{route("10.8.0.0/16", "10.9.0.1", 100), true},
		{route("10.8.0.0/16", "10.9.0.1", 0), true},
		{route("10.8.0.0/16", "10.9.0.1", 101), false},
		{route("::/0", "fd00:9::1", 0), true},
		{route("::/0", "fd00:9::7", 0), false},
		{route("fd00:9::/64", "", 0), true},
		{route("fd00:8::/64", "fd00:9::1", 100), true},
		{route("fd00:8::/64", "", 0), true},
		{route("fd00:8::/64", "", 101), false},
	} {
		exists, err := s.RouteExists(&test.want)
		require.NoError(t, err)
		require.Equal(t, test.exists, exists, test.want.String())
	}

	// A route that rejects packets is none to the destination.
	require.NoError(t, s.Do(func() error {
		return exec.Command("ip", "route", "replace", "unreachable", "10.8.0.0/16", "table", "100").Run()
	}))
	list := []*types.Route{}
	for _, want := range []types.Route{route("::/0", "fd00:9::7", 0), route("10.8.0.0/16", "", 0), route("fd00:9::/64", "", 0), route("0.0.0.0/0", "", 0)} {
		list = append(list, &want)
	}
	missing, err := s.MissingRoutes(list)
	require.NoError(t, err)
	require.Equal(t, []*types.Route{list[1], list[0]}, missing, "of each family")
}
