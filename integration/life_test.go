package integration

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestEmbeddedNetwork uses a host without any configuration.
func TestEmbeddedNetwork(t *testing.T) { each(t, engines, testEmbeddedNetwork) }

func testEmbeddedNetwork(t *testing.T, w way) {
	h := newHost(t, w.engine, func(c *configurator.Config) { c.Network = "allocnet" })
	require.NoError(t, os.RemoveAll(h.conf))
	require.NoError(t, h.Ready(h.ctx()))
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	a.IPs = []string{"10.202.7.7/16"}
	a.MAC = "02:00:00:00:07:07"
	s := h.setUp(a)
	require.Equal(t, "eth0", s.InterfaceName)
	require.Equal(t, "10.202.7.7", s.Address)
	require.NotEmpty(t, s.AddressIPv6)
	serve(t, a.Netns, "tcp", 80, "a")
	requireAnswer(t, h.outside.Path(), "tcp", hostPort(host4, 8080), "a")
	requireAnswer(t, h.outside.Path(), "tcp", hostPort(host6, 8080), "a")
	h.withoutSlots()
	leases, err := filepath.Glob(configurator.DefaultStateDir + "/*/allocnet/10.*")
	require.NoError(t, err)
	require.Len(t, leases, 1, "leases lie below the state directory")
	ns, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	defer ns.Close()
	require.NoError(t, ns.Do(func() error {
		l, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		require.Equal(t, "02:00:00:00:07:07", l.Attrs().HardwareAddr.String())
		return nil
	}))
	h.tearDown(a)
}

// TestEmbeddedNetworkDamaged: CHECK finds what other programs remove from the host's end
// of the veth, and Setup restores it in place.
func TestEmbeddedNetworkDamaged(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Network = "allocnet" })
	a, b := h.alloc("a"), h.alloc("b")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	first := h.setUp(a)
	h.setUp(b) // has the same gateways
	link := hostLink(t, first)
	for _, line := range []string{
		"ip -4 address flush dev " + link,
		"ip -4 address del 10.202.0.1/32 dev " + link,
		"ip -6 address flush dev " + link,
		"ip -6 address del fd0a:110c:2e7::1/128 dev " + link,
		"ip -4 route del " + first.Address + " dev " + link,
		"ip -6 route del " + first.AddressIPv6 + " dev " + link,
		"ip -6 route flush dev " + link,
		"ip link set " + link + " down",
	} {
		t.Run(line, func(t *testing.T) {
			fields := strings.Fields(line)
			require.NoError(t, command(fields[0], fields[1:]...))
			require.NoError(t, h.Check(h.ctx(), b))
			requireMended(h.in(t), a, true, &first)
		})
	}
	t.Run("hidden by a policy rule", func(t *testing.T) {
		for _, family := range []string{"-4", "-6"} {
			require.NoError(t, command("ip", family, "rule", "add", "pref", "0", "prohibit"))
		}
		err := h.Check(h.ctx(), a)
		for _, family := range []string{"-4", "-6"} {
			require.NoError(t, command("ip", family, "rule", "del", "pref", "0", "prohibit"))
		}
		require.NoError(t, err)
	})
	h.tearDown(a, b)
}

// TestSetupAgain sets up the same allocation twice, then again after its
// network was damaged. What other programs flush, the native engine restores
// without a new address.
func TestSetupAgain(t *testing.T) { each(t, engines, testSetupAgain) }

func testSetupAgain(t *testing.T, w way) {
	h := newHost(t, w.engine)
	h.network("net", chain("bridge", dual, w.backend)...)
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	first := h.setUp(a)
	require.Equal(t, first, h.setUp(a))

	rules := map[string][]string{
		"iptables -t nat -F CNI-HOSTPORT-DNAT":     {"exec"},
		"iptables -F CNI-FORWARD":                  {"exec"},
		"nft flush ruleset":                        {"exec", "native"},
		"nft delete table ip allocnet":             {"native"},
		"nft flush chain ip6 allocnet postrouting": {"native"},
		"iptables -F ALLOCNET-FORWARD":             {"native"},
		"iptables -F FORWARD":                      {"native"},
		"ip6tables -F FORWARD":                     {"native"},
		"ip addr flush dev br-test":                {"native"},
	}
	for line, engines := range rules {
		if !slices.Contains(engines, string(w.engine)) {
			continue
		}
		t.Run(line, func(t *testing.T) {
			h.withoutSlots() // preparing one restores what allocations share
			fields := strings.Fields(line)
			require.NoError(t, command(fields[0], fields[1:]...))
			requireMended(h.in(t), a, w.engine == configurator.EngineNative, &first)
		})
	}
	t.Run("link", func(t *testing.T) {
		l, err := netlink.LinkByName(hostLink(t, first))
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(l))
		requireMended(h.in(t), a, false, &first)
	})
	h.tearDown(a)
}

// requireMended checks that CHECK reports the damage, and that Setup repairs
// it.
func requireMended(h *host, a configurator.Allocation, inPlace bool, last **configurator.Status) {
	h.t.Helper()
	require.ErrorIs(h.t, h.Check(h.ctx(), a), configurator.ErrUnhealthy)
	s := h.setUp(a)
	if inPlace {
		require.Equal(h.t, *last, s)
	}
	*last = s
	require.NoError(h.t, h.Check(h.ctx(), a))
	serve(h.t, a.Netns, "tcp", 80, "a")
	requireAnswer(h.t, h.outside.Path(), "tcp", hostPort(host4, 8080), "a")
	requireAnswer(h.t, h.outside.Path(), "tcp", hostPort(host6, 8080), "a")
}

// hostLink returns the name of an allocation's veth on the host.
func hostLink(t *testing.T, s *configurator.Status) string {
	t.Helper()
	for _, i := range s.Interfaces {
		if l, err := netlink.LinkByName(i.Name); i.Sandbox == "" && err == nil && l.Type() == "veth" {
			return i.Name
		}
	}
	t.Fatalf("no veth among %v", s.Interfaces)
	return ""
}

func TestTwoNetworks(t *testing.T) { each(t, engines, testTwoNetworks) }

func testTwoNetworks(t *testing.T, w way) {
	h := newHost(t, w.engine, func(c *configurator.Config) { c.Networks = []string{"front", "back"} })
	h.network("front", chain("bridge", v4Only, w.backend)...)
	h.network("back", chain("ptp", families{"10.98.0.0/24", "fd00:98::/64"}, w.backend)...)
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	s := h.setUp(a)
	require.Equal(t, "eth0", s.InterfaceName)
	names := map[string]string{}
	for _, i := range s.Interfaces {
		if i.Sandbox != "" {
			names[i.Network] = i.Name
		}
	}
	require.Equal(t, map[string]string{"front": "eth0", "back": "eth1"}, names)
	serve(t, a.Netns, "tcp", 80, "a")
	requireAnswer(t, "", "tcp", hostPort(host4, 8080), "a")
	require.Equal(t, s, h.setUp(a))
	h.tearDown(a)
}

// TestSecondNetworkFails: if the second network fails, the first one is rolled
// back.
func TestSecondNetworkFails(t *testing.T) { each(t, engines, testSecondNetworkFails) }

func testSecondNetworkFails(t *testing.T, w way) {
	h := newHost(t, w.engine, func(c *configurator.Config) {
		c.Networks = []string{"front", "back"}
		c.Retry.Attempts = 1
	})
	h.network("front", chain("bridge", dual, w.backend)...)
	broken := chain("ptp", v4Only, w.backend)
	broken[1]["mtu"] = 7 // a value that the kernel refuses
	h.network("back", broken...)
	_, err := h.Setup(h.ctx(), h.alloc("a"))
	require.Error(t, err)
	require.NotErrorIs(t, err, configurator.ErrIncomplete)
}

// TestParallel: concurrent Setups on a fresh bridge succeed.
func TestParallel(t *testing.T) { eachElsewhere(t, engines, testParallel) }

func testParallel(t *testing.T, w way) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, w.engine)
			h.network("net", chain(main, dual, w.backend)...)
			var allocs []configurator.Allocation
			number := 30
			if w.engine == configurator.EngineExec {
				number = 15
			}
			for i, id := range ids("p", number) {
				a := h.alloc(id)
				a.Ports = []portmap.Port{{Value: 20000 + i, To: 80}}
				allocs = append(allocs, a)
			}
			all := func(what string, do func(configurator.Allocation) error) {
				var wg sync.WaitGroup
				for _, a := range allocs {
					wg.Go(func() {
						if err := do(a); err != nil {
							t.Errorf("%s %s: %v", what, a.ID, err)
						}
					})
				}
				wg.Wait()
			}
			all("setup", func(a configurator.Allocation) error { _, err := h.Setup(h.ctx(), a); return err })
			serve(t, allocs[number-1].Netns, "tcp", 80, "last")
			requireAnswer(t, h.outside.Path(), "tcp", hostPort(host4, 20000+number-1), "last")
			all("check", func(a configurator.Allocation) error { return h.Check(h.ctx(), a) })
			all("teardown", func(a configurator.Allocation) error { return h.Teardown(h.ctx(), a) })
		})
	}
}

func TestNetnsDeletedUnderALiveAllocation(t *testing.T) {
	eachElsewhere(t, []way{execTables, execNFT, native, nativeTables, nativeNFT}, func(t *testing.T, w way) {
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(main, func(t *testing.T) {
				h := newHost(t, w.engine)
				h.network("net", chain(main, dual, w.backend)...)
				a := h.alloc("a")
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				h.setUp(a)
				require.NoError(t, sandbox.Destroy(a.Netns))
				require.ErrorIs(t, h.Check(h.ctx(), a), configurator.ErrUnhealthy)
				h.tearDown(a)
			})
		}
	})
}

// TestDelFails makes DEL fail in every plugin of the chain in turn.
func TestDelFails(t *testing.T) {
	testhost.EachElsewhere(t, []string{"bridge", "ptp"}, func(t *testing.T, main string) {
		for _, failing := range []string{"loopback", main, "host-local", "firewall", "portmap"} {
			t.Run(main+" "+failing, func(t *testing.T) { testDelFails(t, main, failing) })
		}
	})
}

func testDelFails(t *testing.T, main, failing string) {
	dir := t.TempDir()
	var forced []configurator.Leftover
	h := newHost(t, configurator.EngineExec, func(c *configurator.Config) {
		c.PluginDirs = []string{dir, pluginDir}
		c.OnForced = func(_ string, removed []configurator.Leftover) { forced = append(forced, removed...) }
	})
	h.network("net", chain(main, dual, execTables.backend)...)
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	h.setUp(a)
	failsDel(t, dir, failing)
	h.tearDown(a)
	if failing != "loopback" {
		require.NotEmpty(t, forced, "what was forced is reported")
	}
}

// failsDel writes a plugin to a directory that fails every DEL and otherwise
// runs the real plugin.
func failsDel(t *testing.T, dir, plugin string) {
	t.Helper()
	script := fmt.Sprintf(`#!/bin/sh
if [ "$CNI_COMMAND" = DEL ]; then
	echo '{"cniVersion":"1.0.0","code":100,"msg":"made to fail: not found"}'
	exit 1
fi
exec %s/%s
`, pluginDir, plugin)
	require.NoError(t, os.WriteFile(filepath.Join(dir, plugin), []byte(script), 0o755))
}

func TestThingsGoneBeforeTeardown(t *testing.T) { each(t, engines, testThingsGoneBeforeTeardown) }

func testThingsGoneBeforeTeardown(t *testing.T, w way) {
	for name, remove := range map[string]func(h *host, plugins string) error{
		"conflist": func(h *host, _ string) error { return os.RemoveAll(h.conf) },
		"plugins":  func(_ *host, plugins string) error { return os.Remove(plugins) },
		"record":   func(*host, string) error { return os.Remove(configurator.DefaultStateDir + "/allocs/a.json") },
		"state":    func(*host, string) error { return os.RemoveAll(configurator.DefaultStateDir + "/allocs") },
	} {
		t.Run(name, func(t *testing.T) {
			plugins := filepath.Join(t.TempDir(), "plugins")
			require.NoError(t, os.Symlink(pluginDir, plugins))
			h := newHost(t, w.engine, func(c *configurator.Config) { c.PluginDirs = []string{plugins} })
			h.network("net", chain("bridge", dual, w.backend)...)
			a := h.alloc("a")
			a.Ports = []portmap.Port{{Value: 8080, To: 80}}
			h.setUp(a)
			h.withoutSlots()
			require.NoError(t, remove(h, plugins))
			require.NoError(t, h.Teardown(h.ctx(), a))
			require.NoError(t, os.MkdirAll(configurator.DefaultStateDir+"/allocs", 0o700))
		})
	}
}

// TestForwardPolicyDrop: published ports work on a host whose FORWARD policy
// drops, as Docker and hardened hosts configure it. Other forwarded packets are
// still dropped.
func TestForwardPolicyDrop(t *testing.T) { each(t, engines, testForwardPolicyDrop) }

func testForwardPolicyDrop(t *testing.T, w way) {
	h := newHost(t, w.engine, func(c *configurator.Config) { c.Network = "allocnet" })
	for _, program := range []string{"iptables", "ip6tables"} {
		require.NoError(t, command(program, "-P", "FORWARD", "DROP"))
		t.Cleanup(func() { require.NoError(t, command(program, "-P", "FORWARD", "ACCEPT")) })
	}
	a, b := h.alloc("a"), h.alloc("b")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	s := h.setUp(a)
	h.setUp(b)
	serve(t, a.Netns, "tcp", 80, "a")
	for _, address := range []netip.Prefix{host4, host6} {
		for _, from := range []string{h.outside.Path(), "", a.Netns, b.Netns} {
			requireAnswer(t, from, "tcp", hostPort(address, 8080), "a")
		}
	}
	requireAnswer(t, "", "tcp", "127.0.0.1:8080", "a")
	for _, address := range []string{s.Address, s.AddressIPv6} {
		for _, from := range []string{"", b.Netns} {
			requireAnswer(t, from, "tcp", net.JoinHostPort(address, "80"), "a")
		}
	}
	require.NoError(t, h.outside.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		_, subnet, err := net.ParseCIDR("10.202.0.0/16")
		require.NoError(t, err)
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: subnet, Gw: host4.Addr().AsSlice()})
	}))
	requireSilence(t, h.outside.Path(), "tcp", s.Address+":80")

	// CHECK reports a flush by another tool, and one Setup repairs it. If only
	// the chain of published ports is gone, the allocation keeps its address.
	chain, rest := "ALLOCNET-ADMIN", "CNI-FORWARD"
	if w == native {
		chain, rest = "ALLOCNET-FORWARD", "FORWARD"
	}
	require.NoError(t, command("iptables", "-F", chain))
	require.ErrorIs(t, h.Check(h.ctx(), a), configurator.ErrUnhealthy)
	require.Equal(t, s, h.setUp(a))
	requireAnswer(t, h.outside.Path(), "tcp", hostPort(host4, 8080), "a")
	require.NoError(t, command("iptables", "-F", chain))
	require.NoError(t, command("iptables", "-F", rest))
	h.setUp(a)
	requireAnswer(t, h.outside.Path(), "tcp", hostPort(host4, 8080), "a")
	h.tearDown(a, b)
}
