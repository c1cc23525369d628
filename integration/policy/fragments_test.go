package policy

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// options returns an extension header with destination options, of eight bytes.
func options(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }

// fragmentOf returns a fragment header with what follows it.
func fragmentOf(next byte, offset uint16, more bool, id uint32, data []byte) []byte {
	if more {
		offset |= 1
	}
	p := binary.BigEndian.AppendUint16([]byte{next, 0}, offset)
	return append(binary.BigEndian.AppendUint32(p, id), data...)
}

// nestedFragments returns the fragments of a datagram, each of them in a fragment that is whole. The first
// one has no transport header.
func nestedFragments(from, to netip.AddrPort, token string) (list [][]byte) {
	whole := slices.Concat(options(unix.IPPROTO_DSTOPTS), options(unix.IPPROTO_UDP), udpPacket(from, to, []byte(token)))
	id := binary.BigEndian.Uint32([]byte(token))
	for i, inner := range [][]byte{
		fragmentOf(unix.IPPROTO_DSTOPTS, 0, true, id, whole[:8]),
		fragmentOf(unix.IPPROTO_DSTOPTS, 8, false, id, whole[8:]),
	} {
		outer := fragmentOf(unix.IPPROTO_FRAGMENT, 0, false, id+1+uint32(i), inner)
		list = append(list, packet(from.Addr(), to.Addr(), unix.IPPROTO_FRAGMENT, outer))
	}
	return list
}

// ordinaryFragments returns the fragments of a datagram.
func ordinaryFragments(from, to netip.AddrPort, token string) (list [][]byte) {
	whole := udpPacket(from, to, slices.Concat([]byte(token), make([]byte, 64)))
	id := binary.BigEndian.Uint32([]byte(token))
	for _, one := range [][]byte{
		fragmentOf(unix.IPPROTO_UDP, 0, true, id, whole[:48]),
		fragmentOf(unix.IPPROTO_UDP, 48, false, id, whole[48:]),
	} {
		list = append(list, packet(from.Addr(), to.Addr(), unix.IPPROTO_FRAGMENT, one))
	}
	return list
}

// TestFragmentsWithinFragments: a rule about a port also holds for datagrams of IPv6 in fragments within
// fragments. Ordinary fragments are reassembled first, so that it decides on them.
func TestFragmentsWithinFragments(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", policed(main, testbed.Dual)...)
			free, sender, receiver := h.Alloc("free"), h.Alloc("sender"), h.Alloc("receiver")
			deny := `{"rules":[{"action":"deny","services":[{"protocol":"udp","ports":"5353"}]}]}`
			sender.Policy, receiver.Policy = mustPolicy(t, `{"egress":`+deny+`}`), mustPolicy(t, `{"ingress":`+deny+`}`)
			addresses := map[string]netip.Addr{}
			for _, a := range []configurator.Allocation{free, sender, receiver} {
				addresses[a.ID] = netip.MustParseAddr(h.SetUp(a).AddressIPv6)
			}
			send := func(nested, ordinary bool, from configurator.Allocation, to netip.AddrPort, at *net.UDPConn) {
				t.Helper()
				source := netip.AddrPortFrom(addresses[from.ID], 4000)
				for name, one := range map[string]struct {
					want  bool
					build func(from, to netip.AddrPort, token string) [][]byte
				}{"nested": {nested, nestedFragments}, "ordinary": {ordinary, ordinaryFragments}} {
					token := rand.Text()
					arrived := sendUntil(one.want, func() {
						sendPackets(t, from.Netns, to.Addr(), one.build(source, to, token)...)
					}, func() (arrived, empty bool) { return receiveText(t, at, token) })
					require.Equal(t, one.want, arrived, "%s fragments from %s to %s", name, from.ID, to)
				}
			}
			for _, port := range []uint16{5354, 5353} {
				outside, host, inside := listenUDP6(t, h.Outside.Path(), port), listenUDP6(t, "", port), listenUDP6(t, receiver.Netns, port)
				to := netip.AddrPortFrom(testhost.Outside6.Addr(), port)
				send(false, true, free, to, outside) // the nested ones are of no connection, and are not masqueraded
				send(false, port != 5353, sender, to, outside)
				to = netip.AddrPortFrom(testhost.Host6.Addr(), port)
				send(false, true, free, to, host) // the kernel refuses the nested ones
				send(false, port != 5353, sender, to, host)
				send(false, port != 5353, free, netip.AddrPortFrom(addresses["receiver"], port), inside)
			}
			h.TearDown(free, sender, receiver)
		})
	}
}

// listenUDP6 returns a socket in a namespace that receives datagrams of IPv6 for a port.
func listenUDP6(t *testing.T, netns string, port uint16) (c *net.UDPConn) {
	t.Helper()
	testbed.Within(t, netns, func() (err error) {
		c, err = net.ListenUDP("udp6", &net.UDPAddr{Port: int(port)})
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// receiveText waits for one datagram, for a short time: see [sendUntil].
func receiveText(t *testing.T, at *net.UDPConn, text string) (arrived, empty bool) {
	t.Helper()
	require.NoError(t, at.SetReadDeadline(time.Now().Add(25*time.Millisecond)))
	buf := make([]byte, 256)
	n, _, err := at.ReadFromUDP(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, true
	}
	require.NoError(t, err)
	return n >= len(text) && string(buf[:len(text)]) == text, false
}
