package configurator

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// hostBridge makes the bridge br0 of the host, with an uplink.
func hostBridge(t *testing.T) {
	t.Helper()
	ip(t, "link add br0 type bridge")
	ip(t, "link add up0 address 52:54:00:00:00:07 type veth peer name lan0")
	ip(t, "link set up0 master br0 up")
	ip(t, "link set lan0 up")
	ip(t, "link set br0 up")
	t.Cleanup(func() {
		ip(t, "link del up0")
		if link, err := netlink.LinkByName("br0"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
	})
}

func linkOf(t *testing.T, name string) *netlink.LinkAttrs {
	t.Helper()
	link, err := netlink.LinkByName(name)
	require.NoError(t, err)
	return link.Attrs()
}

// TestBridgeOfTheHost: a bridge that no allocation has created is neither created again nor brought up, and keeps its
// MAC. What happens to it is reported, and the port of the allocation is attached again.
func TestBridgeOfTheHost(t *testing.T) {
	for name, gateway := range map[string]string{"layer 2": "", "gateway": `"isGateway":true,`} {
		t.Run(name, func(t *testing.T) {
			h, leases := nativeHost(t, "1.0.0")
			h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"br0",`+gateway+
				`"ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.77.0.0/24"}}]}`)
			hostBridge(t)
			before := linkOf(t, "br0")
			a := h.alloc("a")
			a.Wait = true
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.NoError(t, h.Check(t.Context(), a))
			require.Equal(t, before.HardwareAddr, linkOf(t, "br0").HardwareAddr)
			require.Equal(t, byte(0xfe), h.linkOf("a").Attrs().HardwareAddr[0], "above that of every uplink")

			requireReported := func(text string) {
				t.Helper()
				require.ErrorContains(t, h.Check(t.Context(), a), text)
				_, err := h.Repair(t.Context())
				require.ErrorContains(t, err, "no allocation has created it")
			}
			ip(t, "link set br0 down")
			requireReported(`"br0" is down`)
			require.Zero(t, linkOf(t, "br0").Flags&1, "as its owner wants it")
			ip(t, "link set br0 up")
			require.NoError(t, h.Check(t.Context(), a))

			ip(t, "link del br0")
			requireReported(`br0`)
			_, err = netlink.LinkByName("br0")
			require.ErrorAs(t, err, &netlink.LinkNotFoundError{})
			ip(t, "link add br0 type bridge")
			ip(t, "link set up0 master br0")
			ip(t, "link set br0 up")
			_, err = h.Repair(t.Context())
			require.NoError(t, err)
			require.NoError(t, h.Check(t.Context(), a))
			require.Equal(t, linkOf(t, "br0").Index, h.linkOf("a").Attrs().MasterIndex)

			ip(t, "link set br0 name br1")
			requireReported(`br0`)
			_, err = netlink.LinkByName("br0")
			require.ErrorAs(t, err, &netlink.LinkNotFoundError{})
			ip(t, "link set br1 name br0")
			require.NoError(t, h.Check(t.Context(), a))
			mac := linkOf(t, "br0").HardwareAddr
			require.NoError(t, h.Teardown(t.Context(), a))
			require.Equal(t, mac, linkOf(t, "br0").HardwareAddr)
		})
	}
}

// TestSettingsOfTheHostsBridge: a Setup on a bridge of the host leaves its MTU and its promiscuous mode, and a repair leaves one
// that is down alone. An address of the host stays, unless forceAddress is set.
func TestSettingsOfTheHostsBridge(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	network := func(more string) {
		h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"br0","isGateway":true,`+more+
			`"ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.77.0.0/24"}}]}`)
	}
	network("")
	hostBridge(t)
	ip(t, "link set br0 mtu 9000 promisc on")
	a := h.alloc("a")
	a.Wait = true
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	is := linkOf(t, "br0")
	require.Equal(t, 9000, is.MTU)
	require.Equal(t, 1, is.Promisc)

	ip(t, "link set "+h.linkOf("a").Attrs().Name+" down")
	_, _ = h.Repair(t.Context()) // CHECK tells of the promiscuous mode
	require.NotZero(t, h.linkOf("a").Attrs().Flags&net.FlagUp, "the port of the allocation is restored all the same")
	require.Equal(t, 1, linkOf(t, "br0").Promisc)

	ip(t, "link set br0 down promisc off")
	ip(t, "addr flush dev br0 scope global")
	_, err = h.Repair(t.Context())
	require.ErrorContains(t, err, `bridge "br0" is down, and no allocation has created it`)
	require.NotContains(t, output(t, "ip addr show dev br0"), "10.77.0.1")
	ip(t, "link set br0 up")
	_, err = h.Repair(t.Context())
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), a))
	require.NoError(t, h.Teardown(t.Context(), a))

	// The gateway's address with another prefix length.
	ip(t, "addr flush dev br0 scope global")
	ip(t, "addr add 10.77.0.1/25 dev br0")
	before := output(t, "ip -4 addr show dev br0")
	_, err = h.Setup(t.Context(), a)
	require.Error(t, err)
	require.Equal(t, before, output(t, "ip -4 addr show dev br0"))
	network(`"forceAddress":true,`)
	ip(t, "addr flush dev br0 scope global")
	ip(t, "addr add 10.88.0.1/24 dev br0")
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NotContains(t, output(t, "ip -4 addr show dev br0"), "10.88.0.1")
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestCreatedBridgeThatAnotherReplaces: once another program has made the bridge again, it is that program's.
func TestCreatedBridgeThatAnotherReplaces(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	ip(t, "link del brtest")
	_, err = h.Repair(t.Context())
	require.NoError(t, err, "it was created by an ADD")
	require.NoError(t, h.Check(t.Context(), a))
	ip(t, "link set brtest down")
	_, err = h.Repair(t.Context())
	require.NoError(t, err)

	ip(t, "link del brtest")
	ip(t, "link add brtest type bridge")
	_, err = h.Repair(t.Context())
	require.ErrorContains(t, err, `bridge "brtest" is down, and no allocation has created it: ip link set brtest up`)
	ip(t, "link set brtest up")
	_, err = h.Repair(t.Context())
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), a))
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestRoutersOfALAN: a container on a bridge of the host takes neither an address nor a route from the router of the LAN:
// the source guard would drop what it sends from it.
func TestRoutersOfALAN(t *testing.T) {
	for name, addresses := range map[string]string{
		"IPv4": `"subnet":"10.77.0.0/24"`, "both": `"ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]]`,
	} {
		t.Run(name, func(t *testing.T) {
			h, leases := nativeHost(t, "1.0.0")
			h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"br0","ipam":{"type":"host-local","dataDir":"`+leases+`",`+addresses+`}}]}`)
			r := newRouter(t)
			ip(t, "link add br0 type bridge")
			t.Cleanup(func() { ip(t, "link del br0") })
			ip(t, "link set uplink master br0")
			ip(t, "link set br0 up")
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			ns, err := sandbox.Open(a.Netns)
			require.NoError(t, err)
			defer func() { require.NoError(t, ns.Close()) }()
			inside := func(args ...string) (text string) {
				require.NoError(t, ns.Do(func() error {
					out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
					text = string(out)
					return err
				}))
				return text
			}
			believes := func() bool {
				return strings.Contains(inside("ip", "-6", "addr", "show", "dev", "eth0"), "2001:db8:66:")
			}
			// The bridge takes an address from an advertisement, which the container's end receives as well.
			requireAdvertised := func() {
				t.Helper()
				ip(t, "-6 addr flush dev br0 scope global")
				require.Eventually(t, func() bool {
					out, err := exec.Command("ip", "-6", "addr", "show", "dev", "br0").CombinedOutput()
					return r.advertise() == nil && err == nil && strings.Contains(string(out), "2001:db8:66:")
				}, 10*time.Second, 10*time.Millisecond)
			}
			requireAdvertised()
			require.False(t, believes())
			require.NoError(t, h.Check(t.Context(), a))

			inside("sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra=1")
			require.ErrorContains(t, h.Check(t.Context(), a), "accepts router advertisements")
			require.Eventually(t, func() bool { return r.advertise() == nil && believes() }, 10*time.Second, 10*time.Millisecond)
			_, err = h.Repair(t.Context())
			require.NoError(t, err)
			require.NoError(t, h.Check(t.Context(), a))
			inside("ip", "-6", "addr", "flush", "dev", "eth0", "to", "2001:db8:66::/64")
			requireAdvertised()
			require.False(t, believes())
			require.NoError(t, h.Teardown(t.Context(), a))
		})
	}
}

// TestAcceptRA: with acceptRA, a container on a bridge of the host has an address and a route of the LAN's router beside the
// address of IPAM, and the router reaches it there.
func TestAcceptRA(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	network := func(more string) string {
		return `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"br0","acceptRA":true,"ipam":{"type":"host-local","dataDir":"` +
			leases + `","subnet":"10.77.0.0/24"}}` + more + `]}`
	}
	h.file("net.conflist", network(""))
	r := newRouter(t)
	ip(t, "link add br0 type bridge")
	t.Cleanup(func() { ip(t, "link del br0") })
	ip(t, "link set uplink master br0")
	ip(t, "link set br0 up")
	r.inside("ip", "addr", "add", "2001:db8:66::1/64", "dev", "lan", "nodad")
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	ns, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	defer func() { require.NoError(t, ns.Close()) }()
	var address netip.Prefix
	autoconfigured := func() bool {
		address = netip.Prefix{}
		require.NoError(t, ns.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			require.NoError(t, err)
			all, err := netlink.AddrList(link, netlink.FAMILY_V6)
			for _, one := range all {
				if p := netip.MustParsePrefix(one.IPNet.String()); one.Flags&unix.IFA_F_TENTATIVE == 0 && netip.MustParsePrefix("2001:db8:66::/64").Contains(p.Addr()) {
					address = p
				}
			}
			return err
		}))
		return address.IsValid()
	}
	require.Eventually(t, func() bool { return r.advertise() == nil && autoconfigured() }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, h.Check(t.Context(), a))
	requireConnected := func() {
		t.Helper()
		var listener net.Listener
		require.NoError(t, ns.Do(func() (err error) {
			listener, err = net.Listen("tcp", net.JoinHostPort(address.Addr().String(), "80"))
			return err
		}))
		defer listener.Close()
		require.NoError(t, r.ns.Do(func() error {
			c, err := net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second)
			if err == nil {
				err = c.Close()
			}
			return err
		}))
	}
	requireConnected()

	for _, sysctl := range []string{"disable_ipv6=1", "accept_ra=0", "addr_gen_mode=1", "autoconf=0", "use_tempaddr=2"} {
		require.NoError(t, ns.Do(func() error {
			name, value, _ := strings.Cut(sysctl, "=")
			return rtnl.SetSysctl("net/ipv6/conf/eth0/"+name, value)
		}))
		require.ErrorContains(t, h.Check(t.Context(), a), "takes no addresses from router advertisements", sysctl)
		_, err = h.Repair(t.Context())
		require.NoError(t, err)
		require.NoError(t, h.Check(t.Context(), a), sysctl)
	}
	privhost.FlushRuleset(t)
	_, err = h.Repair(t.Context())
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), a))
	require.Eventually(t, func() bool { return r.advertise() == nil && autoconfigured() }, 10*time.Second, 10*time.Millisecond)
	requireConnected()
	require.NoError(t, h.Teardown(t.Context(), a))

	h.file("net.conflist", network(`,{"type":"policy"}`))
	const reason = `"acceptRA" and the plugin "policy" exclude each other`
	_, err = h.Setup(t.Context(), h.alloc("b"))
	require.ErrorContains(t, err, reason)
	require.ErrorContains(t, h.ReadyFor(t.Context(), Allocation{Networks: []string{"net"}}), reason)
}
