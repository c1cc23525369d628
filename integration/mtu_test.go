package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// behindOverlay makes the link to the external machine behave like an overlay:
// larger packets than mtu are dropped, and the external machine is not
// notified. The host's default route uses the link.
func (h *host) behindOverlay(mtu int) {
	h.T.Helper()
	link, err := netlink.LinkByName(testhost.Wire)
	require.NoError(h.T, err)
	require.NoError(h.T, netlink.LinkSetMTU(link, mtu))
	for _, gateway := range []netip.Prefix{testhost.Outside4, testhost.Outside6} {
		require.NoError(h.T, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.Addr().AsSlice()}))
	}
	h.T.Cleanup(func() { // before the host is compared with its snapshot
		for _, gateway := range []netip.Prefix{testhost.Outside4, testhost.Outside6} {
			require.NoError(h.T, netlink.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.Addr().AsSlice()}))
		}
		require.NoError(h.T, netlink.LinkSetMTU(link, 1500))
	})
	require.NoError(h.T, h.Outside.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetGSOMaxSegs(eth0, 1) // a veth passes larger packets that are not segmented yet
	}))
}

// mtuOfStatus returns the MTU of an interface of the sandbox in a status.
func mtuOfStatus(s *configurator.Status, name string) int {
	for _, i := range s.Interfaces {
		if i.Name == name && i.Sandbox != "" {
			return i.MTU
		}
	}
	return -1
}

// TestMTUOfTheDefaultRoute: behind an overlay, packets of full size pass in
// both directions.
func TestMTUOfTheDefaultRoute(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			h.behindOverlay(1400)
			h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
			a := h.Alloc("a")
			a.Ports = []portmap.Port{{Value: 8080, To: 80}}
			status := h.SetUp(a)
			require.Equal(t, 1400, mtuOfStatus(status, "eth0"))
			testbed.Within(t, a.Netns, func() error {
				require.Equal(t, 1400, mtuOf(t, "eth0"))
				return nil
			})
			received := h.sink(a.Netns, 80)
			h.upload(netip.AddrPortFrom(testhost.Host4.Addr(), 8080), received)
			h.upload(netip.AddrPortFrom(testhost.Host6.Addr(), 8080), received)
			h.requireDatagram(a.Netns, testhost.Outside4.Addr(), 1400-28)
			h.requireDatagram(a.Netns, testhost.Outside6.Addr(), 1400-48)

			h.requireKept(a, status)
			h.TearDown(a)
		})
	}
}

// requireKept changes the default route's MTU, and checks that an allocation
// keeps its own.
func (h *host) requireKept(a configurator.Allocation, status *configurator.Status) {
	h.T.Helper()
	link, err := netlink.LinkByName(testhost.Wire)
	require.NoError(h.T, err)
	require.NoError(h.T, netlink.LinkSetMTU(link, 1300))
	require.NoError(h.T, h.Check(h.Context(), a))
	privhost.FlushRuleset(h.T)
	report, err := h.Repair(h.Context())
	require.NoError(h.T, err)
	require.Equal(h.T, []string{a.ID}, report.Repaired)
	require.Equal(h.T, status, h.SetUp(a))
	r, err := h.Get(h.Context(), a.ID)
	require.NoError(h.T, err)
	require.Equal(h.T, status.Interfaces, r.Status.Interfaces)
}

// TestMTUIsConfigured: a configured MTU has precedence. Without one, the
// kernel's default applies if the default route is not narrower.
func TestMTUIsConfigured(t *testing.T) {
	for _, c := range []struct {
		name             string
		route, conf      int
		families         testbed.Families
		version          string
		want, wantStatus int
	}{
		{"usual", 1500, 0, testbed.Dual, "1.0.0", 1500, 0},
		{"jumbo frames", 9000, 0, testbed.Dual, "1.0.0", 1500, 0},
		{"configured", 1400, 1450, testbed.Dual, "1.0.0", 1450, 1450},
		{"old version", 1400, 0, testbed.V4Only, "0.4.0", 1400, 1400},
		{"none of IPv6", 1300, 0, testbed.V4Only, "1.1.0", 1300, 1300},
		{"too little for IPv6, in IPv4", 1200, 0, testbed.V4Only, "1.0.0", 1200, 1200},
		{"too little for IPv6", 1200, 0, testbed.Dual, "1.0.0", 1280, 1280},
	} {
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(fmt.Sprintf("%s, %s", c.name, main), func(t *testing.T) {
				h := newHost(t, configurator.EngineNative)
				h.routeOver(c.route)
				plugins := testbed.Chain(main, c.families, "")
				if c.conf != 0 {
					plugins[1]["mtu"] = c.conf
				}
				h.NetworkOf(c.version, "net", plugins...)
				a := h.Alloc("a")
				status := h.SetUp(a)
				require.Equal(t, c.wantStatus, mtuOfStatus(status, "eth0"))
				testbed.Within(t, a.Netns, func() error {
					require.Equal(t, c.want, mtuOf(t, "eth0"))
					return nil
				})
				require.NoError(t, h.Check(h.Context(), a))
				h.TearDown(a)
			})
		}
	}
	h := newHost(t, configurator.EngineNative)
	plugins := testbed.Chain("bridge", testbed.Dual, "")
	plugins[1]["mtu"] = 1200
	h.Network("net", plugins...)
	_, err := h.Setup(h.Context(), h.Alloc("small"))
	require.ErrorContains(t, err, "mtu 1200 is too small for an IPv6 address: IPv6 needs at least 1280")
}

// routeOver adds an IPv4 default route with the given MTU. The link's own MTU
// is not below 1500: below 1280 the link would lose its IPv6 addresses.
func (h *host) routeOver(mtu int) {
	h.T.Helper()
	link, err := netlink.LinkByName(testhost.Wire)
	require.NoError(h.T, err)
	require.NoError(h.T, netlink.LinkSetMTU(link, max(mtu, 1500)))
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: testhost.Outside4.Addr().AsSlice(), MTU: mtu}
	require.NoError(h.T, netlink.RouteAdd(route))
	h.T.Cleanup(func() {
		require.NoError(h.T, netlink.RouteDel(route))
		require.NoError(h.T, netlink.LinkSetMTU(link, 1500))
	})
}

// sink accepts connections on a port, and sends the number of bytes that each
// received.
func (h *host) sink(netns string, port int) <-chan int64 {
	h.T.Helper()
	received := make(chan int64)
	var l net.Listener
	testbed.Within(h.T, netns, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	h.T.Cleanup(func() { require.NoError(h.T, l.Close()) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n, _ := io.Copy(io.Discard, c) // the caller compares the number
			_ = c.Close()
			received <- n
		}
	}()
	return received
}

// upload sends a sink many packets of full size from outside.
func (h *host) upload(to netip.AddrPort, received <-chan int64) {
	h.T.Helper()
	const size = 256 << 10
	ctx, cancel := context.WithTimeout(h.T.Context(), testbed.Timeout)
	defer cancel()
	require.NoError(h.T, h.Outside.Do(func() error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(make([]byte, size))
		return err
	}))
	select {
	case n := <-received:
		require.EqualValues(h.T, size, n)
	case <-time.After(testbed.Timeout):
		require.Fail(h.T, "packets got lost on the way in", "%s", to)
	}
}

// requireDatagram sends a datagram of the largest size that fits into an
// unfragmented packet. With one byte more, the sender gets an error.
func (h *host) requireDatagram(netns string, to netip.Addr, size int) {
	h.T.Helper()
	var far net.PacketConn
	require.NoError(h.T, h.Outside.Do(func() (err error) {
		far, err = net.ListenPacket("udp", netip.AddrPortFrom(to, 0).String())
		return err
	}))
	defer far.Close()
	testbed.Within(h.T, netns, func() error {
		c, err := net.Dial("udp", far.LocalAddr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			return err
		}
		require.NoError(h.T, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			if to.Is6() {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
			}
		}))
		require.NoError(h.T, err)
		_, err = c.Write(make([]byte, size+1))
		require.ErrorIs(h.T, err, unix.EMSGSIZE)
		buf := make([]byte, 2000)
		for range 5 { // the first ones may be lost to a neighbour lookup
			if _, err := c.Write(make([]byte, size)); err != nil {
				return err
			}
			if err := far.SetReadDeadline(time.Now().Add(testbed.Timeout)); err != nil {
				return err
			}
			n, _, err := far.ReadFrom(buf)
			if err == nil {
				require.Equal(h.T, size, n)
				return nil
			}
		}
		return os.ErrDeadlineExceeded
	})
}

// mtuOf returns the MTU of a link in the namespace of the thread.
func mtuOf(t testing.TB, name string) int {
	t.Helper()
	link, err := netlink.LinkByName(name)
	require.NoError(t, err)
	return link.Attrs().MTU
}
