package policy

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// TestDiscoveryBetweenNeighboursOnly: packets of the types of neighbour discovery, and of the management
// of multicast groups, are subject to policies unless they are between neighbours, whatever their hop
// limit is. What is between neighbours goes on.
func TestDiscoveryBetweenNeighboursOnly(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", policed(main, testbed.Dual)...)
			free, bound, target := h.Alloc("free"), h.Alloc("bound"), h.Alloc("target")
			closed := mustPolicy(t, `{"presets":["isolated"],"ingress":{"rules":[{"action":"deny","peers":[{"name":"host"}]}]}}`)
			bound.Policy, target.Policy = closed, closed
			h.SetUp(free)
			link := testbed.HostLink(t, h.SetUp(bound))
			if main == "bridge" {
				link = "br-test"
			}
			s := h.SetUp(target)
			inside := netip.MustParseAddr(s.AddressIPv6)
			outside := newListener(t, h.Outside.Path())
			at, host := newListener(t, target.Netns), newListener(t, "")
			probe{kind: 135, hops: 255}.requireArrival(t, true, "", inside, at) // now the host knows its MAC
			for _, kind := range []byte{130, 131, 132, 133, 134, 135, 136, 137, 143} {
				// The source guard drops what routers send, and on a bridge queries of multicast routers and
				// advertisements for foreign addresses.
				guarded := kind == 134 || kind == 137 || (kind == 130 || kind == 136) && main == "bridge"
				discovery := kind >= 133 && kind <= 137
				for _, hops := range []int{1, 2, 64, 255} {
					p := probe{kind: kind, hops: hops}
					if !guarded && hops > 1 {
						p.requireArrival(t, true, free.Netns, testhost.Outside6.Addr(), outside)
					}
					p.requireArrival(t, false, bound.Netns, testhost.Outside6.Addr(), outside)
					neighbours := main == "bridge" && discovery && hops == 255
					p.requireArrival(t, neighbours && !guarded, free.Netns, inside, at)
					p.requireArrival(t, discovery && hops == 255 && !guarded, bound.Netns, testhost.Host6.Addr(), host)
					p.requireArrival(t, discovery && hops == 255, "", inside, at)
				}
				for _, l := range []*listener{outside, at, host} {
					l.requireSilence(t)
				}
			}
			const group = "ff02::6a" // of all snoopers
			joinGroup(t, host.fd, group, link)
			for _, kind := range []byte{130, 131, 132, 143} {
				p := probe{kind: kind, hops: 1, zone: "eth0"}
				p.requireArrival(t, kind != 130 || main == "ptp", bound.Netns, netip.MustParseAddr(group), host)
				p.from = netip.MustParseAddr(s.AddressIPv6)
				p.requireArrival(t, false, target.Netns, netip.MustParseAddr(group), host)
			}
			host.requireSilence(t)
			h.TearDown(free, bound, target)
		})
	}
}

// joinGroup makes a socket of the host receive packets to a group over a link.
func joinGroup(t *testing.T, fd int, group, link string) {
	t.Helper()
	i, err := net.InterfaceByName(link)
	require.NoError(t, err)
	mreq := &unix.IPv6Mreq{Multiaddr: netip.MustParseAddr(group).As16(), Interface: uint32(i.Index)}
	require.NoError(t, unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, mreq))
}

// probe is an ICMPv6 packet.
type probe struct {
	kind byte
	hops int
	from netip.Addr // the kernel chooses it if it is not valid
	zone string     // the link of the sender, for a group
}

// rawICMPv6 returns a socket that receives all ICMPv6 packets of a namespace.
func rawICMPv6(t *testing.T, netns string) (fd int) {
	t.Helper()
	testbed.Within(t, netns, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		return err
	})
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	return fd
}

// listener receives the ICMPv6 packets of a namespace.
type listener struct {
	fd     int
	denied map[string]string // the contents of the packets that must not arrive, and what they are
}

func newListener(t *testing.T, netns string) *listener {
	t.Helper()
	fd := rawICMPv6(t, netns)
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 25_000}))
	return &listener{fd, map[string]string{}}
}

// receive waits for one packet, for a short time: see [sendUntil]. None that is denied may have arrived.
func (l *listener) receive(t *testing.T, token []byte) (arrived, empty bool) {
	t.Helper()
	buf := make([]byte, 256)
	n, _, err := unix.Recvfrom(l.fd, buf, 0)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return false, true
	}
	require.NoError(t, err)
	content := buf[min(4, n):n] // the kernel sets the checksum
	require.NotContains(t, l.denied, string(content), "it arrived")
	return bytes.Equal(content, token), false
}

// requireSilence requires that none of the denied packets arrives.
func (l *listener) requireSilence(t *testing.T) {
	t.Helper()
	sendUntil(false, func() {}, func() (arrived, empty bool) { return l.receive(t, nil) })
	clear(l.denied)
}

// requireArrival sends the packet, and requires that it arrives. One that must not arrive is sent more than once:
// requireSilence waits for all of them together.
func (p probe) requireArrival(t *testing.T, want bool, netns string, to netip.Addr, at *listener) {
	t.Helper()
	token := []byte(rand.Text())
	from := rawICMPv6(t, netns)
	for _, option := range []int{unix.IPV6_UNICAST_HOPS, unix.IPV6_MULTICAST_HOPS} {
		require.NoError(t, unix.SetsockoptInt(from, unix.IPPROTO_IPV6, option, p.hops))
	}
	if p.from.IsValid() {
		require.NoError(t, unix.Bind(from, sockaddr(netip.AddrPortFrom(p.from, 0))))
	}
	var address unix.Sockaddr
	testbed.Within(t, netns, func() error { address = sockaddr(netip.AddrPortFrom(to.WithZone(p.zone), 0)); return nil })
	send := func() {
		err := unix.Sendto(from, append([]byte{p.kind, 0, 0, 0}, token...), 0, address)
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINTR) { // a local rule, a signal of Go
			require.NoError(t, err)
		}
	}
	what := fmt.Sprintf("type %d with the hop limit %d from %q to %s", p.kind, p.hops, netns, to)
	if !want {
		at.denied[string(token)] = what
		for range 3 {
			send()
		}
		return
	}
	require.True(t, sendUntil(true, send, func() (arrived, empty bool) { return at.receive(t, token) }), what)
}

// sendUntil sends until something has arrived, for a short time if that is not expected. receive waits for one
// packet; empty reports that none has come.
func sendUntil(expected bool, send func(), receive func() (arrived, empty bool)) (arrived bool) {
	wait := 50 * time.Millisecond
	if expected {
		wait = 5 * time.Second
	}
	for deadline := time.Now().Add(wait); !arrived && time.Now().Before(deadline); {
		send()
		for empty := false; !arrived && !empty; {
			arrived, empty = receive()
		}
	}
	return arrived
}
