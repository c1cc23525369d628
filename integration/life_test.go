package integration

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/privhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestEmbeddedNetwork: a host without any configuration.
func TestEmbeddedNetwork(t *testing.T) {
	h := newHost(t, func(c *configurator.Config) { c.Network = "allocnet" })
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

// TestSetupAgain: the same allocation twice, then with its network damaged.
func TestSetupAgain(t *testing.T) {
	h := newHost(t)
	h.network("net", chain("bridge", dual, "iptables")...)
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	first := h.setUp(a)
	require.Equal(t, first, h.setUp(a))

	for name, damage := range map[string]func() error{
		"link": func() error {
			l, err := netlink.LinkByName(hostLink(t, first))
			require.NoError(t, err)
			return netlink.LinkDel(l)
		},
		"port mapping": func() error { return command("iptables", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT") },
		"firewall":     func() error { return command("iptables", "-F", "CNI-FORWARD") },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, damage())
			require.ErrorIs(t, h.Check(h.ctx(), a), configurator.ErrUnhealthy)
			first = h.setUp(a)
			require.NoError(t, h.Check(h.ctx(), a))
			serve(t, a.Netns, "tcp", 80, "a")
			requireAnswer(t, h.outside.Path(), "tcp", hostPort(host4, 8080), "a")
		})
	}
	h.tearDown(a)
}

// hostLink is the veth of an allocation on the host.
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

func TestTwoNetworks(t *testing.T) {
	h := newHost(t, func(c *configurator.Config) { c.Networks = []string{"front", "back"} })
	h.network("front", chain("bridge", v4Only, "iptables")...)
	h.network("back", chain("ptp", families{"10.98.0.0/24", "fd00:98::/64"}, "iptables")...)
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

// TestSecondNetworkFails: what the first one made is rolled back.
func TestSecondNetworkFails(t *testing.T) {
	h := newHost(t, func(c *configurator.Config) {
		c.Networks = []string{"front", "back"}
		c.Retry.Attempts = 1
	})
	h.network("front", chain("bridge", dual, "iptables")...)
	broken := chain("ptp", v4Only, "iptables")
	broken[1]["mtu"] = 7 // the kernel refuses it
	h.network("back", broken...)
	_, err := h.Setup(h.ctx(), h.alloc("a"))
	require.Error(t, err)
	require.NotErrorIs(t, err, configurator.ErrIncomplete)
}

// TestParallel: a fresh bridge, and no failure.
func TestParallel(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t)
			h.network("net", chain(main, dual, "iptables")...)
			var allocs []configurator.Allocation
			for i, id := range ids("p", 30) {
				a := h.alloc(id)
				a.Ports = []portmap.Port{{Value: 20000 + i, To: 80}}
				allocs = append(allocs, a)
			}
			each := func(what string, do func(configurator.Allocation) error) {
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
			each("setup", func(a configurator.Allocation) error { _, err := h.Setup(h.ctx(), a); return err })
			serve(t, allocs[29].Netns, "tcp", 80, "last")
			requireAnswer(t, h.outside.Path(), "tcp", hostPort(host4, 20029), "last")
			each("check", func(a configurator.Allocation) error { return h.Check(h.ctx(), a) })
			each("teardown", func(a configurator.Allocation) error { return h.Teardown(h.ctx(), a) })
		})
	}
}

func TestNetnsDeletedUnderALiveAllocation(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		for _, backend := range []string{"iptables", "nftables"} {
			t.Run(main+" "+backend, func(t *testing.T) {
				privhost.Require(t, "nft")
				h := newHost(t)
				h.network("net", chain(main, dual, backend)...)
				a := h.alloc("a")
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				h.setUp(a)
				require.NoError(t, sandbox.Destroy(a.Netns))
				require.ErrorIs(t, h.Check(h.ctx(), a), configurator.ErrUnhealthy)
				h.tearDown(a)
			})
		}
	}
}

// TestDelFails makes DEL fail in every plugin of the chain in turn.
func TestDelFails(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		for _, failing := range []string{"loopback", main, "host-local", "firewall", "portmap"} {
			t.Run(main+" "+failing, func(t *testing.T) {
				dir := t.TempDir()
				var forced []configurator.Leftover
				h := newHost(t, func(c *configurator.Config) {
					c.PluginDirs = []string{dir, pluginDir}
					c.OnForced = func(_ string, removed []configurator.Leftover) { forced = append(forced, removed...) }
				})
				h.network("net", chain(main, dual, "iptables")...)
				a := h.alloc("a")
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				h.setUp(a)
				failsDel(t, dir, failing)
				h.tearDown(a)
				if failing != "loopback" {
					require.NotEmpty(t, forced, "what was forced is reported")
				}
			})
		}
	}
}

// failsDel puts a plugin into a directory that fails every DEL and is the real
// one otherwise.
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

func TestThingsGoneBeforeTeardown(t *testing.T) {
	for name, remove := range map[string]func(h *host, plugins string) error{
		"conflist": func(h *host, _ string) error { return os.RemoveAll(h.conf) },
		"plugins":  func(_ *host, plugins string) error { return os.Remove(plugins) },
		"record":   func(*host, string) error { return os.Remove(configurator.DefaultStateDir + "/allocs/a.json") },
		"state":    func(*host, string) error { return os.RemoveAll(configurator.DefaultStateDir + "/allocs") },
	} {
		t.Run(name, func(t *testing.T) {
			plugins := filepath.Join(t.TempDir(), "plugins")
			require.NoError(t, os.Symlink(pluginDir, plugins))
			h := newHost(t, func(c *configurator.Config) { c.PluginDirs = []string{plugins} })
			h.network("net", chain("bridge", dual, "iptables")...)
			a := h.alloc("a")
			a.Ports = []portmap.Port{{Value: 8080, To: 80}}
			h.setUp(a)
			require.NoError(t, remove(h, plugins))
			require.NoError(t, h.Teardown(h.ctx(), a))
			require.NoError(t, os.MkdirAll(configurator.DefaultStateDir+"/allocs", 0o700))
		})
	}
}

// TestForwardPolicyDrop: published ports work on a host that forwards nothing by
// itself, as Docker and hardened hosts have it; the rest stays shut.
func TestForwardPolicyDrop(t *testing.T) {
	h := newHost(t, func(c *configurator.Config) { c.Network = "allocnet" })
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
		requireAnswer(t, h.outside.Path(), "tcp", hostPort(address, 8080), "a")
		requireAnswer(t, b.Netns, "tcp", hostPort(address, 8080), "a")
	}
	require.NoError(t, h.outside.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		_, subnet, err := net.ParseCIDR("10.202.0.0/16")
		require.NoError(t, err)
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: subnet, Gw: host4.Addr().AsSlice()})
	}))
	requireSilence(t, h.outside.Path(), "tcp", s.Address+":80")

	// A flush by another tool is noticed, and one Setup mends it; where the chain of
	// published ports is all that went, without a new address.
	require.NoError(t, command("iptables", "-F", "ALLOCNET-ADMIN"))
	require.ErrorIs(t, h.Check(h.ctx(), a), configurator.ErrUnhealthy)
	require.Equal(t, s, h.setUp(a))
	requireAnswer(t, h.outside.Path(), "tcp", hostPort(host4, 8080), "a")
	require.NoError(t, command("iptables", "-F", "ALLOCNET-ADMIN"))
	require.NoError(t, command("iptables", "-F", "CNI-FORWARD"))
	h.setUp(a)
	requireAnswer(t, h.outside.Path(), "tcp", hostPort(host4, 8080), "a")
	h.tearDown(a, b)
}
