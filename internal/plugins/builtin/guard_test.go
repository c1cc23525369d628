package builtin_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func guardedLinks(name string) object {
	return object{"cniVersion": "1.0.0", "name": name, "type": "ptp", "ipMasq": true, "ipam": hostLocal("10.9.0.0/24", "fd00:9::/64")}
}

// sender is a sandbox that sends from its own addresses and from those of others.
type sender struct {
	t *testing.T
	*sandbox.Sandbox
	own []netip.Addr // of eth0: IPv4, IPv6, link-local
}

// newSender gives the interface of a sandbox the addresses of others, too.
func newSender(t *testing.T, a attachment, others ...string) *sender {
	t.Helper()
	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	from := &sender{t: t, Sandbox: s}
	settled := func() (settled bool) {
		require.NoError(t, s.Do(func() error {
			list := output(t, "ip", "-6", "addr", "show", "dev", "eth0")
			settled = strings.Contains(list, "scope link") && !strings.Contains(list, "tentative")
			return nil
		}))
		return settled
	}
	require.Eventually(t, settled, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, s.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		require.NoError(t, err)
		list, err := link.Addrs()
		require.NoError(t, err)
		for _, one := range list {
			addr := netip.MustParsePrefix(one.String()).Addr()
			if addr.IsLinkLocalUnicast() {
				addr = addr.WithZone("eth0")
			}
			from.own = append(from.own, addr)
		}
		for _, other := range others {
			output(t, "ip", "addr", "add", other, "dev", "eth0", "nodad")
		}
		return nil
	}))
	require.Len(t, from.own, 3)
	return from
}

// send sends a datagram with the source as its text.
func (s *sender) send(from, to netip.Addr) {
	s.t.Helper()
	require.NoError(s.t, s.Do(func() error {
		conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 7070)))
		require.NoError(s.t, err)
		defer conn.Close()
		_, err = conn.Write([]byte(from.WithZone("").String()))
		return err
	}))
}

// listener receives datagrams.
func listener(t *testing.T) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: 7070})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// received returns the texts of datagrams up to the last one.
func received(t *testing.T, conn *net.UDPConn, last netip.Addr) (texts []string) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	buf := make([]byte, 100)
	for len(texts) == 0 || texts[len(texts)-1] != last.String() {
		n, err := conn.Read(buf)
		require.NoError(t, err, texts)
		texts = append(texts, string(buf[:n]))
	}
	return texts
}

// TestSourceGuard: packets of a container behind a ptp arrive only if their source is its
// own, at the host and at other containers. CHECK reports a missing part of the guard, and
// Repair restores it.
func TestSourceGuard(t *testing.T) {
	_, native := runners(t)
	privhost.Require(t, "ip6tables", "nft")
	defer os.RemoveAll("/var/lib/cni/networks")
	for _, conf := range []string{"all", "default"} {
		output(t, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/conf/"+conf+"/rp_filter")
	}
	host := listener(t)
	neighbour, victim, guarded, open := sandboxed(t, "neighbour"), sandboxed(t, "victim"), sandboxed(t, "guarded"), sandboxed(t, "open")
	conf := guardedLinks("net")
	unguarded := with(conf, "sourceGuard", false)
	results := map[attachment]object{}
	for _, a := range []attachment{neighbour, victim, guarded} {
		results[a] = native.add(a, conf)
	}
	near, claimed := newSender(t, neighbour), newSender(t, victim).own
	var inside *net.UDPConn
	require.NoError(t, near.Do(func() error { inside = listener(t); return nil }))
	others := []string{"192.0.2.9/32", claimed[0].String() + "/32", "2001:db8::9/128", claimed[1].String() + "/128"}
	gateways := map[bool]netip.Addr{true: netip.MustParseAddr("10.9.0.1"), false: netip.MustParseAddr("fd00:9::1")}
	from := newSender(t, guarded, others...)

	// exchange sends from each address of others, and then from the sandbox's own one of the family.
	exchange := func(from *sender, to *net.UDPConn, at map[bool]netip.Addr) (texts []string) {
		t.Helper()
		for i, own := range from.own[:2] {
			for _, other := range others {
				if addr := netip.MustParsePrefix(other).Addr(); addr.Is4() == own.Is4() {
					from.send(addr, at[own.Is4()])
				}
			}
			from.send(own, at[own.Is4()])
			texts = append(texts, received(t, to, from.own[i])...)
		}
		return texts
	}
	only := []string{from.own[0].String(), from.own[1].String()}
	beside := map[bool]netip.Addr{true: near.own[0], false: near.own[1]}
	require.Equal(t, only, exchange(from, host, gateways))
	require.Equal(t, only, exchange(from, inside, beside))

	for _, family := range []string{"ip", "ip6"} {
		require.Regexp(t, `counter packets [1-9]`, output(t, "nft", "list", "chain", family, "allocnet_guard", "own_sources"))
	}

	// Link-local addresses are the container's own, too.
	link := linkLocalOf(t, results[guarded]["interfaces"].([]any)[0].(object)["name"].(string))
	from.send(from.own[2], link.WithZone("eth0"))
	require.Equal(t, []string{from.own[2].WithZone("").String()}, received(t, host, from.own[2].WithZone("")))

	check := func() error {
		_, err := native.run("CHECK", guarded, withResult(t, conf, results[guarded]))
		return err
	}
	require.NoError(t, check())
	veth := results[guarded]["interfaces"].([]any)[0].(object)["name"].(string)
	for what, finding := range map[string]string{
		"nft delete table ip allocnet_guard":             "table ip allocnet_guard",
		"nft delete table ip6 allocnet_guard":            "table ip6 allocnet_guard",
		"nft flush chain ip6 allocnet_guard own_sources": "own_sources: rules differ",
		"ip link set " + veth + " group default":         "is in group 0",
	} {
		words := strings.Fields(what)
		output(t, words[0], words[1:]...)
		require.Greater(t, len(exchange(from, host, gateways)), len(only), what)
		require.ErrorContains(t, check(), finding)
		_, err := native.run(sdk.Repair, guarded, withResult(t, conf, results[guarded]))
		require.NoError(t, err, what)
		require.NoError(t, check(), what)
		require.Equal(t, only, exchange(from, host, gateways), what)
	}

	for _, leaving := range []string{"0x646f6f6d", "0x646f6f6e"} {
		output(t, "ip", "link", "set", veth, "group", leaving)
		require.Equal(t, only, exchange(from, host, gateways), "while the link is being removed")
	}

	results[open] = native.add(open, unguarded)
	free := newSender(t, open, "192.0.2.9/32", "2001:db8::9/128")
	others = []string{"192.0.2.9/32", "2001:db8::9/128"}
	require.Equal(t, []string{"192.0.2.9", free.own[0].String(), "2001:db8::9", free.own[1].String()}, exchange(free, host, gateways))
	for a, result := range results {
		_, err := native.run("DEL", a, withResult(t, conf, result))
		require.NoError(t, err)
	}
}

// linkLocalOf returns the link-local address of a link.
func linkLocalOf(t *testing.T, name string) netip.Addr {
	t.Helper()
	link, err := net.InterfaceByName(name)
	require.NoError(t, err)
	list, err := link.Addrs()
	require.NoError(t, err)
	for _, one := range list {
		if addr := netip.MustParsePrefix(one.String()).Addr(); addr.Is6() && addr.IsLinkLocalUnicast() {
			return addr
		}
	}
	require.Fail(t, "no link-local address", name)
	return netip.Addr{}
}

// TestLinkRoutesLoopback: the plugin ptp makes the link with route_localnet for the plugins after
// it, which need not set it then, if it has added the guard.
func TestLinkRoutesLoopback(t *testing.T) {
	_, native := runners(t)
	for i, guarded := range []bool{true, false} {
		a := sandboxed(t, fmt.Sprint("loopback", i))
		conf := with(guardedLinks(fmt.Sprint("loopback", i)), "sourceGuard", guarded)
		text, err := json.Marshal(conf)
		require.NoError(t, err)
		_, args := sdk.CmdArgsOf([]string{"CNI_CONTAINERID=" + a.id, "CNI_NETNS=" + a.netns, "CNI_IFNAME=" + a.ifName, "CNI_PATH=" + pluginDir}, text)
		args.Additions = &sdk.Additions{RoutesLoopback: true}
		r, err := native.exec.Run(t.Context(), "ptp", "ADD", args)
		require.NoError(t, err)
		link := r.Interfaces[0].Name
		value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link + "/route_localnet")
		require.NoError(t, err)
		if guarded {
			require.NoError(t, native.exec.Host.Rules.CheckGuard(t.Context(), ruleset.IPv4))
			require.Equal(t, link, args.Additions.LoopbackRouted)
			require.Equal(t, "1\n", string(value))
		} else {
			require.Empty(t, args.Additions.LoopbackRouted)
			require.Equal(t, "0\n", string(value))
		}
		_, err = native.run("DEL", a, conf)
		require.NoError(t, err)
	}
}
