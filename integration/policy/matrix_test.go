package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// TestPolicyMatrix sends real packets of every protocol and family between an allocation with a
// policy and every kind of peer, in both directions: from before the first packet, after an update,
// after a flush of the ruleset, and after a process was killed that updates policies.
func TestPolicyMatrix(t *testing.T) {
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, func(t *testing.T, main string) {
		m := newPolicyMatrix(t, main)
		m.require("before the first packet", 80)
		m.update(81)
		m.require("after an update", 81)
		privhost.FlushRuleset(t)
		_, err := m.Repair(m.Context())
		require.NoError(t, err)
		m.require("after a flush and a repair", 81)
		for range 3 {
			m.KillLoop(m.subject, 50*time.Millisecond)
			_, err = m.Recover(m.Context())
			require.NoError(t, err)
			m.update(80)
			m.require("after a kill", 80)
		}
		m.TearDown(m.all...)
	})
}

// policyMatrix are the subject and its peers, each of another kind. One of them, the stranger, is
// permitted by no rule.
type policyMatrix struct {
	*host
	subject configurator.Allocation
	all     []configurator.Allocation
	at      map[string][2]netip.Addr
	netns   map[string]string
}

// matrixPolicy permits one port with every peer, and echo requests with port 80. Ingress from the host
// can only be denied.
func matrixPolicy(port int) *policy.Policy {
	service := func(port int) (list []policy.Service) {
		for _, protocol := range []string{"tcp", "udp", "sctp"} {
			list = append(list, policy.Service{Protocol: protocol, Ports: fmt.Sprint(port)})
		}
		if port == 80 {
			list = append(list, policy.Service{Protocol: "icmp", Type: new(uint8(8))}, policy.Service{Protocol: "icmpv6", Type: new(uint8(128))})
		}
		return list
	}
	peers := []policy.Peer{
		{Allocation: "by-id"}, {Selector: &policy.Selector{Labels: map[string]string{"app": "peer"}}},
		{CIDR: netip.MustParsePrefix("10.99.3.0/24")}, {CIDR: netip.MustParsePrefix("fd00:99:3::/64")},
		{Name: "host"}, {Name: "world"}, {Name: "metadata"},
	}
	rules := func() []policy.Rule { return []policy.Rule{{Peers: peers, Services: service(port)}} }
	p := &policy.Policy{Ingress: &policy.Direction{Default: policy.Deny, Rules: rules()}, Egress: &policy.Direction{Default: policy.Deny, Rules: rules()}}
	p.Ingress.Rules = append(p.Ingress.Rules, policy.Rule{Action: policy.Deny, Peers: []policy.Peer{{Name: "host"}}, Services: service(161 - port)})
	return p
}

func newPolicyMatrix(t *testing.T, main string) *policyMatrix {
	h := newHost(t, configurator.EngineNative)
	h.connectOutside()
	for i, n := range randomNetworks {
		plugins := policed(n.main, n.families)
		if n.main == "bridge" {
			plugins[1]["bridge"] = fmt.Sprint("br-test", i)
		}
		h.Network(n.name, plugins...)
	}
	m := &policyMatrix{host: h, netns: map[string]string{"host": "", "outside": h.Outside.Path(), "metadata": h.Outside.Path()}}
	m.at = map[string][2]netip.Addr{
		"host": {testhost.Host4.Addr(), testhost.Host6.Addr()}, "outside": {testhost.Outside4.Addr(), testhost.Outside6.Addr()}, "metadata": {metadata4, metadata6},
	}
	own := map[string]string{"ptp": "routed", "bridge": "bridged"}[main]
	for _, one := range []struct{ id, network string }{
		{policyUpdateLoop, own}, {"by-id", own}, {"by-label", "routed2"}, {"by-cidr", "bridged"}, {"stranger", "routed2"}, {"neighbour", own},
	} {
		a := h.Alloc(one.id)
		a.Networks = []string{one.network}
		switch one.id {
		case policyUpdateLoop:
			a.Policy = matrixPolicy(80)
			a.Ports = []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp", "udp"}}, {Value: 8081, To: 81, Protocols: []string{"tcp", "udp"}}}
			m.subject = a
		case "by-label":
			a.Labels = map[string]string{"app": "peer"}
		case "neighbour": // on a bridge it is in the permitted network
			if main == "bridge" {
				continue
			}
		}
		testbed.SetSysctls(t, a.Netns, testbed.Quick)
		answerAll(t, a.Netns, 80, 81)
		s := h.SetUp(a)
		m.at[a.ID] = [2]netip.Addr{netip.MustParseAddr(s.Address), netip.MustParseAddr(s.AddressIPv6)}
		m.netns[a.ID] = a.Netns
		m.all = append(m.all, a)
	}
	return m
}

func (m *policyMatrix) update(port int) {
	m.T.Helper()
	_, err := m.Update(m.Context(), m.subject.ID, configurator.Change{Policy: matrixPolicy(port)})
	require.NoError(m.T, err)
}

// require requires that only a port is reached, and an echo request is answered if it is 80.
func (m *policyMatrix) require(when string, open int) {
	m.T.Helper()
	var flows []*flow
	for peer := range m.at {
		if peer == m.subject.ID {
			continue
		}
		for family := range 2 {
			for _, protocol := range probed {
				for _, port := range []int{80, 81} {
					if protocol == "icmp" && port == 81 {
						continue // it has no ports
					}
					want := port == open && peer != "stranger" && peer != "neighbour"
					flows = append(flows, m.between(peer, family, protocol, port, want)...)
				}
			}
		}
	}
	require.Empty(m.T, m.differences(flows), when)
	m.T.Logf("%s: %d flows", when, len(flows))
}

// between returns the flows from the subject to a peer, and from the peer to the subject, also
// through its host port.
func (m *policyMatrix) between(peer string, family int, protocol string, port int, want bool) (flows []*flow) {
	subject := m.at[m.subject.ID][family]
	target := m.at[peer][family]
	from := netip.Addr{}
	if peer == "outside" || peer == "metadata" {
		from = target
	}
	flows = append(flows,
		&flow{name: "to " + peer, netns: m.subject.Netns, protocol: protocol, to: netip.AddrPortFrom(target, uint16(port)), want: want},
		&flow{name: "from " + peer, netns: m.netns[peer], source: from, protocol: protocol, to: netip.AddrPortFrom(subject, uint16(port)), want: want})
	if protocol == "tcp" || protocol == "udp" {
		flows = append(flows, &flow{
			name: "from " + peer + " through the host port", netns: m.netns[peer], source: from, protocol: protocol,
			to: netip.AddrPortFrom(m.at["host"][family], uint16(8000+port)), want: want,
		})
		if peer == "host" && family == 0 {
			flows = append(flows, &flow{name: "from the loopback", protocol: protocol, to: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(8000+port)), want: want})
		}
	}
	if strings.HasPrefix(protocol, "icmp") && peer == "host" {
		flows = append(flows, &flow{name: "to the gateway", netns: m.subject.Netns, protocol: protocol, to: netip.AddrPortFrom(gatewayOf(subject), 0), want: want})
	}
	return flows
}

func gatewayOf(a netip.Addr) netip.Addr {
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(a, bits).Masked().Addr().Next()
}
