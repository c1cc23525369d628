package firewall

import (
	"errors"
	"fmt"
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
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// attached is a namespace with a listener, connected to a bridge of the host.
type attached struct {
	*sandbox.Sandbox
	v4, v6 string
}

const port = 4711

// attach creates a namespace with the address .2 of a subnet, and a bridge of
// the host with the gateway .1.
func (h *host) attach(name, bridge string, subnet int) *attached {
	h.Helper()
	a := &attached{h.sandbox(name), fmt.Sprintf("10.%d.0.2", subnet), fmt.Sprintf("fd00:%d::2", subnet)}
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}
	require.NoError(h, netlink.LinkAdd(br))
	h.Cleanup(func() { require.NoError(h, netlink.LinkDel(br)) })
	require.NoError(h, a.Do(func() error { return setSysctls(noDAD) }))
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v" + name, MasterIndex: br.Index}, PeerName: "eth0"}
	require.NoError(h, a.With(func(fd int) error {
		veth.PeerNamespace = netlink.NsFd(fd)
		return netlink.LinkAdd(veth)
	}))
	h.Cleanup(func() { require.NoError(h, netlink.LinkDel(veth)) })
	require.NoError(h, netlink.LinkSetUp(veth))
	require.NoError(h, configure(br, gateways(subnet)...))
	require.NoError(h, a.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := configure(link, a.v4+"/24", a.v6+"/64"); err != nil {
			return err
		}
		for _, gateway := range gateways(subnet) {
			via := net.IP(netip.MustParsePrefix(gateway).Addr().AsSlice())
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: via}); err != nil {
				return fmt.Errorf("route via %s: %w", via, err)
			}
		}
		return nil
	}))
	for _, gateway := range gateways(subnet) {
		h.awaitNeighbour(a, netip.MustParsePrefix(gateway).Addr().String())
	}
	h.listen(a)
	return a
}

// awaitNeighbour waits until a namespace and the host have resolved each
// other's MAC. The kernel gives up resolving after three seconds if a link is
// not ready. Connects go to a closed port: a refusal shows that the other side
// is reachable.
func (h *host) awaitNeighbour(a *attached, gateway string) {
	h.Helper()
	var err error
	for range 5 {
		if err = reach(a, gateway, 10*time.Second); errors.Is(err, unix.ECONNREFUSED) {
			return
		}
	}
	require.ErrorIs(h, err, unix.ECONNREFUSED)
}

func gateways(subnet int) []string {
	return []string{fmt.Sprintf("10.%d.0.1/24", subnet), fmt.Sprintf("fd00:%d::1/64", subnet)}
}

// configure assigns addresses to a link, without duplicate address detection.
func configure(link netlink.Link, addresses ...string) error {
	for _, address := range addresses {
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("address %s: %w", address, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// listen accepts connections and sends a greeting until the test ends.
func (h *host) listen(a *attached) {
	var listener net.Listener
	require.NoError(h, a.Do(func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		return err
	}))
	h.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
			conn.Close()
		}
	}()
}

// reach connects to an address and reads the greeting. A refused connection
// fails at once, a dropped one after the timeout.
func reach(from *attached, to string, timeout time.Duration) error {
	return from.Do(func() error {
		conn, err := (&net.Dialer{Timeout: timeout}).Dial("tcp", net.JoinHostPort(to, fmt.Sprint(port)))
		if err != nil {
			return err
		}
		defer conn.Close()
		greeting := make([]byte, 5)
		_, err = conn.Read(greeting)
		return err
	})
}

// requireReach checks that connections succeed in both families, or in none.
func (h *host) requireReach(want bool, from, to *attached, why string) {
	h.Helper()
	for _, address := range []string{to.v4, to.v6} {
		if want {
			require.NoError(h, reach(from, address, 10*time.Second), why)
		} else {
			require.Error(h, reach(from, address, 300*time.Millisecond), why)
		}
	}
}

// each runs a command of iptables in both families.
func (h *host) each(command string) {
	h.Helper()
	h.run("iptables", strings.Fields(command)...)
	h.run("ip6tables", strings.Fields(command)...)
}

// noDAD disables duplicate address detection, which would delay the use of
// link-local addresses.
var noDAD = map[string]string{"net/ipv6/conf/all/accept_dad": "0", "net/ipv6/conf/default/accept_dad": "0"}

func setSysctls(values map[string]string) error {
	var errs []error
	for name, value := range values {
		errs = append(errs, os.WriteFile("/proc/sys/"+name, []byte(value), 0))
	}
	return errors.Join(errs...)
}

// newRouter returns a host that forwards packets.
func newRouter(t *testing.T) *host {
	h := newHost(t)
	sysctls := map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"}
	maps.Copy(sysctls, noDAD)
	require.NoError(t, setSysctls(sysctls))
	return h
}

func resultOf(a *attached, keys string) string { return conf(keys, a.v4+"/24", a.v6+"/64") }

// onBridge returns a configuration for another bridge.
func onBridge(conf, bridge string) string {
	return strings.Replace(conf, `"name": "br0"`, `"name": "`+bridge+`"`, 1)
}

func TestTrafficByPolicy(t *testing.T) {
	// Docker sets a policy of DROP. Hardened hosts reject packets with a last
	// rule.
	policies := map[string]struct {
		command string
		open    bool
	}{
		"accept": {"-P FORWARD ACCEPT", true},
		"drop":   {"-P FORWARD DROP", false},
		"reject": {"-A FORWARD -p tcp -j REJECT --reject-with tcp-reset", false},
	}
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			h := newRouter(t)
			a, outside := h.attach("a", "br0", 1), h.attach("outside", "br9", 9)
			h.each(policy.command)
			h.requireReach(policy.open, a, outside, "nothing is let through")

			h.add("a", resultOf(a, ""))
			h.requireReach(true, a, outside, "the allocation asks")
			h.requireReach(policy.open, outside, a, "nobody asked")

			h.each("-I CNI-ADMIN -p tcp -j REJECT --reject-with tcp-reset")
			h.requireReach(false, a, outside, "the admin chain decides first")
			h.each("-F CNI-ADMIN")

			h.each("-F")
			h.each(policy.command)
			h.requireReach(policy.open, a, outside, "the rules were flushed")
			h.add("a", resultOf(a, ""))
			h.requireReach(true, a, outside, "the next ADD mends")

			h.del("a", resultOf(a, ""))
			h.requireReach(policy.open, a, outside, "nothing is let through any more")
		})
	}
}

// TestForeignMark: a policy drops packets that arrive with the bit of
// allocnet's mark, with and without allocations, and after a flush of the
// tables that clear the bit.
func TestForeignMark(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			useVariant(t, variant)
			h := newRouter(t)
			a, b, outside := h.attach("a", "br0", 1), h.attach("b", "br1", 2), h.attach("outside", "br9", 9)
			h.each("-P FORWARD DROP")
			t.Cleanup(func() { h.each("-P FORWARD ACCEPT"); h.each("-F"); h.each("-X"); h.each("-t mangle -F") })
			mark := func() {
				for _, family := range []string{"ip", "ip6"} {
					h.run("nft", "add table "+family+" other { chain c { type filter hook prerouting priority mangle; meta mark set meta mark | 0x1000; }; }")
				}
			}
			mark()
			h.add("a", resultOf(a, ""))
			h.requireReach(true, a, outside, "the allocation asks")
			h.requireReach(false, b, outside, "an address that is not an allocation's")
			h.requireReach(false, outside, a, "nobody asked")
			h.del("a", resultOf(a, ""))
			h.requireReach(false, b, outside, "no allocation is left")
			h.requireReach(false, outside, a, "no allocation is left")
			if variant == "legacy" {
				privhost.FlushRuleset(h.T)
				mark()
				h.requireReach(false, b, outside, "no table of ours is left")
				h.requireReach(false, a, outside, "no table of ours is left")
			}
		})
	}
}

// useVariant makes "iptables" one of its implementations.
func useVariant(t *testing.T, variant string) {
	t.Helper()
	dir := t.TempDir()
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(program + "-" + variant + suffix)
			require.NoError(t, err)
			require.NoError(t, os.Symlink(path, filepath.Join(dir, program+suffix)))
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestGuardedBridges(t *testing.T) {
	h := newRouter(t)
	a, b, outside := h.attach("a", "br0", 1), h.attach("b", "br1", 2), h.attach("outside", "br9", 9)
	h.each("-P FORWARD DROP")
	h.add("a", resultOf(a, `"ingressPolicy": "same-bridge",`))
	onBridge1 := onBridge(resultOf(b, `"ingressPolicy": "same-bridge",`), "br1")
	h.add("b", onBridge(resultOf(b, ""), "br1"))
	h.requireReach(true, a, b, "only one of them is guarded")
	h.add("b", onBridge1)
	h.requireReach(false, a, b, "both are guarded")
	h.requireReach(false, b, a, "both are guarded")
	h.requireReach(true, a, outside, "outside is not guarded")
	require.NoError(t, h.check("b", onBridge1))
}
