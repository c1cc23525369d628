package policy

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
)

// TestPolicyEndsConnections: a TCP connection that a new policy denies ends, whichever end sends next.
// The policy is that of the server's ingress only. Connections that it allows go on.
func TestPolicyEndsConnections(t *testing.T) {
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, testPolicyEndsConnections)
}

func testPolicyEndsConnections(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", policed(main, testbed.Dual)...)
	client, other, server := h.Alloc("client"), h.Alloc("other"), h.Alloc("server")
	client.Labels, other.Labels = map[string]string{"app": "client"}, map[string]string{"app": "other"}
	server.Policy = mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{}}]}]}}`)
	for _, a := range []configurator.Allocation{client, other, server} {
		h.InNew(a, func() { testbed.SetSysctls(t, a.Netns, testbed.Quick) })
	}
	h.SetUp(client)
	h.SetUp(other)
	status := h.SetUp(server)
	for _, address := range []string{status.Address, status.AddressIPv6} {
		to := netip.AddrPortFrom(netip.MustParseAddr(address), 90)
		for _, first := range []string{"the server", "the client"} {
			ended, goesOn := openConnection(t, client.Netns, server.Netns, to), openConnection(t, other.Netns, server.Netns, to)
			_, err := h.Update(h.Context(), "server", configurator.Change{
				Policy: mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"other"}}]}]}}`)})
			require.NoError(t, err)
			for range 2 {
				if first == "the server" {
					ended.requireSilence(t, ended.server, ended.client)
				}
				ended.requireSilence(t, ended.client, ended.server)
				ended.requireSilence(t, ended.server, ended.client)
			}
			goesOn.requireEcho(t)
			_, err = h.Update(h.Context(), "server", configurator.Change{Policy: server.Policy})
			require.NoError(t, err)
			openConnection(t, client.Netns, server.Netns, to).requireEcho(t)
		}
	}
	h.TearDown(client, other, server)
}

// TestPolicyEndsDatagrams: a client whose access is revoked does not regain it with a packet of the server,
// whose egress is open. That holds for protocols without connections, also while both ends go on. When
// the client is allowed again, both ends send at once.
func TestPolicyEndsDatagrams(t *testing.T) {
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, func(t *testing.T, main string) {
		h := newHost(t, configurator.EngineNative)
		h.Network("net", policed(main, testbed.Dual)...)
		client, server := h.Alloc("client"), h.Alloc("server")
		client.Labels = map[string]string{"app": "client"}
		server.Policy = mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"client"}}]}]}}`)
		from, to := h.SetUp(client), h.SetUp(server)
		ends := map[string]int{client.ID: sniffer(t, client.Netns), server.ID: sniffer(t, server.Netns)}
		for i, pair := range [][2]string{{from.Address, to.Address}, {from.AddressIPv6, to.AddressIPv6}} {
			c, s := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
			for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_ESP} {
				sent := uint16(0)
				sends := func(ok bool, source configurator.Allocation) {
					t.Helper()
					a, b, at := netip.AddrPortFrom(c, 4000+uint16(i)), netip.AddrPortFrom(s, 80), server.ID
					if source.ID == server.ID {
						a, b, at = b, a, client.ID
					}
					token := rand.Text()
					requirePacket(t, ok, fmt.Sprintf("protocol %d from %s", protocol, a), token, ends[at], func() {
						sent++
						sendPackets(t, source.Netns, b.Addr(), packet(a.Addr(), b.Addr(), protocol, datagram(protocol, a, b, sent, []byte(token))))
					})
				}
				sends(true, client)
				sends(true, server)
				sends(true, client)
				for _, change := range []struct{ revoke, grant func() }{
					{func() { h.change("client", configurator.Change{Labels: map[string]*string{"app": nil}}) },
						func() { h.change("client", configurator.Change{Labels: map[string]*string{"app": new("client")}}) }},
					{func() {
						h.change("server", configurator.Change{Policy: mustPolicy(t, `{"presets":["isolated"],"egress":{"rules":[{}]}}`)})
					},
						func() { h.change("server", configurator.Change{Policy: server.Policy}) }},
				} {
					change.revoke()
					for range 2 {
						sends(false, server)
						sends(false, client)
					}
					change.grant()
					sends(true, server)
					sends(true, client)
					require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
					sends(true, client)
				}
			}
		}
		h.TearDown(client, server)
	})
}

// change updates an allocation.
func (h *host) change(id string, change configurator.Change) {
	h.T.Helper()
	_, err := h.Update(h.Context(), id, change)
	require.NoError(h.T, err)
}

// datagram returns a packet of a protocol with a token: a datagram of UDP, a chunk with a heartbeat of SCTP, or
// one of ESP.
func datagram(protocol byte, from, to netip.AddrPort, number uint16, token []byte) []byte {
	switch protocol {
	case unix.IPPROTO_UDP:
		return udpPacket(from, to, token)
	case unix.IPPROTO_SCTP:
		return sctpHeartbeat(from.Port(), to.Port(), token)
	}
	return slices.Concat([]byte{0, 0, 0, 1, 0, 0}, binary.BigEndian.AppendUint16(nil, number), token)
}

// TestPolicyEndsConnectionsOfTheLink: on a routed network, the policy applies to the link, so a change also
// ends the connections of its link-local address and of addresses behind the allocation. Those of another
// allocation go on.
func TestPolicyEndsConnectionsOfTheLink(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", policed("ptp", testbed.Dual)...)
	a, other := h.Alloc("a"), h.Alloc("other")
	var to, toOther netip.AddrPort
	for _, one := range []struct {
		alloc configurator.Allocation
		to    *netip.AddrPort
	}{{a, &to}, {other, &toOther}} {
		h.InNew(one.alloc, func() { testbed.SetSysctls(t, one.alloc.Netns, testbed.Quick) })
		link := testbed.HostLink(t, h.SetUp(one.alloc))
		*one.to = netip.AddrPortFrom(linkLocalOf(t, link).WithZone("eth0"), 90)
		if one.alloc.ID == "a" {
			require.NoError(t, testbed.Command("ip", "-n", "a", "addr", "add", "10.66.1.1/32", "dev", "eth0"))
			require.NoError(t, testbed.Command("ip", "route", "add", "10.66.0.0/16", "dev", link))
			outside := []string{"10.66.2.0/24", "via", testhost.Outside4.Addr().String()}
			require.NoError(t, testbed.Command("ip", append([]string{"route", "add"}, outside...)...))
			defer func() { require.NoError(t, testbed.Command("ip", append([]string{"route", "del"}, outside...)...)) }()
		}
	}
	behind := netip.MustParseAddrPort("10.66.1.1:90")
	local, goesOn := connectLinkLocal(t, a.Netns, to), connectLinkLocal(t, other.Netns, toOther)
	inside := openConnection(t, "", a.Netns, behind)
	_, err := h.Update(h.Context(), "a", configurator.Change{Policy: mustPolicy(t, `{"presets":["isolated"],"ingress":{"rules":[{"action":"deny","peers":[{"name":"host"}]}]}}`)})
	require.NoError(t, err)
	for _, ended := range []*connection{local, inside} {
		ended.requireSilence(t, ended.client, ended.server)
		ended.requireSilence(t, ended.server, ended.client)
	}
	goesOn.requireEcho(t)
	h.TearDown(a, other)
}

// TestPolicyEndsConnectionsBehindIt: a policy of an allocation on a routed network that denies a peer with other labels
// ends the connections of addresses behind the allocation, also if it is the peer that changes. When the peer is
// allowed again, also because the policy is gone, they go on.
func TestPolicyEndsConnectionsBehindIt(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	plugins := policed("ptp", testbed.V4Only)
	plugins[1]["ipMasq"] = false // otherwise the client does not recognise what the server sends
	h.Network("net", plugins...)
	a, peer := h.Alloc("a"), h.Alloc("peer")
	a.Policy = mustPolicy(t, `{"egress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"web"}}]}]}}`)
	peer.Labels = map[string]string{"app": "web"}
	for _, one := range []configurator.Allocation{a, peer} {
		h.InNew(one, func() { testbed.SetSysctls(t, one.Netns, testbed.Quick) })
	}
	link, to := testbed.HostLink(t, h.SetUp(a)), netip.MustParseAddr(h.SetUp(peer).Address)
	require.NoError(t, testbed.Command("ip", "-n", "a", "addr", "add", "10.66.1.1/32", "dev", "eth0"))
	require.NoError(t, testbed.Command("ip", "route", "add", "10.66.0.0/16", "dev", link))
	behind, ends := netip.MustParseAddr("10.66.1.1"), [2]int{sniffer(t, a.Netns), sniffer(t, peer.Netns)}
	datagram := func(ok bool, sends configurator.Allocation) {
		t.Helper()
		from, to, at := netip.AddrPortFrom(behind, 4000), netip.AddrPortFrom(to, 80), ends[1]
		if sends.ID == "peer" {
			from, to, at = to, from, ends[0]
		}
		token := rand.Text()
		requirePacket(t, ok, "datagram from "+sends.ID, token, at, func() {
			sendPackets(t, sends.Netns, to.Addr(), packet(from.Addr(), to.Addr(), unix.IPPROTO_UDP, udpPacket(from, to, []byte(token))))
		})
	}
	for _, again := range []configurator.Change{
		{Labels: map[string]*string{"app": new("web")}}, {Policy: &policy.Policy{}},
	} {
		c := openConnection(t, a.Netns, peer.Netns, netip.AddrPortFrom(to, 90), behind)
		datagram(true, a)
		datagram(true, peer)
		h.change("peer", configurator.Change{Labels: map[string]*string{"app": nil}})
		c.requireSilence(t, c.server, c.client)
		c.requireSilence(t, c.client, c.server)
		datagram(false, peer)
		datagram(false, a)
		if again.Policy != nil {
			h.change("a", again)
		} else {
			h.change("peer", again)
		}
		datagram(true, a) // first: a connection of the peer's would be allowed
		datagram(true, peer)
	}
	h.TearDown(a, peer)
}

// TestPolicyKeepsConnectionsOfTheHost: the host's own addresses, which the links of a routed network have, are not behind
// an allocation, whose policy does not apply to them.
func TestPolicyKeepsConnectionsOfTheHost(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", policed("ptp", testbed.Dual)...)
	first, open, last := h.Alloc("first"), h.Alloc("open"), h.Alloc("last")
	first.Policy = mustPolicy(t, `{"egress":{"default":"deny"}}`)
	last.Policy = first.Policy
	h.SetUp(first)
	to := h.SetUp(open)
	h.SetUp(last)
	for i, address := range []string{to.Address, to.AddressIPv6} {
		at := testbed.At(netip.MustParseAddr(address), 90)
		var server net.PacketConn
		testbed.Within(t, open.Netns, func() (err error) {
			server, err = net.ListenPacket("udp", at)
			return err
		})
		client, err := net.Dial("udp", at)
		require.NoError(t, err)
		for round := range 2 {
			require.NoError(t, server.SetDeadline(time.Now().Add(testbed.Timeout)))
			require.NoError(t, client.SetDeadline(time.Now().Add(testbed.Timeout)))
			_, err := client.Write([]byte("?"))
			require.NoError(t, err)
			_, from, err := server.ReadFrom(make([]byte, 9))
			require.NoError(t, err)
			_, err = server.WriteTo([]byte("!"), from)
			require.NoError(t, err)
			_, err = client.Read(make([]byte, 9))
			require.NoError(t, err, "from %s", client.LocalAddr())
			h.change("open", configurator.Change{Labels: map[string]*string{"app": new(fmt.Sprint(2*i + round))}})
		}
		require.NoError(t, errors.Join(client.Close(), server.Close()))
	}
	h.TearDown(first, open, last)
}

// linkLocalOf returns the IPv6 link-local address of a link of the host.
func linkLocalOf(t *testing.T, link string) (found netip.Addr) {
	t.Helper()
	l, err := net.InterfaceByName(link)
	require.NoError(t, err)
	addresses, err := l.Addrs()
	require.NoError(t, err)
	for _, one := range addresses {
		if p := netip.MustParsePrefix(one.String()); p.Addr().IsLinkLocalUnicast() {
			found = p.Addr()
		}
	}
	require.True(t, found.IsValid())
	return found
}

// connectLinkLocal opens a connection from an allocation to a process of the host, at the link-local address
// of the host's end of the link.
func connectLinkLocal(t *testing.T, from string, to netip.AddrPort) *connection {
	t.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(netip.IPv6Unspecified(), to.Port()).String())
	require.NoError(t, err)
	defer l.Close()
	c := &connection{}
	testbed.Within(t, from, func() (err error) {
		c.client, err = net.DialTimeout("tcp", to.String(), testbed.Timeout)
		return err
	})
	c.server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.client.Close(); c.server.Close() })
	c.requireEcho(t)
	return c
}

// connection is a TCP connection with both its ends.
type connection struct{ client, server net.Conn }

// openConnection opens a connection from one namespace to another, from an address if there is one.
func openConnection(t *testing.T, from, in string, to netip.AddrPort, source ...netip.Addr) *connection {
	t.Helper()
	d := net.Dialer{Timeout: testbed.Timeout}
	for _, a := range source {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	}
	var l net.Listener
	testbed.Within(t, in, func() (err error) {
		l, err = net.Listen("tcp", to.String())
		return err
	})
	defer l.Close()
	c := &connection{}
	testbed.Within(t, from, func() (err error) {
		c.client, err = d.Dial("tcp", to.String())
		return err
	})
	var err error
	c.server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.client.Close(); c.server.Close() })
	c.requireEcho(t)
	return c
}

func (c *connection) requireEcho(t *testing.T) {
	t.Helper()
	for _, ends := range [][2]net.Conn{{c.client, c.server}, {c.server, c.client}} {
		require.NoError(t, pass(ends[0], ends[1], testbed.Timeout))
	}
}

// requireSilence checks that nothing passes, for the time of some retransmissions.
func (c *connection) requireSilence(t *testing.T, from, to net.Conn) {
	t.Helper()
	require.Error(t, pass(from, to, 300*time.Millisecond))
}

// pass sends a byte and waits for it.
func pass(from, to net.Conn, wait time.Duration) error {
	if _, err := from.Write([]byte{1}); err != nil {
		return err
	}
	if err := to.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	n, err := to.Read(make([]byte, 64))
	if n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.Join(errors.New("the connection was closed"), err)
	}
	return err
}

// TestPolicyRefused: a network that cannot enforce a policy does not accept one, at the first attempt
// of Setup and in Update, and everything stays as it was.
func TestPolicyRefused(t *testing.T) {
	for _, one := range []struct {
		name, main, want string
		change           func(main map[string]any)
	}{
		{"bridge without the guard", "bridge", "needs the source guard", func(m map[string]any) { m["sourceGuard"] = false }},
		{"ptp without the guard", "ptp", "needs the source guard", func(m map[string]any) { m["sourceGuard"] = false }},
		{"bridge without addresses", "bridge", "needs the addresses", func(m map[string]any) {
			delete(m, "ipam")
			delete(m, "ipMasq")
			m["isGateway"] = false
		}},
	} {
		t.Run(one.name, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			plugins := policed(one.main, testbed.Dual)
			one.change(plugins[1])
			h.Network("net", plugins[0], plugins[1], plugins[len(plugins)-1])
			a := h.Alloc("a")
			isolated := mustPolicy(t, `{"presets":["isolated"]}`)
			a.Policy = isolated
			_, err := h.Setup(h.Context(), a)
			require.ErrorContains(t, err, one.want)
			var refusal *types.Error // of a class that is not retried
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, types.ErrInvalidNetworkConfig, refusal.Code)
			a.Policy = nil
			h.SetUp(a)
			_, err = h.Update(h.Context(), "a", configurator.Change{Policy: isolated})
			require.ErrorContains(t, err, one.want)
			_, err = h.Update(h.Context(), "a", configurator.Change{Labels: map[string]*string{"app": new("web")}})
			require.NoError(t, err)
			a.Labels = map[string]string{"app": "web"}
			require.NoError(t, h.CheckOnly(h.Context(), a))
			h.TearDown(a)
		})
	}
}
