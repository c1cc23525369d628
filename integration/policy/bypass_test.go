package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// TestPolicyBypass sends packets past policies that deny everything: to link-local, multicast and
// broadcast addresses, and in fragments. None arrives; without the policies, all do.
func TestPolicyBypass(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		for name, f := range map[string]testbed.Families{"v4": testbed.V4Only, "dual": testbed.Dual} {
			t.Run(main+" "+name, func(t *testing.T) { testPolicyBypass(t, main, f) })
		}
	}
}

func testPolicyBypass(t *testing.T, main string, f testbed.Families) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", policed(main, f)...)
	testbed.SetSysctls(t, "", testbed.Quick)
	closed, open := h.Alloc("closed"), h.Alloc("open")
	closed.Policy = mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"action":"deny","peers":[{"name":"host"}]}]},"egress":{"default":"deny"}}`)
	addresses := map[string][]netip.Addr{}
	for _, a := range []configurator.Allocation{closed, open} {
		h.InNew(a, func() { testbed.SetSysctls(t, a.Netns, testbed.Quick) })
		s := h.SetUp(a)
		addresses[a.Netns] = []netip.Addr{netip.MustParseAddr(s.Address), linkLocal(t, a.Netns, "eth0")}
		if f.V6 != "" {
			addresses[a.Netns] = append(addresses[a.Netns], netip.MustParseAddr(s.AddressIPv6))
		}
	}
	bridge := "br-test"
	if main == "bridge" {
		addresses[""] = []netip.Addr{netip.MustParseAddr("10.99.0.1"), linkLocal(t, "", bridge)}
	}
	send := func() (arrived []string) {
		received := make(chan string, 1000)
		stop := listenAll(t, received, "", closed.Netns, open.Netns)
		defer stop()
		for _, pair := range [][2]string{{open.Netns, closed.Netns}, {closed.Netns, open.Netns}, {closed.Netns, ""}, {"", closed.Netns}} {
			link := "eth0"
			if pair[0] == "" {
				if link = bridge; main == "ptp" {
					continue // it has a link for each allocation
				}
			}
			sendAll(t, pair[0], link, pair[1], addresses[pair[1]])
		}
		// What comes from a denied sender comes before what the host sends to itself.
		deadline := time.After(graceTime)
		for {
			select {
			case one := <-received:
				arrived = append(arrived, one)
			case <-deadline:
				return arrived
			}
		}
	}
	require.Empty(t, send(), "packets that a policy denies")
	_, err := h.Update(h.Context(), "closed", configurator.Change{Policy: mustPolicy(t, `{}`)})
	require.NoError(t, err)
	require.NotEmpty(t, send(), "packets that a policy allows")
	h.TearDown(closed, open)
	require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) // the host's own broadcasts
}

// TestPolicyGroupFrames: a neighbour that sends broadcasts and multicasts all the time reaches no socket of
// an allocation with a policy, not even during its Setup.
func TestPolicyGroupFrames(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", policed("bridge", testbed.Dual)...)
	testbed.SetSysctls(t, "", testbed.Quick)
	neighbour := h.Alloc("neighbour")
	h.SetUp(neighbour)
	linkLocal(t, neighbour.Netns, "eth0")
	groups := map[string]string{"udp4": "255.255.255.255:99", "udp6": "[ff02::1]:99"}
	received := map[string]*atomic.Int64{}
	for network, to := range groups {
		received[network] = &atomic.Int64{}
		defer flood(t, neighbour.Netns, network, to).stop()
	}
	setUp := func(id, of string) configurator.Allocation {
		a := h.Alloc(id)
		a.Policy = mustPolicy(t, of)
		testbed.Within(t, a.Netns, func() error {
			for network, n := range received {
				c, err := net.ListenUDP(network, &net.UDPAddr{Port: bypassPort})
				if err != nil {
					return err
				}
				t.Cleanup(func() { c.Close() })
				go countPackets(c, n)
			}
			return nil
		})
		h.SetUp(a)
		return a
	}
	for round := range 10 {
		a := setUp(fmt.Sprint("isolated", round), `{"presets":["isolated"]}`)
		require.NoError(t, h.CheckOnly(h.Context(), a))
		h.TearDown(a)
	}
	for network, n := range received {
		require.Zero(t, n.Load(), "packets that the policy denies: %s", network)
	}
	open := setUp("open", `{}`)
	for network, n := range received {
		require.Eventually(t, func() bool { return n.Load() > 0 }, 3*testbed.Timeout, time.Millisecond, "without a policy: %s", network)
	}
	h.TearDown(open)
	h.TearDown(neighbour)
}

// linkLocal returns the IPv6 link-local address of a link.
func linkLocal(t testing.TB, netns, name string) (found netip.Addr) {
	t.Helper()
	require.Eventually(t, func() bool {
		testbed.Within(t, netns, func() error {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			list, err := netlink.AddrList(link, netlink.FAMILY_V6)
			for _, a := range list {
				if a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0 {
					found, _ = netip.AddrFromSlice(a.IP)
				}
			}
			return err
		})
		return found.IsValid()
	}, testbed.Timeout, time.Millisecond, "link-local address of %s in %q", name, netns)
	return found
}

const bypassPort = 99

// listenAll reports the datagrams that arrive in namespaces.
func listenAll(t testing.TB, received chan<- string, all ...string) (stop func()) {
	t.Helper()
	var conns []*net.UDPConn
	for _, netns := range all {
		for _, network := range []string{"udp4", "udp6"} {
			testbed.Within(t, netns, func() error {
				c, err := net.ListenUDP(network, &net.UDPAddr{Port: bypassPort})
				if err != nil {
					return err
				}
				conns = append(conns, c)
				go func() {
					data := make([]byte, 1<<14)
					for {
						n, from, err := c.ReadFromUDPAddrPort(data)
						if err != nil {
							return
						}
						text, _, _ := strings.Cut(string(data[:n]), "\x00")
						if sender, _, _ := strings.Cut(text, " "); sender == fmt.Sprintf("%q", netns) || !strings.Contains(sender+netns, "closed") {
							continue // its own multicast, or what no policy is about
						}
						received <- fmt.Sprintf("%s, received by %q from %s", text, netns, from)
					}
				}()
				return nil
			})
		}
	}
	return func() {
		for _, c := range conns {
			c.Close()
		}
	}
}

// sendAll sends datagrams from a namespace over a link to all kinds of addresses.
func sendAll(t testing.TB, from, link, to string, addresses []netip.Addr) {
	t.Helper()
	targets := append([]netip.Addr{}, addresses...)
	for _, text := range []string{"10.99.0.255", "255.255.255.255", "224.0.0.1", "239.1.2.3", "ff02::1", "ff05::1", "ff0e::1"} {
		targets = append(targets, netip.MustParseAddr(text))
	}
	testbed.Within(t, from, func() error {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		for _, a := range targets {
			for _, size := range []int{100, 4000} { // one packet, and fragments
				if err := sendOne(i, netip.AddrPortFrom(a, bypassPort), fmt.Sprintf("%q to %s (for %q), %d bytes", from, a, to, size), size); err != nil {
					return fmt.Errorf("from %q to %s: %w", from, a, err)
				}
			}
		}
		return nil
	})
}

func sendOne(over *net.Interface, to netip.AddrPort, text string, size int) error {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1), unix.BindToDevice(fd, over.Name))
	if err != nil {
		return err
	}
	data := append([]byte(text), make([]byte, size)...)[:size]
	s := sockaddr(to)
	if six, ok := s.(*unix.SockaddrInet6); ok && (to.Addr().IsLinkLocalUnicast() || to.Addr().IsMulticast()) {
		six.ZoneId = uint32(over.Index)
	}
	err = unix.Sendto(fd, data, 0, s)
	for _, fine := range []error{unix.EPERM, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN} {
		if errors.Is(err, fine) {
			return nil
		}
	}
	return err
}
