package ruleset

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

// contacts is one address family of a test network.
type contacts struct {
	*testNet
	t            *testing.T
	family       uint8
	host, inside netip.Addr
}

func eachContacts(t *testing.T, test func(t *testing.T, c *contacts)) {
	eachFamily(t, []string{"0"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		c := &contacts{n, t, unix.AF_INET6, prefix(wireNet, 1).Addr(), prefix(net1, 2).Addr()}
		if c.host.Is4() {
			c.family = unix.AF_INET
		}
		test(t, c)
	})
}

// learn adds ports to the sets.
func (c *contacts) learn(ports ...Port) {
	c.t.Helper()
	require.NoError(c.t, c.LearnContacted(c.t.Context(), c.family, func(context.Context) ([]Port, error) { return ports, nil }))
}

// require checks that of the asked ports exactly these are recorded as
// contacted.
func (c *contacts) require(asked []Port, want ...Port) {
	c.t.Helper()
	got, known, err := c.Contacted(c.t.Context(), c.family, asked)
	require.NoError(c.t, err)
	require.True(c.t, known)
	require.Equal(c.t, want, append([]Port(nil), got...))
}

func (c *contacts) requireUnknown(asked []Port) {
	c.t.Helper()
	got, known, err := c.Contacted(c.t.Context(), c.family, asked)
	require.NoError(c.t, err)
	require.False(c.t, known)
	require.Equal(c.t, asked, got, "then it may be any")
}

func udpPort(number uint16, host netip.Addr) Port { return Port{unix.IPPROTO_UDP, number, host} }

// TestContacted: ports of the host itself are recorded by address until they
// are removed. Packets that are redirected, forwarded or TCP are not recorded.
func TestContacted(t *testing.T) {
	eachContacts(t, func(t *testing.T, c *contacts) {
		other := netip.MustParseAddr(map[uint8]string{unix.AF_INET: "127.0.0.1", unix.AF_INET6: "::1"}[c.family])
		any := netip.Addr{}
		all := []Port{udpPort(9090, any), udpPort(9090, c.host), udpPort(9090, other), udpPort(53, c.host), udpPort(8080, any),
			{unix.IPPROTO_TCP, 9090, any}, {unix.IPPROTO_SCTP, 9090, any}}
		c.requireUnknown(all)
		require.NoError(t, c.Add(t.Context(), c.elements(SNATLocal)))
		c.requireUnknown(all)
		c.learn(udpPort(53, c.host))
		c.require(all, udpPort(53, c.host))

		c.wantAnswer("a sees "+c.host.Next().String(), c.outside, c.host, 8080)
		datagram(t, c.outside, c.host, 9090)
		datagram(t, c.a, c.inside, 53)
		c.require(all, udpPort(9090, any), udpPort(9090, c.host), udpPort(53, c.host))
		require.NoError(t, c.ForgetContacted(t.Context(), c.family, []Port{udpPort(9090, c.host), udpPort(9090, other), udpPort(7, any)}))
		c.require(all, udpPort(9090, any), udpPort(53, c.host))

		sendFromHere(t, other, 9090)
		c.require(all, udpPort(9090, any), udpPort(9090, other), udpPort(53, c.host))
	})
}

// TestContactedWithoutRoom: if a set is full, all ports are unknown until they
// are learnt again. Packets that INPUT drops take no room.
func TestContactedWithoutRoom(t *testing.T) {
	eachContacts(t, func(t *testing.T, c *contacts) {
		skip.InTurn(t, map[bool]int{true: 1}[c.host.Is4()], 2)
		require.NoError(t, c.Add(t.Context(), c.elements(SNATLocal)))
		asked := []Port{udpPort(7, c.host)}
		c.learn()
		drop := map[uint8]string{unix.AF_INET: "iptables", unix.AF_INET6: "ip6tables"}[c.family]
		run(t, drop, "-A", "INPUT", "-p", "udp", "-m", "udp", "--dport", "1000:65535", "-j", "DROP")
		c.scan(1000, contactedSize+2000)
		c.require(append(asked, udpPort(2000, netip.Addr{})))
		run(t, drop, "-F", "INPUT")

		c.scan(1000, contactedSize+2000)
		c.requireUnknown(asked)
		c.require([]Port{{unix.IPPROTO_SCTP, 7, c.host}})
		c.learn(udpPort(9, c.host))
		c.require(append(asked, udpPort(9, c.host), udpPort(2000, c.host)), udpPort(9, c.host))

		var many []Port
		for i := range contactedSize {
			many = append(many, udpPort(uint16(i+1), c.host))
		}
		c.learn(many...)
		c.requireUnknown(asked)
	})
}

// TestLearnTogether: if two learn at the same time, the list of the first one
// lacks what the second one emptied, so it is not used.
func TestLearnTogether(t *testing.T) {
	eachContacts(t, func(t *testing.T, c *contacts) {
		require.NoError(t, c.Add(t.Context(), c.elements(SNATLocal)))
		asked := []Port{udpPort(9090, c.host)}
		require.NoError(t, c.LearnContacted(t.Context(), c.family, func(context.Context) ([]Port, error) {
			datagram(t, c.outside, c.host, 9090)
			failed := errors.New("killed")
			err := c.LearnContacted(t.Context(), c.family, func(context.Context) ([]Port, error) { return nil, failed })
			require.ErrorIs(t, err, failed)
			return nil, nil
		}))
		c.requireUnknown(asked)
		c.learn(asked...)
		c.require(asked, asked...)
	})
}

// scan sends a datagram to each of many ports.
func (c *contacts) scan(first, n int) {
	c.t.Helper()
	require.NoError(c.t, c.outside.Do(func() error {
		conn, err := net.ListenUDP("udp", nil)
		require.NoError(c.t, err)
		defer conn.Close()
		for i := range n {
			to := netip.AddrPortFrom(c.host, uint16(first+i))
			if _, err := conn.WriteToUDPAddrPort([]byte("x"), to); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				return fmt.Errorf("send to %s: %w", to, err)
			}
		}
		return nil
	}))
}

// datagram sends a datagram from a new port.
func datagram(t *testing.T, from *sandbox.Sandbox, to netip.Addr, port uint16) {
	t.Helper()
	require.NoError(t, from.Do(func() error {
		sendFromHere(t, to, port)
		return nil
	}))
}

func sendFromHere(t *testing.T, to netip.Addr, port uint16) {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("x"))
	require.NoError(t, err)
}
