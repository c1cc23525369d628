package configurator

import (
	"errors"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/sandbox"
)

// router is the other end of the host's link "uplink", in a network namespace of its own.
type router struct {
	t  *testing.T
	ns *sandbox.Sandbox
}

// newRouter makes the router. The host does not forward, and takes its IPv6 default route from the router.
func newRouter(t *testing.T) *router {
	t.Helper()
	for name, value := range map[string]string{
		"net/ipv4/ip_forward": "0", "net/ipv6/conf/all/forwarding": "0",
		"net/ipv6/conf/default/accept_ra": "1", "net/ipv6/conf/default/accept_dad": "0",
	} {
		was, err := rtnl.Sysctl(name)
		require.NoError(t, err)
		require.NoError(t, rtnl.SetSysctl(name, value))
		t.Cleanup(func() { require.NoError(t, rtnl.SetSysctl(name, was)) })
	}
	ns, err := sandbox.Create("router")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(ns.Close(), sandbox.Destroy(ns.Path()))) })
	ip(t, "link add uplink type veth peer name lan netns "+ns.Path())
	t.Cleanup(func() { ip(t, "link del uplink") })
	r := &router{t, ns}
	r.inside("ip", "link", "set", "lan", "up")
	// Otherwise it says in each answer to a solicitation that it is no router (RFC 4861, section 7.2.5).
	require.NoError(t, ns.Do(func() error { return rtnl.SetSysctl("net/ipv6/conf/all/forwarding", "1") }))
	ip(t, "addr add 192.0.2.7/24 dev uplink")
	ip(t, "link set uplink up")
	ip(t, "route add default via 192.0.2.1 dev uplink")
	return r
}

func (r *router) inside(args ...string) {
	r.t.Helper()
	require.NoError(r.t, r.ns.Do(func() error {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		require.NoError(r.t, err, "%s", out)
		return nil
	}))
}

// advertise sends a router advertisement with a prefix (RFC 4861, section 4.2) to all nodes.
func (r *router) advertise() error {
	prefix := netip.MustParseAddr("2001:db8:66::").As16()
	message := append([]byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0}, prefix[:]...)
	return r.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		link, err := net.InterfaceByName("lan")
		if err != nil {
			return err
		}
		all := &unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: uint32(link.Index)}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, link.Index),
			unix.Sendto(fd, message, 0, all),
		)
	})
}

// requireRoute waits until the host has the default route and the address of an advertisement.
func (r *router) requireRoute() {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.advertise() == nil && hasRouterRoute(r.t) }, 10*time.Second, 10*time.Millisecond)
}

func hasRouterRoute(t *testing.T) bool {
	t.Helper()
	out, err := exec.Command("ip", "-6", "route", "show", "table", "all", "dev", "uplink").CombinedOutput()
	require.NoError(t, err)
	return strings.Contains(string(out), "default via fe80:") && strings.Contains(string(out), "local 2001:db8:66:")
}

// switchesOf returns all values below /proc/sys/net but those of a link, and those that count or measure.
func switchesOf(t *testing.T, without string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir("/proc/sys/net", func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() == without {
			return filepath.SkipDir
		}
		if !entry.Type().IsRegular() || strings.HasSuffix(path, "_count") || entry.Name() == "flush" || entry.Name() == "stable_secret" {
			return nil
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrPermission) { // it can only be written
			return nil
		}
		all[path] = string(data)
		return err
	}))
	return all
}

// requireSwitches requires that the switches of the host are as before, when switchesOf has returned them.
func requireSwitches(t *testing.T, before map[string]string) {
	t.Helper()
	now := switchesOf(t, "brtest")
	changed := func(name, value string) bool { return before[name] != value || now[name] != value }
	is, was := maps.Clone(now), maps.Clone(before)
	maps.DeleteFunc(is, func(name, value string) bool { return !changed(name, value) })
	maps.DeleteFunc(was, func(name, value string) bool { return !changed(name, value) })
	require.Equal(t, was, is, "of the host")
}

// routesOf returns the routes of the host, without the lifetimes of those of the router.
func routesOf(t *testing.T) string {
	t.Helper()
	var text string
	for _, family := range []string{"-4", "-6"} {
		out, err := exec.Command("ip", family, "route", "show", "table", "all").CombinedOutput()
		require.NoError(t, err)
		for line := range strings.Lines(string(out)) {
			if before, _, cut := strings.Cut(line, " expires "); cut {
				line = before + "\n"
			}
			text += line
		}
	}
	return text
}

// TestSwitches: the first Setup leaves the host its routes, also those of router advertisements. The last Teardown
// sets back what Setup changed below /proc/sys/net, and leaves what another program changed meanwhile.
func TestSwitches(t *testing.T) {
	const ipam = `"ipam":{"type":"host-local","dataDir":"DIR","ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]]}`
	for name, plugin := range map[string]string{
		"embedded":    "",
		"ptp":         `{"type":"ptp",` + ipam + `}`,
		"bridge":      `{"type":"bridge","bridge":"brtest","isGateway":true,` + ipam + `}`,
		"exec ptp":    `{"type":"ptp",` + ipam + `}`,
		"exec bridge": `{"type":"bridge","bridge":"brtest","isGateway":true,` + ipam + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			kind, _, _ := strings.Cut(name, " ")
			h := newTestHost(t, func(c *Config) {
				c.Engine, c.Networks = EngineNative, []string{"net"}
				switch {
				case plugin == "":
					c.Networks = []string{conflist.EmbeddedName}
				case kind == "exec":
					c.Engine, c.PluginDirs = EngineExec, []string{filepath.Dir(refplugins.Path(t, "ptp"))}
				}
			})
			h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[`+strings.ReplaceAll(plugin, "DIR", t.TempDir())+`]}`)
			if strings.Contains(plugin, "brtest") { // it stays
				ip(t, "link add brtest type bridge")
				t.Cleanup(func() { ip(t, "link del brtest") })
			}
			t.Cleanup(func() { privhost.FlushRuleset(t) })
			r := newRouter(t)
			r.requireRoute()
			switches, routes := switchesOf(t, "brtest"), routesOf(t)

			a, b := h.alloc("a"), h.alloc("b")
			a.Wait, b.Wait = true, true
			for _, alloc := range []Allocation{a, b} {
				_, err := h.Setup(t.Context(), alloc)
				require.NoError(t, err)
				require.True(t, hasRouterRoute(t), "kept")
			}
			for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
				value, err := rtnl.Sysctl(name)
				require.NoError(t, err)
				require.Equal(t, "1", value, name)
			}
			ip(t, "-6 route del default proto ra dev uplink")
			r.requireRoute() // still learnt
			require.NoError(t, h.Teardown(t.Context(), a))
			value, err := rtnl.Sysctl("net/ipv4/ip_forward")
			require.NoError(t, err)
			require.Equal(t, "1", value, "an allocation is left")
			require.NoError(t, h.Teardown(t.Context(), b))
			value, err = rtnl.Sysctl("net/ipv4/ip_forward")
			require.NoError(t, err)
			require.Equal(t, "1", value, "the next allocation may come soon")
			require.NoError(t, h.Close())
			requireSwitches(t, switches)
			if !strings.Contains(plugin, "brtest") {
				require.Equal(t, routes, routesOf(t))
			}
			require.True(t, hasRouterRoute(t))
			r.requireRoute()
			require.Empty(t, mustChanged(t, h))
		})
	}
}

func mustChanged(t *testing.T, h *testHost) []string {
	t.Helper()
	list, err := h.switches.Changed()
	require.NoError(t, err)
	var names []string
	for _, c := range list {
		names = append(names, c.Name)
	}
	return names
}
