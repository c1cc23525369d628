package integration

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// iptables adds rules of both families until the test ends. Each line has the
// arguments of one rule.
func (h *host) iptables(lines string) {
	h.T.Helper()
	undo := map[string]string{"-N": "-X", "-A": "-D", "-I": "-D", "-P": "-P"}
	for line := range strings.Lines(strings.TrimSpace(lines)) {
		do := strings.Fields(line)
		at := slices.IndexFunc(do, func(s string) bool { return undo[s] != "" })
		back := slices.Clone(do)
		back[at] = undo[do[at]]
		if do[at] == "-P" {
			back[len(back)-1] = "ACCEPT"
		}
		for _, program := range []string{"iptables", "ip6tables"} {
			require.NoError(h.T, testbed.Command(program, do...))
			h.T.Cleanup(func() { require.NoError(h.T, testbed.Command(program, back...)) })
		}
	}
}

// routeFromOutside adds a route to a subnet on the external machine.
func (h *host) routeFromOutside(f testbed.Families) {
	h.T.Helper()
	for subnet, gateway := range map[string]netip.Prefix{f.V4: testhost.Host4, f.V6: testhost.Host6} {
		if subnet == "" {
			continue
		}
		_, to, err := net.ParseCIDR(subnet)
		require.NoError(h.T, err)
		testbed.Within(h.T, h.Outside.Path(), func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: gateway.Addr().AsSlice()})
		})
	}
}

// docker contains the rules of a Docker daemon in the filter and nat tables,
// with one container that publishes a port.
const docker = `
-P FORWARD DROP
-N DOCKER
-N DOCKER-USER
-N DOCKER-FORWARD
-N DOCKER-ISOLATION-STAGE-1
-N DOCKER-ISOLATION-STAGE-2
-A DOCKER ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-USER -j RETURN
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -o docker0 -j DOCKER
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-t nat -N DOCKER
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A OUTPUT -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A DOCKER -i docker0 -j RETURN
`

// TestBesideDocker: host ports work although Docker drops all other forwarded
// packets, and nothing else is accepted.
func TestBesideDocker(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			h.iptables(docker)
			testMatrix(h, testbed.Native, main, testbed.Dual)

			a := h.Alloc("shut")
			s := h.SetUp(a)
			h.routeFromOutside(testbed.Dual)
			for _, to := range []string{s.Address, s.AddressIPv6} {
				testbed.Serve(t, a.Netns, "tcp", 70+len(to), "a")
				testbed.RequireSilence(t, h.Outside.Path(), "tcp", testbed.At(netip.MustParseAddr(to), 70+len(to)))
			}
			h.TearDown(a)
		})
	}
}

// TestAdminChain: packets that the operator drops in the network's admin chain
// are dropped, whatever the firewall accepts.
func TestAdminChain(t *testing.T) {
	testbed.Each(t, testbed.Engines, func(t *testing.T, w testbed.Way) {
		h := newHost(t, w.Engine)
		testbed.SetSysctls(t, "", testbed.Quick)
		h.iptables("-P FORWARD DROP\n-N NOMAD-ADMIN")
		jump := []string{"CNI-FORWARD", "-m", "comment", "--comment", "CNI firewall plugin admin overrides", "-j", "NOMAD-ADMIN"}
		if w == testbed.Native {
			jump = []string{"ALLOCNET-FORWARD", "-j", "NOMAD-ADMIN"}
		}
		t.Cleanup(func() { // otherwise the jump would keep the chain in use
			for _, program := range []string{"iptables", "ip6tables"} {
				require.NoError(t, testbed.Command(program, append([]string{"-D"}, jump...)...))
			}
		})
		plugins := testbed.Chain("bridge", testbed.Dual, w.Backend)
		plugins[2]["iptablesAdminChainName"] = "NOMAD-ADMIN"
		h.Network("net", plugins...)
		a := h.Alloc("a")
		h.InNew(a, func() { testbed.SetSysctls(t, a.Netns, testbed.Quick) })
		a.Ports = []portmap.Port{{Value: 8080, To: 80}}
		h.SetUp(a)
		testbed.Serve(t, a.Netns, "tcp", 80, "a")
		testbed.Serve(t, h.Outside.Path(), "tcp", 7000, "outside")
		reach := func(want func(t testing.TB, netns, addr string)) {
			for host, outside := range map[netip.Prefix]netip.Prefix{testhost.Host4: testhost.Outside4, testhost.Host6: testhost.Outside6} {
				want(t, a.Netns, testbed.At(outside.Addr(), 7000))
				if w == testbed.Native { // the reference plugin accepts only replies
					want(t, h.Outside.Path(), testbed.At(host.Addr(), 8080))
				}
			}
		}
		answers := func(t testing.TB, netns, addr string) {
			name := "outside"
			if strings.HasSuffix(addr, ":8080") {
				name = "a"
			}
			testbed.RequireAnswer(t, netns, "tcp", addr, name)
		}
		reach(answers)
		h.iptables("-A NOMAD-ADMIN -p tcp -j DROP")
		reach(func(t testing.TB, netns, addr string) { testbed.RequireSilence(t, netns, "tcp", addr) })
		require.NoError(t, h.Check(h.Context(), a))
		for _, program := range []string{"iptables", "ip6tables"} {
			require.NoError(t, testbed.Command(program, "-I", "NOMAD-ADMIN", "-p", "tcp", "-j", "RETURN"))
			t.Cleanup(func() { require.NoError(t, testbed.Command(program, "-D", "NOMAD-ADMIN", "-p", "tcp", "-j", "RETURN")) })
		}
		reach(answers)
		h.TearDown(a)
	})
}
