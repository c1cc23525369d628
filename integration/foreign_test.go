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
	"github.com/allocnet/allocnet/portmap"
)

// iptables adds rules of both families until the test ends. Each line has the
// arguments of one rule.
func (h *host) iptables(lines string) {
	h.t.Helper()
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
			require.NoError(h.t, command(program, do...))
			h.t.Cleanup(func() { require.NoError(h.t, command(program, back...)) })
		}
	}
}

// routeFromOutside adds a route to a subnet on the external machine.
func (h *host) routeFromOutside(f families) {
	h.t.Helper()
	for subnet, gateway := range map[string]netip.Prefix{f.v4: host4, f.v6: host6} {
		if subnet == "" {
			continue
		}
		_, to, err := net.ParseCIDR(subnet)
		require.NoError(h.t, err)
		within(h.t, h.outside.Path(), func() error {
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
			testMatrix(h, native, main, dual)

			a := h.alloc("shut")
			s := h.setUp(a)
			h.routeFromOutside(dual)
			for _, to := range []string{s.Address, s.AddressIPv6} {
				serve(t, a.Netns, "tcp", 70+len(to), "a")
				requireSilence(t, h.outside.Path(), "tcp", at(netip.MustParseAddr(to), 70+len(to)))
			}
			h.tearDown(a)
		})
	}
}

// TestAdminChain: packets that the operator drops in the network's admin chain
// are dropped, whatever the firewall accepts.
func TestAdminChain(t *testing.T) {
	each(t, engines, func(t *testing.T, w way) {
		h := newHost(t, w.engine)
		setSysctls(t, "", quick)
		h.iptables("-P FORWARD DROP\n-N NOMAD-ADMIN")
		jump := []string{"CNI-FORWARD", "-m", "comment", "--comment", "CNI firewall plugin admin overrides", "-j", "NOMAD-ADMIN"}
		if w == native {
			jump = []string{"ALLOCNET-FORWARD", "-j", "NOMAD-ADMIN"}
		}
		t.Cleanup(func() { // otherwise the jump would keep the chain in use
			for _, program := range []string{"iptables", "ip6tables"} {
				require.NoError(t, command(program, append([]string{"-D"}, jump...)...))
			}
		})
		plugins := chain("bridge", dual, w.backend)
		plugins[2]["iptablesAdminChainName"] = "NOMAD-ADMIN"
		h.network("net", plugins...)
		a := h.alloc("a")
		h.inNew(a, func() { setSysctls(t, a.Netns, quick) })
		a.Ports = []portmap.Port{{Value: 8080, To: 80}}
		h.setUp(a)
		serve(t, a.Netns, "tcp", 80, "a")
		serve(t, h.outside.Path(), "tcp", 7000, "outside")
		reach := func(want func(t testing.TB, netns, addr string)) {
			for host, outside := range map[netip.Prefix]netip.Prefix{host4: outside4, host6: outside6} {
				want(t, a.Netns, at(outside.Addr(), 7000))
				if w == native { // the reference plugin accepts only replies
					want(t, h.outside.Path(), at(host.Addr(), 8080))
				}
			}
		}
		answers := func(t testing.TB, netns, addr string) {
			name := "outside"
			if strings.HasSuffix(addr, ":8080") {
				name = "a"
			}
			requireAnswer(t, netns, "tcp", addr, name)
		}
		reach(answers)
		h.iptables("-A NOMAD-ADMIN -p tcp -j DROP")
		reach(func(t testing.TB, netns, addr string) { requireSilence(t, netns, "tcp", addr) })
		require.NoError(t, h.Check(h.ctx(), a))
		for _, program := range []string{"iptables", "ip6tables"} {
			require.NoError(t, command(program, "-I", "NOMAD-ADMIN", "-p", "tcp", "-j", "RETURN"))
			t.Cleanup(func() { require.NoError(t, command(program, "-D", "NOMAD-ADMIN", "-p", "tcp", "-j", "RETURN")) })
		}
		reach(answers)
		h.tearDown(a)
	})
}
