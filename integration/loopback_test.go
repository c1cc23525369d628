package integration

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/portmap"
)

// TestLoopbackIsTheHostsOwn: an allocation with host ports does not reach
// services on the host's 127.0.0.1, even after another program flushes all
// rules.
func TestLoopbackIsTheHostsOwn(t *testing.T) {
	testbed.EachElsewhere(t, []testbed.Way{testbed.ExecTables, testbed.ExecNFT, testbed.Native, testbed.NativeTables, testbed.NativeNFT}, func(t *testing.T, w testbed.Way) {
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(main, func(t *testing.T) {
				testbed.Fresh(t)
				h := newHost(t, w.Engine)
				h.Network("net", testbed.Chain(main, testbed.V4Only, w.Backend)...)
				l, err := net.Listen("tcp", "127.0.0.1:7070")
				require.NoError(t, err)
				defer l.Close()
				go testbed.ServeTCP(l, func(net.Addr) []byte { return []byte("host") })
				a := h.Alloc("one")
				a.Ports = []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp"}}}
				h.SetUp(a)
				testbed.Within(t, a.Netns, func() error {
					return errors.Join(testbed.Command("ip", "addr", "flush", "dev", "lo"),
						testbed.Command("ip", "route", "add", "127.0.0.0/8", "via", "10.99.0.1", "dev", "eth0"))
				})
				testbed.SetSysctls(t, a.Netns, map[string]string{"net/ipv4/conf/eth0/route_localnet": "1"})
				testbed.RequireSilence(t, a.Netns, "tcp", "127.0.0.1:7070")
				privhost.FlushRuleset(t)
				testbed.RequireSilence(t, a.Netns, "tcp", "127.0.0.1:7070")
				h.TearDown(a)
			})
		}
	})
}
