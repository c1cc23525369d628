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
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestEmbeddedNetwork uses a host without any configuration.
func TestEmbeddedNetwork(t *testing.T) { testbed.Each(t, testbed.Engines, testEmbeddedNetwork) }

func testEmbeddedNetwork(t *testing.T, w testbed.Way) {
	h := newHost(t, w.Engine, func(c *configurator.Config) { c.Network = "allocnet" })
	require.NoError(t, os.RemoveAll(h.ConfDir))
	require.NoError(t, h.Ready(h.Context()))
	a := h.Alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	a.IPs = []string{"10.202.7.7/16"}
	a.MAC = "02:00:00:00:07:07"
	s := h.SetUp(a)
	require.Equal(t, "eth0", s.InterfaceName)
	require.Equal(t, "10.202.7.7", s.Address)
	require.NotEmpty(t, s.AddressIPv6)
	testbed.Serve(t, a.Netns, "tcp", 80, "a")
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, 8080), "a")
	h.WithoutSlots()
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
	h.TearDown(a)
}

// TestEmbeddedNetworkDamaged: CHECK finds what other programs remove from the host's end
// of the veth, and Setup restores it in place.
func TestEmbeddedNetworkDamaged(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Network = "allocnet" })
	a, b := h.Alloc("a"), h.Alloc("b")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	first := h.SetUp(a)
	h.SetUp(b) // has the same gateways
	link := testbed.HostLink(t, first)
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
			require.NoError(t, testbed.Command(fields[0], fields[1:]...))
			require.NoError(t, h.Check(h.Context(), b))
			requireMended(h.in(t), a, true, &first)
		})
	}
	t.Run("hidden by a policy rule", func(t *testing.T) {
		for _, family := range []string{"-4", "-6"} {
			require.NoError(t, testbed.Command("ip", family, "rule", "add", "pref", "0", "prohibit"))
		}
		err := h.Check(h.Context(), a)
		for _, family := range []string{"-4", "-6"} {
			require.NoError(t, testbed.Command("ip", family, "rule", "del", "pref", "0", "prohibit"))
		}
		require.NoError(t, err)
	})
	h.TearDown(a, b)
}

// TestSetupAgain sets up the same allocation twice, then again after its
// network was damaged. What other programs flush, the native engine restores
// without a new address.
func TestSetupAgain(t *testing.T) { testbed.EachElsewhere(t, testbed.Engines, testSetupAgain) }

func testSetupAgain(t *testing.T, w testbed.Way) {
	h := newHost(t, w.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, w.Backend)...)
	a := h.Alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	first := h.SetUp(a)
	require.Equal(t, first, h.SetUp(a))

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
		if !slices.Contains(engines, string(w.Engine)) {
			continue
		}
		t.Run(line, func(t *testing.T) {
			h.WithoutSlots() // preparing one restores what allocations share
			fields := strings.Fields(line)
			require.NoError(t, testbed.Command(fields[0], fields[1:]...))
			requireMended(h.in(t), a, w.Engine == configurator.EngineNative, &first)
		})
	}
	t.Run("link", func(t *testing.T) {
		l, err := netlink.LinkByName(testbed.HostLink(t, first))
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(l))
		requireMended(h.in(t), a, false, &first)
	})
	h.TearDown(a)
}

// requireMended checks that CHECK reports the damage, and that Setup repairs
// it.
func requireMended(h *host, a configurator.Allocation, inPlace bool, last **configurator.Status) {
	h.T.Helper()
	require.ErrorIs(h.T, h.Check(h.Context(), a), configurator.ErrUnhealthy)
	s := h.SetUp(a)
	if inPlace {
		require.Equal(h.T, *last, s)
	}
	*last = s
	require.NoError(h.T, h.Check(h.Context(), a))
	testbed.Serve(h.T, a.Netns, "tcp", 80, "a")
	testbed.RequireAnswer(h.T, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
	testbed.RequireAnswer(h.T, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, 8080), "a")
}

func TestTwoNetworks(t *testing.T) { testbed.EachElsewhere(t, testbed.Engines, testTwoNetworks) }

func testTwoNetworks(t *testing.T, w testbed.Way) {
	h := newHost(t, w.Engine, func(c *configurator.Config) { c.Networks = []string{"front", "back"} })
	h.Network("front", testbed.Chain("bridge", testbed.V4Only, w.Backend)...)
	h.Network("back", testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, w.Backend)...)
	a := h.Alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	s := h.SetUp(a)
	require.Equal(t, "eth0", s.InterfaceName)
	names := map[string]string{}
	for _, i := range s.Interfaces {
		if i.Sandbox != "" {
			names[i.Network] = i.Name
		}
	}
	require.Equal(t, map[string]string{"front": "eth0", "back": "eth1"}, names)
	testbed.Serve(t, a.Netns, "tcp", 80, "a")
	testbed.RequireAnswer(t, "", "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
	require.Equal(t, s, h.SetUp(a))
	h.TearDown(a)
}

// TestSecondNetworkFails: if the second network fails, the first one is rolled
// back.
func TestSecondNetworkFails(t *testing.T) { testbed.Each(t, testbed.Engines, testSecondNetworkFails) }

func testSecondNetworkFails(t *testing.T, w testbed.Way) {
	h := newHost(t, w.Engine, func(c *configurator.Config) {
		c.Networks = []string{"front", "back"}
		c.Retry.Attempts = 1
	})
	h.Network("front", testbed.Chain("bridge", testbed.Dual, w.Backend)...)
	broken := testbed.Chain("ptp", testbed.V4Only, w.Backend)
	broken[1]["mtu"] = 7 // a value that the kernel refuses
	h.Network("back", broken...)
	_, err := h.Setup(h.Context(), h.Alloc("a"))
	require.Error(t, err)
	require.NotErrorIs(t, err, configurator.ErrIncomplete)
}

// TestParallel: concurrent Setups on a fresh bridge succeed.
func TestParallel(t *testing.T) { testbed.EachElsewhere(t, testbed.Engines, testParallel) }

func testParallel(t *testing.T, w testbed.Way) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, w.Engine)
			h.Network("net", testbed.Chain(main, testbed.Dual, w.Backend)...)
			var allocs []configurator.Allocation
			number := 30
			if w.Engine == configurator.EngineExec {
				number = 15
			}
			for i, id := range testbed.IDs("p", number) {
				a := h.Alloc(id)
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
			all("setup", func(a configurator.Allocation) error { _, err := h.Setup(h.Context(), a); return err })
			testbed.Serve(t, allocs[number-1].Netns, "tcp", 80, "last")
			testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 20000+number-1), "last")
			all("check", func(a configurator.Allocation) error { return h.Check(h.Context(), a) })
			all("teardown", func(a configurator.Allocation) error { return h.Teardown(h.Context(), a) })
		})
	}
}

func TestNetnsDeletedUnderALiveAllocation(t *testing.T) {
	testbed.EachElsewhere(t, []testbed.Way{testbed.ExecTables, testbed.ExecNFT, testbed.Native, testbed.NativeTables, testbed.NativeNFT}, func(t *testing.T, w testbed.Way) {
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(main, func(t *testing.T) {
				h := newHost(t, w.Engine)
				h.Network("net", testbed.Chain(main, testbed.Dual, w.Backend)...)
				a := h.Alloc("a")
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				h.SetUp(a)
				require.NoError(t, sandbox.Destroy(a.Netns))
				require.ErrorIs(t, h.Check(h.Context(), a), configurator.ErrUnhealthy)
				h.TearDown(a)
			})
		}
	})
}

// TestDelFails makes DEL fail in every plugin of the chain in turn.
func TestDelFails(t *testing.T) {
	testhost.EachElsewhere(t, []string{"bridge", "ptp"}, func(t *testing.T, main string) {
		for _, failing := range []string{"loopback", main, "host-local", "firewall", "portmap"} {
			t.Run(main+" "+failing, func(t *testing.T) {
				if failing != "host-local" && failing != "portmap" { // portmap is the first to be removed: everything is left
					skip.InShort(t)
				}
				testDelFails(t, main, failing)
			})
		}
	})
}

func testDelFails(t *testing.T, main, failing string) {
	dir := t.TempDir()
	var forced []configurator.Leftover
	h := newHost(t, configurator.EngineExec, func(c *configurator.Config) {
		c.PluginDirs = []string{dir, testbed.PluginDir}
		c.OnForced = func(_ string, removed []configurator.Leftover) { forced = append(forced, removed...) }
	})
	h.Network("net", testbed.Chain(main, testbed.Dual, testbed.ExecTables.Backend)...)
	a := h.Alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	h.SetUp(a)
	failsDel(t, dir, testbed.PluginDir, failing)
	h.TearDown(a)
	if failing != "loopback" {
		require.NotEmpty(t, forced, "what was forced is reported")
	}
}

// TestDelOfDropInsFails: allocnet's own plugins as binaries write the owner that Teardown looks for, also with
// another state directory than the default one.
func TestDelOfDropInsFails(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		for _, failing := range []string{main, "portmap"} {
			t.Run(main+" "+failing, func(t *testing.T) {
				dir, dropIns := t.TempDir(), testbed.DropIns(t)
				h := newHost(t, configurator.EngineExec, func(c *configurator.Config) {
					c.PluginDirs, c.StateDir = []string{dir, dropIns}, filepath.Join(t.TempDir(), "state")
				})
				h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
				a := h.Alloc("a")
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				h.SetUp(a)
				require.NoError(t, h.Check(h.Context(), a))
				state, err := statedir.Resolve(h.Config.StateDir)
				require.NoError(t, err)
				_, err = netlink.LinkByName(names.Owner{Network: "net", ID: a.ID, IfName: "eth0", Instance: state.Instance}.Veth())
				require.NoError(t, err)
				failsDel(t, dir, dropIns, failing)
				h.TearDown(a)
				require.NoError(t, os.RemoveAll(filepath.Join(configurator.DefaultStateDir, "switches.json"))) // gc sets them back
			})
		}
	}
}

// failsDel writes a plugin to a directory that fails every DEL and otherwise
// runs the real plugin.
func failsDel(t *testing.T, dir, real, plugin string) {
	t.Helper()
	script := fmt.Sprintf(`#!/bin/sh
if [ "$CNI_COMMAND" = DEL ]; then
	echo '{"cniVersion":"1.0.0","code":100,"msg":"made to fail: not found"}'
	exit 1
fi
exec %s/%s
`, real, plugin)
	require.NoError(t, os.WriteFile(filepath.Join(dir, plugin), []byte(script), 0o755))
}

func TestThingsGoneBeforeTeardown(t *testing.T) {
	testbed.EachElsewhere(t, testbed.Engines, testThingsGoneBeforeTeardown)
}

func testThingsGoneBeforeTeardown(t *testing.T, w testbed.Way) {
	for name, remove := range map[string]func(h *host, plugins string) error{
		"conflist": func(h *host, _ string) error { return os.RemoveAll(h.ConfDir) },
		"plugins":  func(_ *host, plugins string) error { return os.Remove(plugins) },
		"record":   func(*host, string) error { return os.Remove(configurator.DefaultStateDir + "/allocs/a.json") },
		"state":    func(*host, string) error { return os.RemoveAll(configurator.DefaultStateDir + "/allocs") },
	} {
		t.Run(name, func(t *testing.T) {
			plugins := filepath.Join(t.TempDir(), "plugins")
			require.NoError(t, os.Symlink(testbed.PluginDir, plugins))
			h := newHost(t, w.Engine, func(c *configurator.Config) { c.PluginDirs = []string{plugins} })
			h.Network("net", testbed.Chain("bridge", testbed.Dual, w.Backend)...)
			a := h.Alloc("a")
			a.Ports = []portmap.Port{{Value: 8080, To: 80}}
			h.SetUp(a)
			h.WithoutSlots()
			require.NoError(t, remove(h, plugins))
			require.NoError(t, h.Teardown(h.Context(), a))
			require.NoError(t, os.MkdirAll(configurator.DefaultStateDir+"/allocs", 0o700))
		})
	}
}

// TestForwardPolicyDrop: published ports work on a host whose FORWARD policy
// drops, as Docker and hardened hosts configure it. Other forwarded packets are
// still dropped.
func TestForwardPolicyDrop(t *testing.T) {
	testbed.EachElsewhere(t, testbed.Engines, testForwardPolicyDrop)
}

func testForwardPolicyDrop(t *testing.T, w testbed.Way) {
	h := newHost(t, w.Engine, func(c *configurator.Config) { c.Network = "allocnet" })
	for _, program := range []string{"iptables", "ip6tables"} {
		require.NoError(t, testbed.Command(program, "-P", "FORWARD", "DROP"))
		t.Cleanup(func() { require.NoError(t, testbed.Command(program, "-P", "FORWARD", "ACCEPT")) })
	}
	a, b := h.Alloc("a"), h.Alloc("b")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	s := h.SetUp(a)
	h.SetUp(b)
	testbed.Serve(t, a.Netns, "tcp", 80, "a")
	for _, address := range []netip.Prefix{testhost.Host4, testhost.Host6} {
		for _, from := range []string{h.Outside.Path(), "", a.Netns, b.Netns} {
			testbed.RequireAnswer(t, from, "tcp", testbed.HostPort(address, 8080), "a")
		}
	}
	testbed.RequireAnswer(t, "", "tcp", "127.0.0.1:8080", "a")
	for _, address := range []string{s.Address, s.AddressIPv6} {
		for _, from := range []string{"", b.Netns} {
			testbed.RequireAnswer(t, from, "tcp", net.JoinHostPort(address, "80"), "a")
		}
	}
	require.NoError(t, h.Outside.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		_, subnet, err := net.ParseCIDR("10.202.0.0/16")
		require.NoError(t, err)
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: subnet, Gw: testhost.Host4.Addr().AsSlice()})
	}))
	testbed.RequireSilence(t, h.Outside.Path(), "tcp", s.Address+":80")

	// CHECK reports a flush by another tool, and one Setup repairs it. If only
	// the chain of published ports is gone, the allocation keeps its address.
	chain, rest := "ALLOCNET-ADMIN", "CNI-FORWARD"
	if w == testbed.Native {
		chain, rest = "ALLOCNET-FORWARD", "FORWARD"
	}
	h.WithoutSlots() // a pool that is being filled would add the rules again
	require.NoError(t, testbed.Command("iptables", "-F", chain))
	require.ErrorIs(t, h.Check(h.Context(), a), configurator.ErrUnhealthy)
	require.Equal(t, s, h.SetUp(a))
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
	require.NoError(t, testbed.Command("iptables", "-F", chain))
	require.NoError(t, testbed.Command("iptables", "-F", rest))
	h.SetUp(a)
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
	h.TearDown(a, b)
}
