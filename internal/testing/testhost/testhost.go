// Package testhost contains what the tests of several packages share: an
// external machine, entries of connection tracking, and a path that changes its
// target all the time.
package testhost

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/sandbox"
)

// Log writes to the log of a test, which is shown if the test fails.
type Log struct{ testing.TB }

// Write implements io.Writer.
func (l Log) Write(p []byte) (int, error) {
	l.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// Wire is the host's interface to the external machine.
const Wire = "up0"

// The addresses of the host and of the external machine on their link.
var (
	Host4    = netip.MustParsePrefix("192.0.2.1/24")
	Host4b   = netip.MustParsePrefix("192.0.2.3/24") // a second address of the host
	Host6    = netip.MustParsePrefix("2001:db8::1/64")
	Host6b   = netip.MustParsePrefix("2001:db8::3/64")
	Outside4 = netip.MustParsePrefix("192.0.2.2/24")
	Outside6 = netip.MustParsePrefix("2001:db8::2/64")
)

// Outside creates the namespace "outside", which simulates an external machine
// until the test ends. A veth connects its interface eth0 to the host's Wire.
func Outside(t testing.TB) *sandbox.Sandbox {
	t.Helper()
	s, err := sandbox.Create("outside")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	peer, err := os.Open(s.Path())
	require.NoError(t, err)
	defer peer.Close()
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: Wire}, PeerName: "eth0", PeerNamespace: netlink.NsFd(peer.Fd()),
	}))
	t.Cleanup(func() {
		link, err := netlink.LinkByName(Wire)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(link))
	})
	configure(t, Wire, Host4, Host4b, Host6, Host6b)
	require.NoError(t, s.Do(func() error {
		configure(t, "eth0", Outside4, Outside6)
		return nil
	}))
	return s
}

// configure assigns addresses to a link, without duplicate address detection,
// and brings it up.
func configure(t testing.TB, name string, addrs ...netip.Prefix) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	require.NoError(t, err)
	for _, p := range addrs {
		a, err := netlink.ParseAddr(p.String())
		require.NoError(t, err)
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		require.NoError(t, netlink.AddrAdd(link, a))
	}
	require.NoError(t, netlink.LinkSetUp(link))
}
