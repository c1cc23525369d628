package integration

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// unlimited lets the host and the outside machine say at once, and every time,
// that nobody has a port.
var unlimited = []string{"net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"}

// TestMatrix reaches an allocation on every way that its host ports have, and on
// none that they do not have. Both engines give the same answers.
func TestMatrix(t *testing.T) {
	each(t, []way{execTables, execNFT, native, nativeTables, nativeNFT}, func(t *testing.T, w way) {
		tested := map[string]families{"v4": v4Only, "v6": v6Only, "dual": dual}
		if w != execTables && w != native { // the other layouts
			delete(tested, "v4")
			delete(tested, "v6")
		}
		for _, main := range []string{"bridge", "ptp"} {
			for name, f := range tested {
				t.Run(main+" "+name, func(t *testing.T) { testMatrix(t, w, main, f) })
			}
		}
	})
}

func testMatrix(t *testing.T, w way, main string, f families) {
	h := newHost(t, w.engine)
	h.network("net", chain(main, f, w.backend)...)
	m := &matrix{host: h, a: h.alloc("alloc-a"), b: h.alloc("alloc-b")}
	m.a.Ports = published()
	m.statusA, m.statusB = h.setUp(m.a), h.setUp(m.b)
	m.quicken()
	m.serve()
	for _, s := range sides(f, m.statusA, m.statusB) {
		for _, protocol := range []string{"tcp", "udp", "sctp"} {
			if protocol == "sctp" && !sctpSockets() {
				t.Log("this kernel has no SCTP sockets: no packets, only the rules are looked at")
				continue
			}
			m.ask(protocol, s)
			m.askDirectly(protocol, s)
		}
		m.requireRules(w, "sctp", s)
	}
	require.NoError(t, h.Check(h.ctx(), m.a))
	require.NoError(t, h.Check(h.ctx(), m.b))
	h.tearDown(m.a, m.b)
	for _, s := range sides(f, m.statusA, m.statusB) {
		requireRefused(t, h.outside.Path(), "tcp", at(s.host, 8080))
		requireRefused(t, "", "udp", at(s.host, 8080))
	}
}

// matrix is an allocation with published ports and its neighbour.
type matrix struct {
	*host
	a, b             configurator.Allocation
	statusA, statusB *configurator.Status
}

// published are ports of every kind.
func published() []portmap.Port {
	ports := []portmap.Port{
		{Label: "plain", Value: 8080, To: 80},
		{Label: "host IP", Value: 9090, To: 80, HostIP: host4b.Addr().String()},
		{Label: "host IPv6", Value: 9090, To: 80, HostIP: host6b.Addr().String()},
		{Label: "wildcard", Value: 9191, To: 80, HostIP: "0.0.0.0"},
		{Label: "IPv6 wildcard", Value: 9192, To: 80, HostIP: "::"},
		{Label: "loopback", Value: 9393, To: 80, HostIP: "127.0.0.1"},
	}
	for i := range 5 {
		ports = append(ports, portmap.Port{Label: fmt.Sprint("range ", i), Value: 9000 + i, To: 7000 + i})
	}
	for i := range ports {
		ports[i].Protocols = []string{"tcp", "udp", "sctp"}
	}
	return ports
}

// side is what one address family has of everything.
type side struct {
	a, b, gateway, host, second, loopback, outside netip.Addr
}

func sides(f families, a, b *configurator.Status) []side {
	var sides []side
	if f.v4 != "" {
		sides = append(sides, side{
			a: netip.MustParseAddr(a.Address), b: netip.MustParseAddr(b.Address), gateway: netip.MustParseAddr("10.99.0.1"),
			host: host4.Addr(), second: host4b.Addr(), loopback: netip.MustParseAddr("127.0.0.1"), outside: outside4.Addr(),
		})
	}
	if f.v6 != "" {
		sides = append(sides, side{
			a: netip.MustParseAddr(a.AddressIPv6), b: netip.MustParseAddr(b.AddressIPv6), gateway: netip.MustParseAddr("fd00:99::1"),
			host: host6.Addr(), second: host6b.Addr(), loopback: netip.IPv6Loopback(), outside: outside6.Addr(),
		})
	}
	return sides
}

// quicken takes away the bound on refusals.
func (m *matrix) quicken() {
	m.t.Helper()
	for _, name := range unlimited {
		require.NoError(m.t, os.WriteFile("/proc/sys/"+name, []byte("0"), 0))
	}
}

// serve has a server on every port that a host port leads to, which answers with
// that port.
func (m *matrix) serve() {
	m.t.Helper()
	protocols := []string{"tcp", "udp"}
	if sctpSockets() {
		protocols = append(protocols, "sctp")
	}
	for _, protocol := range protocols {
		for _, port := range []int{80, 7000, 7001, 7002, 7003, 7004} {
			serve(m.t, m.a.Netns, protocol, port, fmt.Sprint(port))
		}
		serve(m.t, m.b.Netns, protocol, 80, "b")
		serve(m.t, m.outside.Path(), protocol, 7000, "outside")
	}
}

// ask asks for every port, and one that nobody has, from everywhere, at each
// address of the host.
func (m *matrix) ask(protocol string, s side) {
	m.t.Helper()
	everywhere := []netip.Addr{s.host, s.second, s.gateway}
	from := []struct {
		name, netns string
		to          []netip.Addr
		seen        func(to netip.Addr) netip.Addr // by the server
	}{
		{"outside", m.outside.Path(), everywhere[:2], func(netip.Addr) netip.Addr { return s.outside }},
		{"host", "", append(everywhere, s.loopback), func(to netip.Addr) netip.Addr {
			if to == s.loopback {
				return s.gateway
			}
			return to
		}},
		{"neighbour", m.b.Netns, everywhere, func(netip.Addr) netip.Addr { return s.gateway }},
		{"itself", m.a.Netns, everywhere, func(netip.Addr) netip.Addr { return s.gateway }},
	}
	for _, p := range append(published(), portmap.Port{Label: "unmapped", Value: 8081, HostIP: "198.51.100.1"}) {
		for _, who := range from {
			for _, to := range who.to {
				if !leads(p, to) {
					requireRefused(m.t, who.netns, protocol, at(to, p.Value))
					continue
				}
				seen := requireAnswer(m.t, who.netns, protocol, at(to, p.Value), fmt.Sprint(p.To))
				require.Equal(m.t, who.seen(to).String(), seen, "%s: %s asks over %s at %s", p.Label, who.name, protocol, at(to, p.Value))
			}
		}
	}
}

// leads says whether a host port is one of an address.
func leads(p portmap.Port, to netip.Addr) bool {
	if p.HostIP == "" {
		return true
	}
	ip := netip.MustParseAddr(p.HostIP)
	return ip == to || ip.IsUnspecified() && ip.Is4() == to.Is4()
}

// askDirectly goes without host ports: allocations see one another as they are,
// and outside sees the host.
func (m *matrix) askDirectly(protocol string, s side) {
	m.t.Helper()
	require.Equal(m.t, s.b.String(), requireAnswer(m.t, m.b.Netns, protocol, at(s.a, 80), "80"))
	require.Equal(m.t, s.a.String(), requireAnswer(m.t, m.a.Netns, protocol, at(s.b, 80), "b"))
	require.Contains(m.t, []string{s.host.String(), s.second.String()},
		requireAnswer(m.t, m.a.Netns, protocol, at(s.outside, 7000), "outside"))
}

// requireRules looks for the rules of a protocol as text.
func (m *matrix) requireRules(w way, protocol string, s side) {
	m.t.Helper()
	family, iptables, target := "ip", "iptables", s.a.String()
	if s.a.Is6() {
		family, iptables, target = "ip6", "ip6tables", "["+target+"]"
	}
	list, rule := iptables+" -t nat -S", "-p %s -m %[1]s --dport %d -j DNAT --to-destination "+target+":%d"
	switch {
	case w == native:
		list, rule = "nft list table "+family+" allocnet", `%s . %d comment "allocnet:net/alloc-a/eth0" : `+s.a.String()+" . %d"
	case w.backend == "nftables":
		list, rule = "nft list table "+family+" cni_hostport", "%s dport %d dnat to "+target+":%d"
	}
	fields := strings.Fields(list)
	out, err := exec.Command(fields[0], fields[1:]...).Output()
	require.NoError(m.t, err, list)
	for _, p := range published() {
		if p.HostIP == "" || leads(p, s.host) || leads(p, s.second) || leads(p, s.loopback) {
			require.Contains(m.t, string(out), fmt.Sprintf(rule, protocol, p.Value, p.To), p.Label)
		}
	}
}

func at(a netip.Addr, port int) string { return netip.AddrPortFrom(a, uint16(port)).String() }
