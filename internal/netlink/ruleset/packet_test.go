package ruleset

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// testNet is the private host with an external machine, two bridges with one
// and two allocations, and a ruleset.
type testNet struct {
	*Ruleset
	t testing.TB
	// The sandboxes: a and b are ports of br0, c is one of br1.
	outside, a, b, c *sandbox.Sandbox
}

// The last parts of the networks: 10.N.0.x and fd00:N::x.
const wireNet, net0, net1 = 70, 71, 72

func addr4(network, n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(network), 0, byte(n)}), 24)
}

func addr6(network, n int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd00:%d::%d/64", network, n))
}

func newNet(t testing.TB) *testNet {
	t.Helper()
	privhost.Require(t, "ip", "nft", "iptables", "ip6tables")
	n := &testNet{Ruleset: open(t), t: t}
	for _, file := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv4/conf/all/route_localnet"} {
		sysctl(t, file, "1")
	}
	noDAD(t)
	n.bridge("br0", net0)
	n.bridge("br1", net1)
	n.outside = n.machine("outside", "", wireNet, 2)
	n.a, n.b = n.machine("a", "br0", net0, 2), n.machine("b", "br0", net0, 3)
	n.c = n.machine("c", "br1", net1, 2)
	n.address("to-outside", wireNet)
	return n
}

func sysctl(t testing.TB, file, value string) {
	t.Helper()
	require.NoError(t, os.WriteFile("/proc/sys/net/"+file, []byte(value), 0))
}

// noDAD disables duplicate address detection for new links.
func noDAD(t testing.TB) {
	t.Helper()
	sysctl(t, "ipv6/conf/default/accept_dad", "0")
	sysctl(t, "ipv6/conf/all/accept_dad", "0")
}

func (n *testNet) bridge(name string, network int) {
	n.t.Helper()
	run(n.t, "ip", "link", "add", "name", name, "type", "bridge")
	n.t.Cleanup(func() { run(n.t, "ip", "link", "del", name) })
	n.address(name, network)
}

// address assigns the first address of a network to a link of the host.
func (n *testNet) address(link string, network int) {
	n.t.Helper()
	run(n.t, "ip", "addr", "add", addr4(network, 1).String(), "dev", link)
	run(n.t, "ip", "addr", "add", addr6(network, 1).String(), "dev", link, "nodad")
	run(n.t, "ip", "link", "set", link, "up")
}

// machine creates a sandbox whose eth0 leads to the host, with a server on port
// 80.
func (n *testNet) machine(name, bridge string, network, number int) *sandbox.Sandbox {
	n.t.Helper()
	s, err := sandbox.Create("ruleset-" + name)
	require.NoError(n.t, err)
	n.t.Cleanup(func() { require.NoError(n.t, s.Destroy()) })
	inside := func(args ...string) {
		n.t.Helper()
		require.NoError(n.t, s.Do(func() error { run(n.t, "ip", args...); return nil }))
	}
	require.NoError(n.t, s.Do(func() error { noDAD(n.t); return nil }))
	link := "to-" + name
	run(n.t, "ip", "link", "add", "name", link, "type", "veth", "peer", "name", "eth0", "netns", s.Name())
	n.t.Cleanup(func() { run(n.t, "ip", "link", "del", link) })
	if bridge != "" {
		run(n.t, "ip", "link", "set", link, "master", bridge, "up")
		// If bridged packets pass through iptables, hairpin is required.
		run(n.t, "ip", "link", "set", link, "type", "bridge_slave", "hairpin", "on")
	}
	inside("addr", "add", addr4(network, number).String(), "dev", "eth0")
	inside("addr", "add", addr6(network, number).String(), "dev", "eth0", "nodad")
	inside("link", "set", "eth0", "up")
	if name != "outside" {
		inside("route", "add", "default", "via", addr4(network, 1).Addr().String())
		inside("-6", "route", "add", "default", "via", addr6(network, 1).Addr().String())
	}
	n.serve(s, name, ":80")
	return s
}

// serve responds with a name and the client's address.
func (n *testNet) serve(s *sandbox.Sandbox, name, addr string) {
	n.t.Helper()
	var l net.Listener
	listen := func() (err error) { l, err = net.Listen("tcp", addr); return err }
	if s == nil {
		require.NoError(n.t, listen())
	} else {
		require.NoError(n.t, s.Do(listen))
	}
	n.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			from := netip.MustParseAddrPort(c.RemoteAddr().String()).Addr().Unmap()
			fmt.Fprintf(c, "%s sees %s", name, from)
			c.Close()
		}
	}()
}

// ask connects from a sandbox or the host, and returns the answer or the error.
func (n *testNet) ask(from *sandbox.Sandbox, addr netip.Addr, port int, timeout time.Duration) string {
	var answer string
	ask := func() error {
		ctx, cancel := context.WithTimeout(n.t.Context(), timeout)
		defer cancel()
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", netip.AddrPortFrom(addr, uint16(port)).String())
		if err != nil {
			return err
		}
		defer c.Close()
		data, err := io.ReadAll(c)
		answer = string(data)
		return err
	}
	err := error(nil)
	if from == nil {
		err = ask()
	} else {
		err = from.Do(ask)
	}
	if err != nil {
		return err.Error()
	}
	return answer
}

func (n *testNet) wantAnswer(want string, from *sandbox.Sandbox, addr netip.Addr, port int) {
	n.t.Helper()
	require.Equal(n.t, want, n.ask(from, addr, port, 10*time.Second), "%s port %d", addr, port)
}

// wantSilence checks that no answer arrives. A lost SYN is repeated only after
// a second.
func (n *testNet) wantSilence(from *sandbox.Sandbox, addr netip.Addr, port int) {
	n.t.Helper()
	answer := n.ask(from, addr, port, 150*time.Millisecond)
	require.True(n.t, strings.HasSuffix(answer, "i/o timeout"), "%s port %d: %s", addr, port, answer)
}

// elements returns the elements of a, with port 8080 of every address of the
// host and port 8081 of one address.
func (n *testNet) elements(snat SNAT) *Elements {
	e := &Elements{Owner: owner("a")}
	for _, addr := range []func(network, n int) netip.Prefix{addr4, addr6} {
		p := addr(net0, 2)
		to := netip.AddrPortFrom(p.Addr(), 80)
		e.Masquerade = append(e.Masquerade, p)
		e.Published = append(e.Published, Published{p, snat})
		e.Open = append(e.Open, p.Addr())
		e.Mappings = append(e.Mappings, Mapping{Protocol: 6, HostPort: 8080, To: to},
			Mapping{HostIP: addr(wireNet, 1).Addr(), Protocol: 6, HostPort: 8081, To: to})
	}
	return e
}

// setBridged sets whether bridged packets pass through iptables, too. They do
// not if the kernel's module is not loaded.
func setBridged(t *testing.T, value string) {
	t.Helper()
	for _, file := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		err := os.WriteFile("/proc/sys/net/bridge/"+file, []byte(value), 0)
		if os.IsNotExist(err) {
			t.Log("no module br_netfilter: bridged packets do not pass through iptables")
			return
		}
		require.NoError(t, err)
	}
}

// eachFamily runs a test with each family and the given kinds of bridges.
func eachFamily(t *testing.T, bridged []string, test func(t *testing.T, n *testNet, addr func(network, n int) netip.Prefix)) {
	for name, addr := range map[string]func(network, n int) netip.Prefix{"ip": addr4, "ip6": addr6} {
		for _, value := range bridged {
			t.Run(name+" "+value, func(t *testing.T) {
				n := newNet(t)
				setBridged(t, value)
				test(t, n, addr)
			})
		}
	}
}

func TestHostPorts(t *testing.T) {
	eachFamily(t, []string{"0", "1"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		addr := func(network, number int) netip.Addr { return prefix(network, number).Addr() }
		require.NoError(t, n.Add(t.Context(), n.elements(SNATLocal)))
		host, outside := addr(wireNet, 1), addr(wireNet, 2)
		for _, port := range []int{8080, 8081} {
			n.wantAnswer(fmt.Sprintf("a sees %s", outside), n.outside, host, port)
			n.wantAnswer(fmt.Sprintf("a sees %s", addr(net0, 1)), n.a, host, port) // hairpin
			n.wantAnswer(fmt.Sprintf("a sees %s", addr(net0, 1)), n.b, host, port)
			n.wantAnswer(fmt.Sprintf("a sees %s", addr(net1, 2)), n.c, host, port)
		}
		n.wantAnswer(fmt.Sprintf("a sees %s", host), nil, host, 8080)
		if host.Is4() {
			n.wantAnswer(fmt.Sprintf("a sees %s", addr(net0, 1)), nil, netip.MustParseAddr("127.0.0.1"), 8080)
		}
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(net1, 2)), n.c, addr(net0, 1), 8080)
		require.Contains(t, n.ask(n.c, addr(net0, 1), 8081, time.Second), "refused", "the port of another address")

		// Ports of other hosts are not redirected.
		n.serve(n.outside, "outside", netip.AddrPortFrom(outside, 8080).String())
		n.wantAnswer(fmt.Sprintf("outside sees %s", host), n.a, outside, 8080)

		require.NoError(t, n.Del(t.Context(), n.elements(SNATLocal)))
		require.Contains(t, n.ask(n.outside, host, 8080, time.Second), "refused")
	})
}

func TestSNATModes(t *testing.T) {
	eachFamily(t, []string{"0"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		host, outside := prefix(wireNet, 1).Addr(), prefix(wireNet, 2).Addr()
		require.NoError(t, n.Add(t.Context(), n.elements(SNATAll)))
		n.wantAnswer(fmt.Sprintf("a sees %s", prefix(net0, 1).Addr()), n.outside, host, 8080)
		require.NoError(t, n.Del(t.Context(), n.elements(SNATAll)))
		require.NoError(t, n.Add(t.Context(), n.elements(SNATNone)))
		n.wantAnswer(fmt.Sprintf("a sees %s", outside), n.outside, host, 8080)
		n.wantSilence(n.a, host, 8080) // a itself must not connect
	})
}

func TestMasquerade(t *testing.T) {
	eachFamily(t, []string{"0"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		addr := func(network, number int) netip.Addr { return prefix(network, number).Addr() }
		n.wantSilence(n.a, addr(wireNet, 2), 80) // the external machine has no route back
		require.NoError(t, n.Add(t.Context(), n.elements(SNATLocal)))
		n.wantAnswer(fmt.Sprintf("outside sees %s", addr(wireNet, 1)), n.a, addr(wireNet, 2), 80)
		n.wantSilence(n.b, addr(wireNet, 2), 80)
		n.wantAnswer(fmt.Sprintf("b sees %s", addr(net0, 2)), n.a, addr(net0, 3), 80)
		n.wantAnswer(fmt.Sprintf("c sees %s", addr(net1, 1)), n.a, addr(net1, 2), 80)
	})
}

// TestWithinOneNetwork: in a network that is routed through the host, as with
// ptp, source addresses are kept.
func TestWithinOneNetwork(t *testing.T) {
	n := newNet(t)
	e := &Elements{Owner: owner("a")}
	for _, p := range []netip.Prefix{addr4(net0, 2), addr6(net0, 2)} {
		e.Masquerade = append(e.Masquerade, netip.PrefixFrom(p.Addr(), 8)) // contains c, too
	}
	require.NoError(t, n.Add(t.Context(), e))
	n.wantAnswer(fmt.Sprintf("c sees %s", addr4(net0, 2).Addr()), n.a, addr4(net1, 2).Addr(), 80)
	n.wantAnswer(fmt.Sprintf("c sees %s", addr6(net0, 2).Addr()), n.a, addr6(net1, 2).Addr(), 80)
}

// TestExempt: only packets to an exempt network keep their source address, and those of
// connections to host ports are not affected.
func TestExempt(t *testing.T) {
	eachFamily(t, []string{"0"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		addr := func(network, number int) netip.Addr { return prefix(network, number).Addr() }
		e := n.elements(SNATLocal)
		require.NoError(t, n.Add(t.Context(), e))
		n.wantAnswer(fmt.Sprintf("c sees %s", addr(net1, 1)), n.a, addr(net1, 2), 80)
		e.Exempt = []Exemption{{prefix(net0, 2), prefix(net1, 1)}}
		require.ErrorIs(t, n.Check(t.Context(), e), ErrMissing)
		require.NoError(t, n.Add(t.Context(), e))
		require.NoError(t, n.Check(t.Context(), e))
		n.wantAnswer(fmt.Sprintf("c sees %s", addr(net0, 2)), n.a, addr(net1, 2), 80)
		n.wantAnswer(fmt.Sprintf("outside sees %s", addr(wireNet, 1)), n.a, addr(wireNet, 2), 80)
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(net1, 2)), n.c, addr(wireNet, 1), 8080)
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(net0, 1)), n.a, addr(wireNet, 1), 8080) // hairpin
	})
}

func TestGuards(t *testing.T) {
	eachFamily(t, []string{"0", "1"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		addr := func(network, number int) netip.Addr { return prefix(network, number).Addr() }
		e := n.elements(SNATLocal)
		e.Guarded = []Guard{{Bridge: "br0"}}
		require.NoError(t, n.Add(t.Context(), e))
		n.wantAnswer(fmt.Sprintf("c sees %s", addr(net1, 1)), n.a, addr(net1, 2), 80)
		e.Guarded = append(e.Guarded, Guard{Bridge: "br1"})
		require.NoError(t, n.Add(t.Context(), e))
		n.wantSilence(n.a, addr(net1, 2), 80)
		n.wantSilence(n.c, addr(net0, 2), 80)
		n.wantAnswer(fmt.Sprintf("outside sees %s", addr(wireNet, 1)), n.a, addr(wireNet, 2), 80)
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(wireNet, 2)), n.outside, addr(wireNet, 1), 8080)
		// Forwarding within the bridge: a neighbour uses a host port.
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(net0, 1)), n.b, addr(wireNet, 1), 8080)
		e.Guarded[0].Isolated = true
		require.NoError(t, n.Add(t.Context(), e))
		n.wantSilence(n.b, addr(wireNet, 1), 8080)
	})
}

// TestLocalOnly: with route_localnet, other hosts could reach services on
// 127.0.0.1.
func TestLocalOnly(t *testing.T) {
	n := newNet(t)
	loopback := netip.MustParseAddr("127.0.0.1")
	n.serve(nil, "host", "127.0.0.1:7070")
	require.NoError(t, n.a.Do(func() error {
		sysctl(t, "ipv4/conf/eth0/route_localnet", "1")
		run(t, "ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
		run(t, "ip", "route", "add", "127.0.0.0/8", "via", addr4(net0, 1).Addr().String())
		return nil
	}))
	n.wantAnswer(fmt.Sprintf("host sees %s", addr4(net0, 2).Addr()), n.a, loopback, 7070)
	require.ErrorIs(t, n.CheckGuard(t.Context(), IPv4), ErrMissing)
	require.NoError(t, n.Guard(t.Context(), IPv4))
	require.NoError(t, n.CheckGuard(t.Context(), IPv4))
	n.wantSilence(n.a, loopback, 7070)
	nft(t, "flush", "chain", "ip", "allocnet_guard", "local_only")
	require.ErrorIs(t, n.CheckGuard(t.Context(), IPv4), ErrMissing)
	require.NoError(t, n.Repair(t.Context()))
	require.NoError(t, n.CheckGuard(t.Context(), IPv4))
	privhost.FlushRuleset(t)
	require.NoError(t, n.Repair(t.Context()))
	require.NoError(t, n.Guard(t.Context(), IPv4))
	require.NoError(t, n.CheckGuard(t.Context(), IPv4))
	n.wantAnswer("host sees 127.0.0.1", nil, loopback, 7070)
}

// TestHeldGuard: an owned guard survives a flush, and another connection takes
// it over.
func TestHeldGuard(t *testing.T) {
	n := newNet(t)
	n.serve(nil, "host", "127.0.0.1:7070")
	require.NoError(t, n.a.Do(func() error {
		sysctl(t, "ipv4/conf/eth0/route_localnet", "1")
		run(t, "ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
		run(t, "ip", "route", "add", "127.0.0.0/8", "via", addr4(net0, 1).Addr().String())
		return nil
	}))
	loopback := netip.MustParseAddr("127.0.0.1")
	first, err := Open()
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, first.HoldGuard(t.Context(), IPv4))
		require.NoError(t, n.HoldGuard(t.Context(), IPv4), "another connection's serves")
	}
	privhost.FlushRuleset(t)
	n.wantSilence(n.a, loopback, 7070)
	require.NoError(t, first.Close())
	require.NoError(t, n.HoldGuard(t.Context(), IPv4))
	privhost.FlushRuleset(t)
	n.wantSilence(n.a, loopback, 7070)
	n.wantAnswer("host sees 127.0.0.1", nil, loopback, 7070)
}

// TestHeldGuardThatNobodyHolds: a held guard without an owner, as from a saved
// ruleset, is not sufficient, because the next flush removes it.
func TestHeldGuardThatNobodyHolds(t *testing.T) {
	r := open(t)
	nft(t, "add", "table", "ip", names.HeldGuardTable)
	require.NoError(t, r.HoldGuard(t.Context(), IPv4))
	privhost.FlushRuleset(t)
	require.Contains(t, nft(t, "list", "table", "ip", names.HeldGuardTable), "chain local_only")

	another := openAnother(t)
	require.NoError(t, another.HoldGuard(t.Context(), IPv4))
	require.Equal(t, holdUnknown, another.holds[IPv4].Load(), "the first one's serves")
	require.Equal(t, holdOwned, r.holds[IPv4].Load())
}

// TestHoldRefused: only if the kernel refuses the flags of a table it has no tables with an owner. If it refuses
// something in the table, the error is returned.
func TestHoldRefused(t *testing.T) {
	invalid := &expr.Cmp{Register: 99}
	for name, test := range map[string]struct {
		flags uint32
		rules []rule
		want  int32
		err   error
	}{
		"owner":            {flags: ownedTable, want: holdOwned},
		"unknown flag":     {flags: 1 << 31, want: holdUnsupported},
		"invalid rule":     {flags: ownedTable, rules: []rule{newRule("invalid", invalid)}, err: unix.EINVAL},
		"flag and content": {flags: 1 << 31, rules: []rule{newRule("invalid", invalid)}, want: holdUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			guard, _ := tableNamed(names.HeldGuardTable, unix.NFPROTO_IPV4)
			guard.flags = test.flags
			guard.chains = onceChains(guard, func() []chain { return []chain{newChain("some", hook{}, test.rules...)} })
			privhost.FlushRuleset(t)
			r := open(t) // the table that it has ends with it
			is, err := r.hold(t.Context(), guard)
			require.ErrorIs(t, err, test.err)
			require.Equal(t, test.want, is)
		})
	}
	guard := guards[IPv4].held
	require.True(t, guard.isRefused(sock.Errors{{Request: guard.label, Errno: unix.EINVAL}, {Request: "chain", Errno: unix.ENOENT}}), "before 5.12")
	require.False(t, guard.isRefused(sock.Errors{{Request: "chain", Errno: unix.EINVAL}}))
}

// TestGuardWithoutPermission: a guard that may not be read is neither present
// nor held.
func TestGuardWithoutPermission(t *testing.T) {
	privhost.Require(t)
	r, err := Open()
	require.NoError(t, err)
	defer r.Close()
	var guard, hold error
	privhost.Unprivileged(t, func() { guard, hold = r.Guard(t.Context(), IPv4), r.HoldGuard(t.Context(), IPv4) })
	require.ErrorIs(t, guard, unix.EPERM)
	require.ErrorIs(t, hold, unix.EPERM)
	require.ErrorContains(t, hold, "hold the guard")
}

// TestNobodyElseIsLoopback: with route_localnet, the kernel also accepts
// packets with a loopback source, which no program of the host expects from
// other hosts.
func TestNobodyElseIsLoopback(t *testing.T) {
	n := newNet(t)
	sysctl(t, "ipv4/conf/all/rp_filter", "0")
	sysctl(t, "ipv4/conf/br0/rp_filter", "0")
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Port: 5353}))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	host := addr4(net0, 1).Addr().As4()
	receive := func() netip.Addr {
		t.Helper()
		_, from, err := unix.Recvfrom(fd, make([]byte, 1), 0)
		require.NoError(t, err)
		return netip.AddrFrom4(from.(*unix.SockaddrInet4).Addr)
	}
	loopback, a := netip.MustParseAddr("127.0.0.2"), addr4(net0, 2).Addr()
	send := func() {
		t.Helper()
		require.NoError(t, n.a.Do(func() error {
			raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			require.NoError(t, err)
			defer unix.Close(raw)
			for _, from := range []netip.Addr{loopback, a} {
				p := slices.Concat([]byte{0x45, 0, 0, 28, 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0},
					from.AsSlice(), host[:], []byte{0x30, 0x39, 0x14, 0xe9, 0, 8, 0, 0})
				require.NoError(t, unix.Sendto(raw, p, 0, &unix.SockaddrInet4{Addr: host}))
			}
			return nil
		}))
	}
	send()
	require.Equal(t, loopback, receive())
	require.Equal(t, a, receive())
	require.NoError(t, n.Guard(t.Context(), IPv4))
	send()
	require.Equal(t, a, receive(), "of the two, the first to arrive")
}

// TestForwardMark: if the host's policy drops, one rule accepts packets of open
// addresses.
func TestForwardMark(t *testing.T) {
	eachFamily(t, []string{"0"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		addr := func(network, number int) netip.Addr { return prefix(network, number).Addr() }
		iptables, hook := "iptables", "ip"
		if addr(net0, 2).Is6() {
			iptables, hook = "ip6tables", "ip6"
		}
		run(t, iptables, "-P", "FORWARD", "DROP")
		t.Cleanup(func() { run(t, iptables, "-P", "FORWARD", "ACCEPT") })
		mark := fmt.Sprintf("%#x/%#x", ForwardMark, ForwardMark)
		run(t, iptables, "-I", "FORWARD", "-m", "mark", "--mark", mark, "-j", "ACCEPT")
		e := n.elements(SNATLocal)
		e.Open = nil
		require.NoError(t, n.Add(t.Context(), e))
		n.wantSilence(n.a, addr(wireNet, 2), 80)
		require.NoError(t, n.Add(t.Context(), n.elements(SNATLocal)))
		n.wantAnswer(fmt.Sprintf("outside sees %s", addr(wireNet, 1)), n.a, addr(wireNet, 2), 80)
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(wireNet, 2)), n.outside, addr(wireNet, 1), 8080)

		// Connections to the address itself are dropped.
		run(t, "ip", "netns", "exec", n.outside.Name(), "ip", "route", "add", prefix(net0, 0).Masked().String(), "via", addr(wireNet, 1).String())
		n.wantSilence(n.outside, addr(net0, 2), 80)

		// After the forward hook no packet has the mark, and other bits are
		// kept.
		nft(t, fmt.Sprintf(`table %s watch {
			chain before { type filter hook prerouting priority 0; meta mark set meta mark | 0x42; }
			chain after { type filter hook postrouting priority 0; oifname "to-outside" meta mark & 0x42 == 0x42 counter
				meta mark & %#x != 0 counter; }
		}`, hook, ForwardMark))
		n.wantAnswer(fmt.Sprintf("outside sees %s", addr(wireNet, 1)), n.a, addr(wireNet, 2), 80)
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(wireNet, 2)), n.outside, addr(wireNet, 1), 8080)
		counted := nft(t, "list", "chain", hook, "watch", "after")
		require.Contains(t, counted, "!= 0x00000000 counter packets 0 ")
		require.NotContains(t, counted, "== 0x00000042 counter packets 0 ")
	})
}
