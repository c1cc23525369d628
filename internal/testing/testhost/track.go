package testhost

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Track adds a connection tracking entry from one address to another, whose replies come from the
// address served. The addresses have ports.
func Track(t testing.TB, protocol uint8, from, to, served string) *netlink.ConntrackFlow {
	t.Helper()
	a, b, c := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to), netip.MustParseAddrPort(served)
	flow := &netlink.ConntrackFlow{
		FamilyType: unix.AF_INET,
		Forward: netlink.IPTuple{
			Protocol: protocol, SrcIP: a.Addr().AsSlice(), SrcPort: a.Port(), DstIP: b.Addr().AsSlice(), DstPort: b.Port(),
		},
		Reverse: netlink.IPTuple{
			Protocol: protocol, SrcIP: c.Addr().AsSlice(), SrcPort: c.Port(), DstIP: a.Addr().AsSlice(), DstPort: a.Port(),
		},
		TimeOut: 600,
	}
	if a.Addr().Is6() {
		flow.FamilyType = unix.AF_INET6
	}
	require.NoError(t, netlink.ConntrackCreate(netlink.ConntrackTable, netlink.InetFamily(flow.FamilyType), flow))
	return flow
}
