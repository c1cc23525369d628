package integration

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// TestMatrix connects to an allocation through every path that its host ports
// have, and checks that no other path exists. All engines and layouts give the
// same results.
func TestMatrix(t *testing.T) {
	testbed.EachElsewhere(t, []testbed.Way{testbed.ExecTables, testbed.ExecNFT, testbed.Native, testbed.NativeTables, testbed.NativeNFT}, func(t *testing.T, w testbed.Way) {
		for _, main := range []string{"bridge", "ptp"} {
			for name, f := range map[string]testbed.Families{"v4": testbed.V4Only, "v6": testbed.V6Only, "dual": testbed.Dual} {
				t.Run(main+" "+name, func(t *testing.T) { testMatrix(newHost(t, w.Engine), w, main, f) })
			}
		}
	})
}

// testMatrix sets up an allocation with every kind of host port and a second
// one, connects to all ports, and tears both down.
func testMatrix(h *host, w testbed.Way, main string, f testbed.Families) {
	t := h.T
	h.Network("net", testbed.Chain(main, f, w.Backend)...)
	m := &matrix{host: h, Way: w, a: h.Alloc("alloc-a"), b: h.Alloc("alloc-b")}
	testbed.SetSysctls(t, "", testbed.Quick)
	for _, a := range []configurator.Allocation{m.a, m.b} {
		h.InNew(a, func() { testbed.SetSysctls(t, a.Netns, testbed.Quick) })
	}
	m.a.Ports = published()
	m.statusA, m.statusB = h.SetUp(m.a), h.SetUp(m.b)
	m.serve()
	if !testbed.HasSCTP() {
		t.Log("this kernel has no SCTP sockets: of SCTP, only the rules are looked at")
	}
	for _, s := range sides(f, m.statusA, m.statusB) {
		for _, protocol := range testbed.Protocols() {
			m.ask(protocol, s)
			m.askDirectly(protocol, s)
		}
		m.requireRules("sctp", s)
	}
	require.NoError(t, h.Check(h.Context(), m.a))
	require.NoError(t, h.Check(h.Context(), m.b))
	h.TearDown(m.a, m.b)
	for _, s := range sides(f, m.statusA, m.statusB) {
		testbed.RequireRefused(t, h.Outside.Path(), "tcp", testbed.At(s.host, 8080))
		testbed.RequireRefused(t, "", "udp", testbed.At(s.host, 8080))
	}
}

// matrix is an allocation with published ports, and a second allocation.
type matrix struct {
	*host
	testbed.Way
	a, b             configurator.Allocation
	statusA, statusB *configurator.Status
}

// published returns ports of every kind.
func published() []portmap.Port {
	ports := []portmap.Port{
		{Label: "plain", Value: 8080, To: 80},
		{Label: "host IP", Value: 9090, To: 80, HostIP: testhost.Host4b.Addr().String()},
		{Label: "host IPv6", Value: 9091, To: 80, HostIP: testhost.Host6b.Addr().String()},
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

func sides(f testbed.Families, a, b *configurator.Status) []side {
	var sides []side
	if f.V4 != "" {
		sides = append(sides, side{
			a: netip.MustParseAddr(a.Address), b: netip.MustParseAddr(b.Address), gateway: netip.MustParseAddr("10.99.0.1"),
			host: testhost.Host4.Addr(), second: testhost.Host4b.Addr(), loopback: netip.MustParseAddr("127.0.0.1"), outside: testhost.Outside4.Addr(),
		})
	}
	if f.V6 != "" {
		sides = append(sides, side{
			a: netip.MustParseAddr(a.AddressIPv6), b: netip.MustParseAddr(b.AddressIPv6), gateway: netip.MustParseAddr("fd00:99::1"),
			host: testhost.Host6.Addr(), second: testhost.Host6b.Addr(), outside: testhost.Outside6.Addr(),
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
	m.T.Helper()
	for _, protocol := range testbed.Protocols() {
		for _, port := range []int{80, 7000, 7001, 7002, 7003, 7004} {
			testbed.Serve(m.T, m.a.Netns, protocol, port, fmt.Sprint(port))
		}
		testbed.Serve(m.T, m.b.Netns, protocol, 80, "b")
		testbed.Serve(m.T, m.Outside.Path(), protocol, 7000, "outside")
	}
}

// ask connects to every published port and to an unpublished one, from
// everywhere, at each address of the host.
func (m *matrix) ask(protocol string, s side) {
	m.T.Helper()
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
		{"outside", m.Outside.Path(), everywhere[:2], func(netip.Addr) netip.Addr { return s.outside }},
		{"host", "", here, func(to netip.Addr) netip.Addr { return s.sourceTo[to] }},
		{"neighbour", m.b.Netns, everywhere, func(netip.Addr) netip.Addr {
			if m.Backend == "nftables" { // that layout changes only necessary addresses
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
					testbed.RequireRefused(m.T, who.netns, protocol, testbed.At(to, p.Value))
					continue
				}
				seen := testbed.RequireAnswer(m.T, who.netns, protocol, testbed.At(to, p.Value), fmt.Sprint(p.To))
				require.Equal(m.T, who.seen(to).String(), seen, "%s: %s asks over %s at %s", p.Label, who.name, protocol, testbed.At(to, p.Value))
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
	m.T.Helper()
	require.Equal(m.T, s.b.String(), testbed.RequireAnswer(m.T, m.b.Netns, protocol, testbed.At(s.a, 80), "80"))
	require.Equal(m.T, s.a.String(), testbed.RequireAnswer(m.T, m.a.Netns, protocol, testbed.At(s.b, 80), "b"))
	require.Contains(m.T, []string{s.host.String(), s.second.String()},
		testbed.RequireAnswer(m.T, m.a.Netns, protocol, testbed.At(s.outside, 7000), "outside"))
}

// requireRules checks the rules of a protocol as text.
func (m *matrix) requireRules(protocol string, s side) {
	m.T.Helper()
	family, iptables, target := "ip", "iptables", s.a.String()
	if s.a.Is6() {
		family, iptables, target = "ip6", "ip6tables", "["+target+"]"
	}
	list, rule := iptables+" -t nat -S", "-p %s -m %[1]s --dport %d -j DNAT --to-destination "+target+":%d"
	switch {
	case m.Way == testbed.Native:
		list, rule = "nft list table "+family+" allocnet", `%s . %d comment "allocnet:net/`+m.Container(m.a)+`/eth0" : `+s.a.String()+" . %d"
	case m.Backend == "nftables":
		list, rule = "nft list table "+family+" cni_hostport", "%s dport %d dnat to "+target+":%d"
	}
	fields := strings.Fields(list)
	out, err := exec.Command(fields[0], fields[1:]...).Output()
	require.NoError(m.T, err, list)
	for _, p := range published() {
		if p.HostIP == "" || leads(p, s.host) || leads(p, s.second) || leads(p, s.loopback) {
			require.Contains(m.T, string(out), fmt.Sprintf(rule, protocol, p.Value, p.To), p.Label)
		}
	}
}
