package integration

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

// TestAddressChangesHands: the host knows the interface of an address's next holder
// at once, though that of the one before is still in its neighbour table.
func TestAddressChangesHands(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, native.engine)
			plugins := chain(main, dual, "")
			plugins[1]["capabilities"] = map[string]bool{"ips": true}
			h.network("net", plugins...)
			other := h.alloc("other") // without one, the bridge loses its carrier, and forgets all
			h.setUp(other)
			for _, id := range []string{"a", "b"} {
				a := h.alloc(id)
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				a.IPs = []string{"10.99.0.77/24", "fd00:99::77/64"}
				h.setUp(a)
				serve(t, a.Netns, "tcp", 80, id)
				for _, to := range []netip.Prefix{host4, host6} {
					answer, err := ask(patience, h.outside.Path(), "tcp", hostPort(to, 8080))
					require.NoError(t, err, "%s at %s", id, to)
					require.Contains(t, answer, id+" ")
				}
				h.tearDown(a)
			}
			h.tearDown(other)
		})
	}
}
