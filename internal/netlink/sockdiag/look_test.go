package sockdiag

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// bind opens a socket of the host, as "tcp4", "tcp6" (IPv6 alone), "tcp" (both on the
// wildcard), or the like of udp.
func bind(t *testing.T, network, address string) {
	t.Helper()
	var closer interface{ Close() error }
	var err error
	if strings.HasPrefix(network, "tcp") {
		closer, err = net.Listen(network, address)
	} else {
		closer, err = net.ListenPacket(network, address)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, closer.Close()) })
}

// TestLook finds what would get packets to a port, and nothing else.
func TestLook(t *testing.T) {
	privhost.Require(t)
	for _, port := range []string{":4000", ":4001"} { // neighbours are no matter
		bind(t, "tcp4", "0.0.0.0"+port)
		bind(t, "udp4", "0.0.0.0"+port)
	}
	for _, c := range []struct{ network, address, takes, not string }{
		{"tcp4", "0.0.0.0:5001", "0.0.0.0 127.0.0.1 192.0.2.1", ":: ::1"},
		{"tcp4", "127.0.0.1:5002", "0.0.0.0 127.0.0.1", ":: ::1 192.0.2.1"},
		{"tcp6", "[::]:5003", ":: ::1", "0.0.0.0 192.0.2.1"},
		{"tcp6", "[::1]:5004", ":: ::1", "0.0.0.0 192.0.2.1 2001:db8::1"},
		{"tcp", "[::]:5005", "0.0.0.0 192.0.2.1 :: ::1", ""},
		{"udp4", "0.0.0.0:5001", "0.0.0.0 192.0.2.1", ":: ::1"},
		{"udp6", "[::]:5003", ":: ::1", "0.0.0.0 192.0.2.1"},
		{"udp", "[::]:5005", "0.0.0.0 192.0.2.1 :: ::1", ""},
	} {
		t.Run(c.network+" "+c.address, func(t *testing.T) {
			bind(t, c.network, c.address)
			address := netip.MustParseAddrPort(c.address)
			protocol := uint8(unix.IPPROTO_TCP)
			if strings.HasPrefix(c.network, "udp") {
				protocol = unix.IPPROTO_UDP
			}
			for name, numbers := range map[string][]uint16{
				"one": {address.Port()}, "two": {7, address.Port()}, "a row": {address.Port() - 1, address.Port(), address.Port() + 1},
				"several rows": {6000, 70, 71, address.Port(), 80, address.Port()}, "too many rows": everySecond(address.Port()),
			} {
				found, err := Look(Ports{Protocol: protocol, Numbers: numbers})
				require.NoError(t, err)
				require.Len(t, found, 1, name)
				require.Equal(t, address, found[0].Address, name)
				require.Equal(t, protocol, found[0].Protocol)
				require.Equal(t, uint32(os.Getuid()), found[0].UID)
				require.Equal(t, strings.HasSuffix(c.network, "6"), found[0].Only6)
				for _, ip := range strings.Fields(c.takes) {
					require.True(t, found[0].Takes(netip.MustParseAddr(ip)), ip)
				}
				for _, ip := range strings.Fields(c.not) {
					require.False(t, found[0].Takes(netip.MustParseAddr(ip)), ip)
				}
				require.Equal(t, Process{os.Getpid(), comm(t)}, Processes(found[0].Inode, 0, 1)[found[0].Inode])
			}
			only6, err := Look(Ports{Protocol: protocol, Numbers: []uint16{address.Port()}, Only6: true})
			require.NoError(t, err)
			require.Len(t, only6, map[bool]int{true: 0, false: 1}[address.Addr().Is4()])
		})
	}
}

// everySecond port from 2, up to beyond the given one, and that.
func everySecond(port uint16) (ports []uint16) {
	for p := uint16(2); p < port+10; p += 2 {
		if p < 4000 || p > 4001 {
			ports = append(ports, p)
		}
	}
	return append(ports, port)
}

func comm(t *testing.T) string {
	t.Helper()
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(os.Getpid()), "comm"))
	require.NoError(t, err)
	return strings.TrimSpace(string(name))
}

// TestLookPassesOver connections, and what other network namespaces have.
func TestLookPassesOver(t *testing.T) {
	privhost.Require(t)
	server, err := net.Listen("tcp4", "127.0.0.1:5100")
	require.NoError(t, err)
	defer server.Close()
	for _, network := range []string{"tcp4", "udp4"} {
		d := net.Dialer{LocalAddr: local(network, 5101)}
		client, err := d.DialContext(t.Context(), network, "127.0.0.1:5100")
		require.NoError(t, err)
		defer client.Close()
	}
	s, err := sandbox.Create("elsewhere")
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Destroy()) }()
	require.NoError(t, s.Do(func() error {
		l, err := net.Listen("tcp4", "0.0.0.0:5102")
		if err == nil {
			t.Cleanup(func() { require.NoError(t, l.Close()) })
		}
		return err
	}))
	bind(t, "udp4", "127.0.0.1:5103")
	var wanted []Ports
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		wanted = append(wanted, Ports{Protocol: protocol, Numbers: []uint16{5101, 5102, 5103}})
	}
	found, err := Look(wanted...)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "127.0.0.1:5103", found[0].Address.String())
	found, err = Look()
	require.NoError(t, err)
	require.Empty(t, found)
}

func local(network string, port int) net.Addr {
	if network == "udp4" {
		return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	}
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
}

// TestRanges of sorted ports, of which many are one.
func TestRanges(t *testing.T) {
	require.Equal(t, []portRange{{1, 3}, {5, 5}, {65534, 65535}}, ranges([]uint16{1, 2, 3, 5, 65534, 65535}))
	require.Equal(t, []portRange{{2, 6000}}, ranges(append(everySecond(5000), 6000)))
}
