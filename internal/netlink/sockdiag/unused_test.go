package sockdiag

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestUnused: a socket on any address of any family uses the port, and that of one protocol
// alone.
func TestUnused(t *testing.T) {
	privhost.Require(t)
	port := func(protocol uint8, number uint16) Ports { return Ports{Protocol: protocol, Numbers: []uint16{number}} }
	for _, without6 := range []bool{false, true} {
		for _, c := range []struct{ network, address string }{
			{"tcp4", "0.0.0.0:5201"}, {"tcp4", "127.0.0.53:5202"}, {"tcp6", "[::]:5203"}, {"tcp6", "[::1]:5204"}, {"tcp", "[::]:5205"},
			{"udp4", "0.0.0.0:5201"}, {"udp4", "127.0.0.53:5202"}, {"udp6", "[::]:5203"}, {"udp6", "[::1]:5204"}, {"udp", "[::]:5205"},
		} {
			if without6 && !strings.HasSuffix(c.network, "4") {
				continue
			}
			t.Run(c.network+" "+c.address, func(t *testing.T) {
				if without6 {
					const file = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
					require.NoError(t, os.WriteFile(file, []byte("1"), 0o600))
					t.Cleanup(func() { require.NoError(t, os.WriteFile(file, []byte("0"), 0o600)) })
				}
				number := netip.MustParseAddrPort(c.address).Port()
				own, other := uint8(unix.IPPROTO_TCP), uint8(unix.IPPROTO_UDP)
				if strings.HasPrefix(c.network, "udp") {
					own, other = other, own
				}
				require.True(t, unused(t, port(own, number)))
				require.True(t, unused(t, port(own, number)), "the first one has unbound it")
				bind(t, c.network, c.address)
				require.False(t, unused(t, port(own, number)))
				require.True(t, unused(t, port(other, number), port(own, number+10)))
				require.False(t, unused(t, port(other, number), port(own, number)))
			})
		}
	}
}

// TestUnusedWithConnections: a connection whose listener is gone does not use the port.
func TestUnusedWithConnections(t *testing.T) {
	privhost.Require(t)
	server, err := net.Listen("tcp4", "127.0.0.1:5300")
	require.NoError(t, err)
	client, err := net.Dial("tcp4", "127.0.0.1:5300")
	require.NoError(t, err)
	defer client.Close()
	accepted, err := server.Accept()
	require.NoError(t, err)
	defer accepted.Close()
	require.NoError(t, server.Close())
	require.True(t, unused(t, Ports{Protocol: unix.IPPROTO_TCP, Numbers: []uint16{5300}}))
}

// TestProbeIsNoListener: Look leaves out the sockets of Unused.
func TestProbeIsNoListener(t *testing.T) {
	privhost.Require(t)
	socket, err := net.ListenPacket("udp4", "0.0.0.0:5400")
	require.NoError(t, err)
	defer socket.Close()
	wanted := Ports{Protocol: unix.IPPROTO_UDP, Numbers: []uint16{5400}}
	found, err := Look(wanted)
	require.NoError(t, err)
	require.Len(t, found, 1)
	raw, err := socket.(*net.UDPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, probeMark)
	}))
	require.NoError(t, err)
	found, err = Look(wanted)
	require.NoError(t, err)
	require.Empty(t, found)
}

// unused is Unused without an error.
func unused(t *testing.T, wanted ...Ports) bool {
	t.Helper()
	is, err := Unused(wanted...)
	require.NoError(t, err)
	return is
}

// TestUnusedWithoutDescriptors: a port that cannot be tried is not said to be in use.
func TestUnusedWithoutDescriptors(t *testing.T) {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}))
	_, err := Unused(Ports{Protocol: unix.IPPROTO_TCP, Numbers: []uint16{5300}})
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorIs(t, err, allocnet.ErrLimit)
}
