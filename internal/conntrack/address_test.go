package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestFlushAddressesOfBothFamilies: an error at one leaves no entries of the other.
func TestFlushAddressesOfBothFamilies(t *testing.T) {
	causes := map[uint8]error{v4: unix.EPERM, v6: unix.ENOBUFS}
	for _, failing := range [][]uint8{{v4}, {v6}, {v4, v6}} {
		var asked []uint8
		c := New()
		c.noText.Store(true)
		socket := nltest.Dial(func(requests []netlink.Message) ([]netlink.Message, error) {
			if len(requests) == 0 { // asks whether there is more
				return nil, nil
			}
			family := requests[0].Data[0]
			asked = append(asked, family)
			if slices.Contains(failing, family) {
				return nil, causes[family]
			}
			return nil, nil
		})
		c.open = func() (*netlink.Conn, error) { return socket, nil }
		err := c.flushAddresses([]netip.Addr{ip4("10.77.0.5"), ip4("fd00:77::5")})
		require.Contains(t, asked, uint8(v4))
		require.Contains(t, asked, uint8(v6))
		for _, family := range failing {
			require.ErrorIs(t, err, causes[family])
		}
	}
}
