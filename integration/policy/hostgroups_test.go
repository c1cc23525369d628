package policy

import (
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
)

// TestHostByGroupAddresses: the host also receives packets to broadcast, multicast and anycast addresses.
// They are packets to the host, and not to the world.
func TestHostByGroupAddresses(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", policed(main, testbed.Dual)...)
			free, denied, world := h.Alloc("free"), h.Alloc("denied"), h.Alloc("world")
			noHost := []policy.Rule{{Action: policy.Deny, Peers: []policy.Peer{{Name: "host"}}}}
			denied.Policy = &policy.Policy{Egress: &policy.Direction{Rules: noHost}}
			world.Policy = &policy.Policy{Egress: &policy.Direction{Default: policy.Deny, Rules: []policy.Rule{{Peers: []policy.Peer{{Name: "world"}}}}}}
			for _, a := range []configurator.Allocation{free, denied, world} {
				h.SetUp(a)
			}
			on4, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 5353})
			require.NoError(t, err)
			defer on4.Close()
			on6, err := net.ListenUDP("udp6", &net.UDPAddr{Port: 5353})
			require.NoError(t, err)
			defer on6.Close()
			for to, at := range map[string]*net.UDPConn{
				testhost.Host4.Addr().String(): on4, testhost.Host6.Addr().String(): on6,
				"192.0.2.255": on4, "255.255.255.255": on4, "224.0.0.1": on4,
				"2001:db8::": on6, "ff02::1": on6,
			} {
				requireDatagram(t, true, free.Netns, to, at)
				requireDatagram(t, false, denied.Netns, to, at)
				requireDatagram(t, false, world.Netns, to, at)
			}
			h.TearDown(free, denied, world)
		})
	}
}

// requireDatagram sends datagrams from a namespace to port 5353 of an address, and requires that one arrives,
// or that none does.
func requireDatagram(t *testing.T, want bool, netns, to string, at *net.UDPConn) {
	t.Helper()
	token := rand.Text()
	arrived := sendUntil(want, func() {
		testbed.Within(t, netns, func() error { return sendDatagram(netip.MustParseAddr(to), token) })
		require.NoError(t, at.SetReadDeadline(time.Now().Add(25*time.Millisecond)))
	}, func() (arrived, empty bool) {
		buf := make([]byte, 256)
		n, _, err := at.ReadFromUDP(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false, true
		}
		require.NoError(t, err)
		return string(buf[:n]) == token, false
	})
	require.Equal(t, want, arrived, "from %s to %s", netns, to)
}

// sendDatagram sends from the interface eth0 of the thread's namespace.
func sendDatagram(to netip.Addr, text string) error {
	family := unix.AF_INET
	var address unix.Sockaddr
	if to.Is4() {
		address = &unix.SockaddrInet4{Port: 5353, Addr: to.As4()}
	} else {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: 5353, Addr: to.As16(), ZoneId: uint32(eth0.Index)}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1); err != nil {
		return err
	}
	if err := unix.BindToDevice(fd, "eth0"); err != nil {
		return err
	}
	if err := unix.Sendto(fd, []byte(text), 0, address); !errors.Is(err, unix.EINTR) {
		return err
	}
	return nil
}
