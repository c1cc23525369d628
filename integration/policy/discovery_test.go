package policy

import (
	"bytes"
	"crypto/rand"
	"errors"
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
			outside := rawICMPv6(t, h.Outside.Path())
			at, host := rawICMPv6(t, target.Netns), rawICMPv6(t, "")
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
			}
			const group = "ff02::6a" // of all snoopers
			joinGroup(t, host, group, link)
			for _, kind := range []byte{130, 131, 132, 143} {
				p := probe{kind: kind, hops: 1, zone: "eth0"}
				p.requireArrival(t, kind != 130 || main == "ptp", bound.Netns, netip.MustParseAddr(group), host)
				p.from = netip.MustParseAddr(s.AddressIPv6)
				p.requireArrival(t, false, target.Netns, netip.MustParseAddr(group), host)
			}
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

// requireArrival sends the packet, and requires that it arrives, or does not.
func (p probe) requireArrival(t *testing.T, want bool, netns string, to netip.Addr, at int) {
	t.Helper()
	token := append([]byte{p.kind, 0, 0, 0}, rand.Text()...)
	from := rawICMPv6(t, netns)
	for _, option := range []int{unix.IPV6_UNICAST_HOPS, unix.IPV6_MULTICAST_HOPS} {
		require.NoError(t, unix.SetsockoptInt(from, unix.IPPROTO_IPV6, option, p.hops))
	}
	if p.from.IsValid() {
		require.NoError(t, unix.Bind(from, sockaddr(netip.AddrPortFrom(p.from, 0))))
	}
	var address unix.Sockaddr
	testbed.Within(t, netns, func() error { address = sockaddr(netip.AddrPortFrom(to.WithZone(p.zone), 0)); return nil })
	require.NoError(t, unix.SetsockoptTimeval(at, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 25_000}))
	arrived := sendUntil(want, func() {
		err := unix.Sendto(from, token, 0, address)
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINTR) { // a local rule, a signal of Go
			require.NoError(t, err)
		}
	}, func() (arrived, empty bool) {
		buf := make([]byte, 256)
		n, _, err := unix.Recvfrom(at, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return false, true
		}
		require.NoError(t, err)
		return n == len(token) && bytes.Equal(buf[4:n], token[4:]), false
	})
	require.Equal(t, want, arrived, "type %d with the hop limit %d from %q to %s", p.kind, p.hops, netns, to)
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
