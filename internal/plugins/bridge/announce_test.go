package bridge

import (
	"net"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
	"github.com/allocnet/allocnet/internal/state/bridges"
)

// TestRemembered: an address is announced if it was in use lately, or if that is not known. On a bridge of the host, it
// is announced if it was ever in use.
func TestRemembered(t *testing.T) {
	created := bridges.In(t.TempDir())
	require.NoError(t, created.Add("own", 7))
	now := time.Now()
	v4, v6 := net.IPv4(10, 1, 0, 2), net.ParseIP("fd01::2")
	lately, former := now.Add(-time.Minute), now.Add(-2*rememberedFor)
	for name, c := range map[string]struct {
		lastUse        []time.Time
		own, ofTheHost []net.IP
	}{
		"not known":        {nil, []net.IP{v4, v6}, []net.IP{v4, v6}},
		"never":            {[]time.Time{{}, {}}, nil, nil},
		"lately":           {[]time.Time{lately, lately}, []net.IP{v4, v6}, []net.IP{v4, v6}},
		"one lately":       {[]time.Time{lately, {}}, []net.IP{v4}, []net.IP{v4}},
		"before":           {[]time.Time{former, former}, nil, []net.IP{v4, v6}},
		"one before":       {[]time.Time{lately, former}, []net.IP{v4}, []net.IP{v4, v6}},
		"in the future":    {[]time.Time{{}, now.Add(2 * rememberedFor)}, []net.IP{v6}, []net.IP{v6}},
		"in an early boot": {[]time.Time{time.Unix(1, 0), {}}, nil, []net.IP{v4}},
	} {
		for index, want := range map[int][]net.IP{7: c.own, 8: c.ofTheHost} {
			a := &addition{
				attachment: &attachment{bridge: &bridge{config: config{Bridge: "own"}}, Ends: veth.Ends{
					Args:   &sdk.CmdArgs{Host: &sdk.Host{Bridges: created}},
					Result: &types100.Result{IPs: []*types100.IPConfig{{Address: net.IPNet{IP: v4}}, {Address: net.IPNet{IP: v6}}}},
				}},
				link: &rtnl.LinkState{Index: index}, lastUse: c.lastUse,
			}
			ips, err := a.remembered()
			require.NoError(t, err, name)
			require.Equal(t, want, ips, "%s, bridge %d", name, index)
		}
	}
}
