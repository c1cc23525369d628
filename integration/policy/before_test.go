package policy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// TestConnectionsFromBefore: a connection to an address that no allocation has, or that a namespace in a pool
// has, is not one of the allocation that gets the address: packets of neither direction pass its policy.
func TestConnectionsFromBefore(t *testing.T) {
	for _, f := range []testbed.Families{testbed.V4Only, {V6: testbed.Dual.V6}} {
		t.Run(fmt.Sprintf("%t", f == testbed.V4Only), func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			testbed.SetSysctls(t, "", testbed.Quick)
			h.Network("net", policed("ptp", f)...)
			subnet, outside := netip.MustParsePrefix(f.V4+f.V6), testhost.Outside4.Addr()
			if f.V6 != "" {
				outside = testhost.Outside6.Addr()
			}
			route := func(do string) {
				testbed.Shell(t, fmt.Sprintf("ip route %s %s via %s metric 5000", do, subnet, outside))
			}
			route("add") // to the addresses that no allocation has
			peer, isolated, open := h.Alloc("peer"), h.Alloc("isolated"), h.Alloc("open")
			isolated.Policy = mustPolicy(t, `{"presets":["isolated"]}`)
			from := addressOf(h.SetUp(peer))
			var before []netip.Addr
			for a := subnet.Addr().Next().Next(); len(before) < 8; a = a.Next() { // behind the gateway
				if a != from {
					before = append(before, a)
				}
			}
			require.Eventually(t, func() bool {
				for _, a := range before {
					sendPackets(t, peer.Netns, a, udpFrom(from, a, "to"))
					sendPackets(t, peer.Netns, a, udpTo(from, a, "from")) // forged, over the same link
				}
				return answered(t, from) >= len(before)
			}, 3*testbed.Timeout, time.Millisecond)

			var received atomic.Int64
			h.InNew(isolated, func() {
				testbed.Within(t, isolated.Netns, func() error {
					c, err := net.ListenUDP("udp", &net.UDPAddr{Port: 53})
					require.NoError(t, err)
					t.Cleanup(func() { c.Close() })
					go countPackets(c, &received)
					return nil
				})
			})
			stop := sendOn(t, peer.Netns, before)
			s := addressOf(h.SetUp(isolated))
			stop()
			require.Contains(t, before, s)
			require.Zero(t, received.Load(), "packets during the Setup")
			requireBothWays := func(want bool, a configurator.Allocation, address netip.Addr) {
				requirePacket(t, want, "to "+a.ID, "token", sniffer(t, a.Netns), func() {
					sendPackets(t, peer.Netns, address, udpFrom(from, address, "token"))
				})
				requirePacket(t, want, "from "+a.ID, "token", sniffer(t, peer.Netns), func() {
					sendPackets(t, a.Netns, from, udpTo(from, address, "token"))
				})
			}
			requireBothWays(false, isolated, s)
			requireBothWays(true, open, addressOf(h.SetUp(open)))
			route("del")
			h.TearDown(peer, isolated, open)
		})
	}
}

// sendOn sends packets of the connections of udpFrom all the time.
func sendOn(t testing.TB, netns string, to []netip.Addr) (stop func()) {
	var c *net.UDPConn
	testbed.Within(t, netns, func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{Port: 6001})
		return err
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			if _, err := c.WriteToUDPAddrPort([]byte("more"), netip.AddrPortFrom(to[i%len(to)], 53)); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	return func() {
		require.NoError(t, c.Close())
		<-ended
	}
}

func addressOf(s *configurator.Status) netip.Addr {
	if s.Address == "" {
		return netip.MustParseAddr(s.AddressIPv6)
	}
	return netip.MustParseAddr(s.Address)
}

// udpFrom is a datagram of the connection from port 6001 to port 53, and udpTo its answer.
func udpFrom(from, to netip.Addr, data string) []byte {
	return packet(from, to, 17, udpPacket(netip.AddrPortFrom(from, 6001), netip.AddrPortFrom(to, 53), []byte(data)))
}

func udpTo(from, to netip.Addr, data string) []byte {
	return packet(to, from, 17, udpPacket(netip.AddrPortFrom(to, 53), netip.AddrPortFrom(from, 6001), []byte(data)))
}

// answered counts the connections of udpFrom that have an answer.
func answered(t testing.TB, from netip.Addr) (n int) {
	entries, err := os.ReadFile("/proc/thread-self/net/nf_conntrack")
	require.NoError(t, err)
	for line := range bytes.Lines(entries) {
		if bytes.Contains(line, []byte(" src="+from.StringExpanded()+" ")) && bytes.Contains(line, []byte(" sport=6001 ")) && !bytes.Contains(line, []byte("UNREPLIED")) {
			n++
		}
	}
	return n
}
