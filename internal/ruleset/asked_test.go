package ruleset

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/sandbox"
)

// TestAsked: what somebody asked for, of a mapped port or not, is known once, and
// only after what came before the table has been noted.
func TestAsked(t *testing.T) {
	eachFamily(t, []string{"0"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		host := prefix(wireNet, 1).Addr()
		family := uint8(unix.AF_INET6)
		if host.Is4() {
			family = unix.AF_INET
		}
		mapped, unmapped := Port{unix.IPPROTO_TCP, 8080}, Port{unix.IPPROTO_UDP, 9090}
		before, silent := Port{unix.IPPROTO_UDP, 53}, Port{unix.IPPROTO_UDP, 8080}
		all := []Port{mapped, unmapped, before, silent, mapped}
		take := func(want ...Port) {
			t.Helper()
			asked, known, err := n.TakeAsked(t.Context(), family, all)
			require.NoError(t, err)
			require.True(t, known)
			require.Equal(t, want, append([]Port(nil), asked...))
		}

		_, known, err := n.TakeAsked(t.Context(), family, all)
		require.NoError(t, err)
		require.False(t, known, "there is no table")
		require.NoError(t, n.Add(t.Context(), n.elements(SNATLocal)))
		_, known, err = n.TakeAsked(t.Context(), family, all)
		require.NoError(t, err)
		require.False(t, known, "nobody said what came before")
		require.NoError(t, n.NoteAsked(t.Context(), family, []Port{before}))
		take(before)
		take()

		n.wantAnswer("a sees "+prefix(wireNet, 2).Addr().String(), n.outside, host, 8080)
		datagram(t, n.outside, host, 9090)
		take(mapped, unmapped)
		take()

		// Asking again after it was taken is noted again; what passes through is not.
		datagram(t, n.outside, host, 9090)
		datagram(t, n.a, prefix(net1, 2).Addr(), 53)
		take(unmapped)
		asked, known, err := n.TakeAsked(t.Context(), family, nil)
		require.NoError(t, err)
		require.True(t, known)
		require.Empty(t, asked)
	})
}

// datagram sends one from a new port.
func datagram(t *testing.T, from *sandbox.Sandbox, to netip.Addr, port uint16) {
	t.Helper()
	require.NoError(t, from.Do(func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	}))
}
