package policy

import (
	"bytes"
	"crypto/rand"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
)

// TestDiscoveryBetweenNeighboursOnly: packets of the types of neighbour discovery, and of the management
// of multicast groups, are subject to policies unless they are between neighbours.
func TestDiscoveryBetweenNeighboursOnly(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", policed(main, testbed.Dual)...)
			free, bound, target := h.Alloc("free"), h.Alloc("bound"), h.Alloc("target")
			isolated := &policy.Policy{Presets: []policy.Preset{policy.Isolated}}
			bound.Policy, target.Policy = isolated, isolated
			h.SetUp(free)
			h.SetUp(bound)
			s := h.SetUp(target)
			inside := netip.MustParseAddr(s.AddressIPv6)
			outside := rawICMPv6(t, h.Outside.Path())
			at := rawICMPv6(t, target.Netns)
			for _, kind := range []byte{130, 131, 132, 133, 134, 135, 136, 137, 143} {
				// The source guard drops what routers send, and on a bridge advertisements for foreign addresses.
				if guarded := kind == 134 || kind == 137 || kind == 136 && main == "bridge"; !guarded {
					requireArrival(t, true, free.Netns, testhost.Outside6.Addr(), outside, kind)
				}
				requireArrival(t, false, bound.Netns, testhost.Outside6.Addr(), outside, kind)
				requireArrival(t, false, free.Netns, inside, at, kind)
			}
			h.TearDown(free, bound, target)
		})
	}
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

// requireArrival sends a packet with a hop limit of 64, and requires that it arrives, or does not.
func requireArrival(t *testing.T, want bool, netns string, to netip.Addr, at int, kind byte) {
	t.Helper()
	token := append([]byte{kind, 0, 0, 0}, rand.Text()...)
	from := rawICMPv6(t, netns)
	require.NoError(t, unix.SetsockoptInt(from, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 64))
	require.NoError(t, unix.SetsockoptTimeval(at, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 25_000}))
	arrived := sendUntil(want, func() {
		err := unix.Sendto(from, token, 0, &unix.SockaddrInet6{Addr: to.As16()})
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
	require.Equal(t, want, arrived, "type %d to %s", kind, to)
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
