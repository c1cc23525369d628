package conntrack

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// opened returns a connection in a private host without entries. If modern is
// false, the kernel is treated as one that neither supports filters in
// deletions nor shows text.
func opened(t testing.TB, modern bool) *Conn {
	t.Helper()
	privhost.Require(t, "nft")
	c := New()
	c.noFilter.Store(!modern)
	c.noText.Store(!modern)
	require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	t.Cleanup(func() {
		require.Equal(t, !modern, c.noFilter.Load(), "the kernel was not asked as it should")
		require.Equal(t, !modern, c.noText.Load(), "the kernel was not asked as it should")
		require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
		require.NoError(t, c.Close())
	})
	return c
}

// bothWays runs a test with all features of this kernel, and with those that
// every kernel has.
func bothWays(t *testing.T, test func(t *testing.T, c *Conn)) {
	t.Run("this kernel", func(t *testing.T) { test(t, opened(t, true)) })
	t.Run("any kernel", func(t *testing.T) { test(t, opened(t, false)) })
}

// track adds an entry, and returns its text.
func track(t testing.TB, protocol uint8, from, to, served string) string {
	t.Helper()
	testhost.Track(t, protocol, from, to, served)
	a, b, c := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to), netip.MustParseAddrPort(served)
	return text(protocol, a.Addr(), b, c.Addr())
}

func text(protocol uint8, from netip.Addr, to netip.AddrPort, served netip.Addr) string {
	return fmt.Sprintf("%d %s %s by %s", protocol, from, to, served)
}

// tracked returns all entries, whatever filter the connection uses.
func tracked(t testing.TB, c *Conn) []string {
	t.Helper()
	list := []string{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		require.NoError(t, c.each(t.Context(), filter{family: family}, func(e *entry) {
			list = append(list, text(e.protocol, e.source, netip.AddrPortFrom(e.destination, e.port), e.answers.source))
		}))
	}
	slices.Sort(list)
	return list
}

// send sends a datagram from a new port, and returns the port.
func send(t testing.TB, network, to string) int {
	t.Helper()
	conn, err := net.Dial(network, to)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("x"))
	require.NoError(t, err)
	return conn.LocalAddr().(*net.UDPAddr).Port
}

func nft(t testing.TB, rules string) {
	t.Helper()
	out, err := exec.Command("nft", rules).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func flush(t testing.TB) {
	t.Helper()
	require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
}
