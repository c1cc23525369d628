package integration

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// quick contains sysctls that remove delays: the host always reports closed
// ports, and uses its link-local addresses at once.
var quick = map[string]string{
	"net/ipv4/icmp_ratelimit":          "0",
	"net/ipv6/icmp/ratelimit":          "0",
	"net/ipv6/conf/default/accept_dad": "0",
}

// TestMatrix connects to an allocation through every path that its host ports
// have, and checks that no other path exists. All engines and layouts give the
// same results.
func TestMatrix(t *testing.T) {
	eachElsewhere(t, []way{execTables, execNFT, native, nativeTables, nativeNFT}, func(t *testing.T, w way) {
		for _, main := range []string{"bridge", "ptp"} {
			for name, f := range map[string]families{"v4": v4Only, "v6": v6Only, "dual": dual} {
				t.Run(main+" "+name, func(t *testing.T) { testMatrix(newHost(t, w.engine), w, main, f) })
			}
		}
	})
}

// testMatrix sets up an allocation with every kind of host port and a second
// one, connects to all ports, and tears both down.
func testMatrix(h *host, w way, main string, f families) {
	t := h.t
	h.network("net", chain(main, f, w.backend)...)
	m := &matrix{host: h, way: w, a: h.alloc("alloc-a"), b: h.alloc("alloc-b")}
	setSysctls(t, "", quick)
	for _, a := range []configurator.Allocation{m.a, m.b} {
		h.inNew(a, func() { setSysctls(t, a.Netns, quick) })
	}
	m.a.Ports = published()
	m.statusA, m.statusB = h.setUp(m.a), h.setUp(m.b)
	m.serve()
	if !sctpSockets() {
		t.Log("this kernel has no SCTP sockets: of SCTP, only the rules are looked at")
	}
	for _, s := range sides(f, m.statusA, m.statusB) {
		for _, protocol := range spoken() {
			m.ask(protocol, s)
			m.askDirectly(protocol, s)
		}
		m.requireRules("sctp", s)
	}
	require.NoError(t, h.Check(h.ctx(), m.a))
	require.NoError(t, h.Check(h.ctx(), m.b))
	h.tearDown(m.a, m.b)
	for _, s := range sides(f, m.statusA, m.statusB) {
		requireRefused(t, h.outside.Path(), "tcp", at(s.host, 8080))
		requireRefused(t, "", "udp", at(s.host, 8080))
	}
}

// spoken returns the protocols that the kernel has sockets for.
func spoken() []string {
	if sctpSockets() {
		return []string{"tcp", "udp", "sctp"}
	}
	return []string{"tcp", "udp"}
}

// matrix is an allocation with published ports, and a second allocation.
type matrix struct {
	*host
	way
	a, b             configurator.Allocation
	statusA, statusB *configurator.Status
}

// published returns ports of every kind.
func published() []portmap.Port {
	ports := []portmap.Port{
		{Label: "plain", Value: 8080, To: 80},
		{Label: "host IP", Value: 9090, To: 80, HostIP: host4b.Addr().String()},
		{Label: "host IPv6", Value: 9091, To: 80, HostIP: host6b.Addr().String()},
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

// side contains the addresses of one family. Over IPv6, no packet with a
// loopback address leaves the loopback interface, so ::1 has no host ports.
type side struct {
	a, b, gateway, host, second, loopback, outside netip.Addr
	// sourceTo is the source address of connections from the host, by
	// destination.
	sourceTo map[netip.Addr]netip.Addr
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
			host: host6.Addr(), second: host6b.Addr(), outside: outside6.Addr(),
		})
	}
	for i := range sides {
		s := &sides[i]
		s.sourceTo = map[netip.Addr]netip.Addr{s.host: s.host, s.second: s.second, s.gateway: s.gateway, s.loopback: s.gateway}
		if s.second.Is4() {
			s.sourceTo[s.second] = s.host // the first address of the subnet
		}
	}
	return sides
}

// serve starts a server on every target port of a host port. The server
// responds with that port.
func (m *matrix) serve() {
	m.t.Helper()
	for _, protocol := range spoken() {
		for _, port := range []int{80, 7000, 7001, 7002, 7003, 7004} {
			serve(m.t, m.a.Netns, protocol, port, fmt.Sprint(port))
		}
		serve(m.t, m.b.Netns, protocol, 80, "b")
		serve(m.t, m.outside.Path(), protocol, 7000, "outside")
	}
}

// ask connects to every published port and to an unpublished one, from
// everywhere, at each address of the host.
func (m *matrix) ask(protocol string, s side) {
	m.t.Helper()
	everywhere := []netip.Addr{s.host, s.second, s.gateway}
	here := everywhere
	if s.loopback.IsValid() {
		here = append(here, s.loopback)
	}
	from := []struct {
		name, netns string
		to          []netip.Addr
		seen        func(to netip.Addr) netip.Addr // source address that the server sees
	}{
		{"outside", m.outside.Path(), everywhere[:2], func(netip.Addr) netip.Addr { return s.outside }},
		{"host", "", here, func(to netip.Addr) netip.Addr { return s.sourceTo[to] }},
		{"neighbour", m.b.Netns, everywhere, func(netip.Addr) netip.Addr {
			if m.backend == "nftables" { // that layout changes only necessary addresses
				return s.b
			}
			return s.gateway
		}},
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

// leads reports whether a host port applies to an address.
func leads(p portmap.Port, to netip.Addr) bool {
	if p.HostIP == "" {
		return true
	}
	ip := netip.MustParseAddr(p.HostIP)
	return ip == to || ip.IsUnspecified() && ip.Is4() == to.Is4()
}

// askDirectly connects without host ports: allocations see each other's
// addresses, and the external machine sees the host's.
func (m *matrix) askDirectly(protocol string, s side) {
	m.t.Helper()
	require.Equal(m.t, s.b.String(), requireAnswer(m.t, m.b.Netns, protocol, at(s.a, 80), "80"))
	require.Equal(m.t, s.a.String(), requireAnswer(m.t, m.a.Netns, protocol, at(s.b, 80), "b"))
	require.Contains(m.t, []string{s.host.String(), s.second.String()},
		requireAnswer(m.t, m.a.Netns, protocol, at(s.outside, 7000), "outside"))
}

// requireRules checks the rules of a protocol as text.
func (m *matrix) requireRules(protocol string, s side) {
	m.t.Helper()
	family, iptables, target := "ip", "iptables", s.a.String()
	if s.a.Is6() {
		family, iptables, target = "ip6", "ip6tables", "["+target+"]"
	}
	list, rule := iptables+" -t nat -S", "-p %s -m %[1]s --dport %d -j DNAT --to-destination "+target+":%d"
	switch {
	case m.way == native:
		list, rule = "nft list table "+family+" allocnet", `%s . %d comment "allocnet:net/`+m.container(m.a)+`/eth0" : `+s.a.String()+" . %d"
	case m.backend == "nftables":
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
