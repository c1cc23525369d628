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
	"github.com/allocnet/allocnet/portmap"
)

// behindOverlay makes the link to the external machine behave like an overlay:
// larger packets than mtu are dropped, and the external machine is not
// notified. The host's default route uses the link.
func (h *host) behindOverlay(mtu int) {
	h.t.Helper()
	link, err := netlink.LinkByName(wire)
	require.NoError(h.t, err)
	require.NoError(h.t, netlink.LinkSetMTU(link, mtu))
	for _, gateway := range []netip.Prefix{outside4, outside6} {
		require.NoError(h.t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.Addr().AsSlice()}))
	}
	h.t.Cleanup(func() { // before the host is compared with its snapshot
		for _, gateway := range []netip.Prefix{outside4, outside6} {
			require.NoError(h.t, netlink.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.Addr().AsSlice()}))
		}
		require.NoError(h.t, netlink.LinkSetMTU(link, 1500))
	})
	require.NoError(h.t, h.outside.Do(func() error {
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
			h.network("net", chain(main, dual, "")...)
			a := h.alloc("a")
			a.Ports = []portmap.Port{{Value: 8080, To: 80}}
			status := h.setUp(a)
			require.Equal(t, 1400, mtuOfStatus(status, "eth0"))
			within(t, a.Netns, func() error {
				require.Equal(t, 1400, mtuOf(t, "eth0"))
				return nil
			})
			received := h.sink(a.Netns, 80)
			h.upload(netip.AddrPortFrom(host4.Addr(), 8080), received)
			h.upload(netip.AddrPortFrom(host6.Addr(), 8080), received)
			h.requireDatagram(a.Netns, outside4.Addr(), 1400-28)
			h.requireDatagram(a.Netns, outside6.Addr(), 1400-48)

			h.requireKept(a, status)
			h.tearDown(a)
		})
	}
}

// requireKept changes the default route's MTU, and checks that an allocation
// keeps its own.
func (h *host) requireKept(a configurator.Allocation, status *configurator.Status) {
	h.t.Helper()
	link, err := netlink.LinkByName(wire)
	require.NoError(h.t, err)
	require.NoError(h.t, netlink.LinkSetMTU(link, 1300))
	require.NoError(h.t, h.Check(h.ctx(), a))
	flushRuleset(h.t)
	report, err := h.Repair(h.ctx())
	require.NoError(h.t, err)
	require.Equal(h.t, []string{a.ID}, report.Repaired)
	require.Equal(h.t, status, h.setUp(a))
	r, err := h.Get(h.ctx(), a.ID)
	require.NoError(h.t, err)
	require.Equal(h.t, status.Interfaces, r.Status.Interfaces)
}

// TestMTUIsConfigured: a configured MTU has precedence. Without one, the
// kernel's default applies if the default route is not narrower.
func TestMTUIsConfigured(t *testing.T) {
	for _, c := range []struct {
		name             string
		route, conf      int
		families         families
		version          string
		want, wantStatus int
	}{
		{"usual", 1500, 0, dual, "1.0.0", 1500, 0},
		{"jumbo frames", 9000, 0, dual, "1.0.0", 1500, 0},
		{"configured", 1400, 1450, dual, "1.0.0", 1450, 1450},
		{"old version", 1400, 0, v4Only, "0.4.0", 1400, 1400},
		{"none of IPv6", 1300, 0, v4Only, "1.1.0", 1300, 1300},
		{"too little for IPv6, in IPv4", 1200, 0, v4Only, "1.0.0", 1200, 1200},
		{"too little for IPv6", 1200, 0, dual, "1.0.0", 1280, 1280},
	} {
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(fmt.Sprintf("%s, %s", c.name, main), func(t *testing.T) {
				h := newHost(t, configurator.EngineNative)
				h.routeOver(c.route)
				plugins := chain(main, c.families, "")
				if c.conf != 0 {
					plugins[1]["mtu"] = c.conf
				}
				h.networkOf(c.version, "net", plugins...)
				a := h.alloc("a")
				status := h.setUp(a)
				require.Equal(t, c.wantStatus, mtuOfStatus(status, "eth0"))
				within(t, a.Netns, func() error {
					require.Equal(t, c.want, mtuOf(t, "eth0"))
					return nil
				})
				require.NoError(t, h.Check(h.ctx(), a))
				h.tearDown(a)
			})
		}
	}
	h := newHost(t, configurator.EngineNative)
	plugins := chain("bridge", dual, "")
	plugins[1]["mtu"] = 1200
	h.network("net", plugins...)
	_, err := h.Setup(h.ctx(), h.alloc("small"))
	require.ErrorContains(t, err, "mtu 1200 is too small for an IPv6 address: IPv6 needs at least 1280")
}

// routeOver adds an IPv4 default route with the given MTU. The link's own MTU
// is not below 1500: below 1280 the link would lose its IPv6 addresses.
func (h *host) routeOver(mtu int) {
	h.t.Helper()
	link, err := netlink.LinkByName(wire)
	require.NoError(h.t, err)
	require.NoError(h.t, netlink.LinkSetMTU(link, max(mtu, 1500)))
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: outside4.Addr().AsSlice(), MTU: mtu}
	require.NoError(h.t, netlink.RouteAdd(route))
	h.t.Cleanup(func() {
		require.NoError(h.t, netlink.RouteDel(route))
		require.NoError(h.t, netlink.LinkSetMTU(link, 1500))
	})
}

// sink accepts connections on a port, and sends the number of bytes that each
// received.
func (h *host) sink(netns string, port int) <-chan int64 {
	h.t.Helper()
	received := make(chan int64)
	var l net.Listener
	within(h.t, netns, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	h.t.Cleanup(func() { require.NoError(h.t, l.Close()) })
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
	h.t.Helper()
	const size = 256 << 10
	ctx, cancel := context.WithTimeout(h.t.Context(), timeout)
	defer cancel()
	require.NoError(h.t, h.outside.Do(func() error {
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
		require.EqualValues(h.t, size, n)
	case <-time.After(timeout):
		require.Fail(h.t, "packets got lost on the way in", "%s", to)
	}
}

// requireDatagram sends a datagram of the largest size that fits into an
// unfragmented packet. With one byte more, the sender gets an error.
func (h *host) requireDatagram(netns string, to netip.Addr, size int) {
	h.t.Helper()
	var far net.PacketConn
	require.NoError(h.t, h.outside.Do(func() (err error) {
		far, err = net.ListenPacket("udp", netip.AddrPortFrom(to, 0).String())
		return err
	}))
	defer far.Close()
	within(h.t, netns, func() error {
		c, err := net.Dial("udp", far.LocalAddr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			return err
		}
		require.NoError(h.t, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			if to.Is6() {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
			}
		}))
		require.NoError(h.t, err)
		_, err = c.Write(make([]byte, size+1))
		require.ErrorIs(h.t, err, unix.EMSGSIZE)
		buf := make([]byte, 2000)
		for range 5 { // the first ones may be lost to a neighbour lookup
			if _, err := c.Write(make([]byte, size)); err != nil {
				return err
			}
			if err := far.SetReadDeadline(time.Now().Add(timeout)); err != nil {
				return err
			}
			n, _, err := far.ReadFrom(buf)
			if err == nil {
				require.Equal(h.t, size, n)
				return nil
			}
		}
		return os.ErrDeadlineExceeded
	})
}
