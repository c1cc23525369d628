package integration

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

// TestLoopbackIsTheHostsOwn: an allocation with host ports does not reach
// services on the host's 127.0.0.1, even after another program flushes all
// rules.
func TestLoopbackIsTheHostsOwn(t *testing.T) {
	eachElsewhere(t, []way{execTables, execNFT, native, nativeTables, nativeNFT}, func(t *testing.T, w way) {
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(main, func(t *testing.T) {
				freshHost(t)
				h := newHost(t, w.engine)
				h.network("net", chain(main, v4Only, w.backend)...)
				l, err := net.Listen("tcp", "127.0.0.1:7070")
				require.NoError(t, err)
				defer l.Close()
				go serveTCP(l, func(net.Addr) []byte { return []byte("host") })
				a := h.alloc("one")
				a.Ports = []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp"}}}
				h.setUp(a)
				within(t, a.Netns, func() error {
					return errors.Join(command("ip", "addr", "flush", "dev", "lo"),
						command("ip", "route", "add", "127.0.0.0/8", "via", "10.99.0.1", "dev", "eth0"))
				})
				setSysctls(t, a.Netns, map[string]string{"net/ipv4/conf/eth0/route_localnet": "1"})
				requireSilence(t, a.Netns, "tcp", "127.0.0.1:7070")
				require.NoError(t, command("nft", "flush", "ruleset"))
				requireSilence(t, a.Netns, "tcp", "127.0.0.1:7070")
				h.tearDown(a)
			})
		}
	})
}
