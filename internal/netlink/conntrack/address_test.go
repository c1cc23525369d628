package conntrack

import (
	"math"
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

// TestFlushOfForwardedEntries: an entry that a flow table holds is deleted when the table
// has let go of it, and is not taken for deleted before.
func TestFlushOfForwardedEntries(t *testing.T) {
	for _, test := range []struct {
		busy int // how often the kernel says so
		want error
	}{{2, nil}, {math.MaxInt, unix.EBUSY}} {
		deletions := 0
		c := New()
		c.noText.Store(true)
		socket := nltest.Dial(func(requests []netlink.Message) ([]netlink.Message, error) {
			if len(requests) == 0 {
				return nil, nil
			}
			if requests[0].Header.Type == getEntries {
				return nltest.Multipart([]netlink.Message{{Header: requests[0].Header, Data: entryOf(t, ip4("fd00:77::5"))}, {}})
			}
			if deletions++; deletions <= test.busy {
				return nil, unix.EBUSY
			}
			return nil, nil
		})
		c.open = func() (*netlink.Conn, error) { return socket, nil }
		err := c.flushAddresses([]netip.Addr{ip4("fd00:77::5")})
		require.ErrorIs(t, err, test.want)
		require.Greater(t, deletions, 2)
	}
}

// entryOf is a message with an entry that answers from an address.
func entryOf(t *testing.T, answers netip.Addr) []byte {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	for _, kind := range []uint16{ctaTupleOrig, ctaTupleReply} {
		ae.Nested(kind, func(tuple *netlink.AttributeEncoder) error {
			tuple.Nested(ctaTupleIP, func(ip *netlink.AttributeEncoder) error {
				ip.Bytes(ctaIPv6Src, answers.AsSlice())
				return nil
			})
			return nil
		})
	}
	attributes, err := ae.Encode()
	require.NoError(t, err)
	return append(make([]byte, header), attributes...)
}
