package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// TestPolicyRandom compares the fate of real packets with policy.Decide, while random policies
// and labels of allocations on routed networks and on bridges change. SEED repeats a run.
func TestPolicyRandom(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	r := newRandomPolicies(h, testbed.CampaignSeed(t))
	rounds := testbed.CampaignSize(16, 400)
	total, answered := 0, 0
	var kept []*flow // tracked connections
	for i := range rounds {
		changes := r.change()
		r.require(kept, i, changes)
		flows := r.flows(250)
		r.require(flows, i, changes)
		closeFlows(kept)
		kept = nil
		for _, f := range flows {
			if total++; f.answered {
				answered++
			}
			if f.protocol == "udp" {
				kept = append(kept, f)
			} else {
				closeFlows([]*flow{f})
			}
		}
	}
	closeFlows(kept)
	t.Logf("%d flows, %d of them answered", total, answered)
	require.Greater(t, answered, total/10)
	require.Less(t, answered, total*9/10)
	h.TearDown(r.list()...)
}

// randomPolicies are allocations with random policies and labels.
type randomPolicies struct {
	*host
	*rand.Rand
	allocs map[string]*random
	order  []*random
}

// random is an allocation with its current policy and labels.
type random struct {
	configurator.Allocation
	network   *policy.Policy // of its network
	addresses [2]netip.Addr  // IPv4 and IPv6
	gateways  [2]netip.Addr
	subnets   [2]netip.Prefix
}

func (r *randomPolicies) list() (all []configurator.Allocation) {
	for _, a := range r.order {
		all = append(all, a.Allocation)
	}
	return all
}

// The networks of TestPolicyRandom: two that are routed, and two bridges.
var randomNetworks = []struct {
	name, main string
	families   testbed.Families
}{
	{"routed", "ptp", testbed.Families{V4: "10.99.1.0/24", V6: "fd00:99:1::/64"}},
	{"routed2", "ptp", testbed.Families{V4: "10.99.2.0/24", V6: "fd00:99:2::/64"}},
	{"bridged", "bridge", testbed.Families{V4: "10.99.3.0/24", V6: "fd00:99:3::/64"}},
	{"bridged2", "bridge", testbed.Families{V4: "10.99.4.0/24", V6: "fd00:99:4::/64"}},
}

// The addresses of a metadata service, which the external machine has.
var (
	metadata4 = netip.MustParseAddr("169.254.169.254")
	metadata6 = netip.MustParseAddr("fd00:ec2::254")
)

// connectOutside makes the external machine reach the allocations, and gives it the addresses of a
// metadata service.
func (h *host) connectOutside() {
	h.T.Helper()
	testbed.SetSysctls(h.T, "", testbed.Quick)
	for _, c := range []string{
		"ip -n outside route add 10.99.0.0/16 via " + testhost.Host4.Addr().String(),
		"ip -n outside -6 route add fd00:99::/32 via " + testhost.Host6.Addr().String(),
		"ip -n outside address add " + metadata4.String() + "/32 dev eth0",
		"ip -n outside -6 address add " + metadata6.String() + "/128 dev eth0 nodad",
		"ip route replace " + metadata4.String() + "/32 dev " + testhost.Wire,
		"ip -6 route replace " + metadata6.String() + "/128 dev " + testhost.Wire,
	} {
		require.NoError(h.T, testbed.Command(strings.Fields(c)[0], strings.Fields(c)[1:]...), c)
	}
	h.T.Cleanup(func() {
		require.NoError(h.T, testbed.Command("ip", "route", "del", metadata4.String()+"/32"))
		require.NoError(h.T, testbed.Command("ip", "-6", "route", "del", metadata6.String()+"/128"))
	})
	answerAll(h.T, h.Outside.Path(), randomPorts...)
	answerAll(h.T, "", randomPorts...)
}

var randomPorts = []int{80, 81, 90}

func newRandomPolicies(h *host, seed uint64) *randomPolicies {
	h.T.Helper()
	r := &randomPolicies{host: h, Rand: rand.New(rand.NewPCG(seed, 0)), allocs: map[string]*random{}}
	h.connectOutside()
	for i, n := range randomNetworks {
		plugins := policed(n.main, n.families)
		if n.main == "bridge" {
			plugins[1]["bridge"] = fmt.Sprint("br-test", i)
		}
		var of *policy.Policy
		if i%2 == 1 {
			of = &policy.Policy{Presets: []policy.Preset{policy.NoHost}, Egress: &policy.Direction{Rules: []policy.Rule{{Action: policy.Deny, Services: []policy.Service{{Protocol: "udp", Ports: "90"}}}}}}
			plugins[len(plugins)-1]["policy"] = of
		}
		h.Network(n.name, plugins...)
		for j := range 2 {
			id := fmt.Sprint("a", len(r.order))
			a := &random{Allocation: h.Alloc(id), network: of}
			a.Networks = []string{n.name}
			a.Ports = []portmap.Port{{Value: 8000 + len(r.order), To: 80, Protocols: []string{"tcp", "udp"}}}
			if j == 0 { // others begin without a policy
				a.Policy, a.Labels = r.policy(), r.labels()
			}
			r.allocs[id], r.order = a, append(r.order, a)
			h.InNew(a.Allocation, func() {
				testbed.SetSysctls(h.T, a.Netns, testbed.Quick)
				answerAll(h.T, a.Netns, randomPorts...)
			})
			s := h.SetUp(a.Allocation)
			a.addresses = [2]netip.Addr{netip.MustParseAddr(s.Address), netip.MustParseAddr(s.AddressIPv6)}
			for k, subnet := range []string{n.families.V4, n.families.V6} {
				a.subnets[k] = netip.MustParsePrefix(subnet)
				a.gateways[k] = a.subnets[k].Addr().Next()
			}
		}
	}
	return r
}

// change updates one to three allocations, and returns what has changed.
func (r *randomPolicies) change() (text []string) {
	for range 1 + r.IntN(3) {
		a := r.order[r.IntN(len(r.order))]
		c := configurator.Change{}
		if r.IntN(3) > 0 {
			c.Policy = r.policy()
			a.Policy = c.Policy
		}
		if r.IntN(2) == 0 {
			c.Labels = map[string]*string{}
			for key := range a.Labels {
				c.Labels[key] = nil
			}
			a.Labels = r.labels()
			for key, value := range a.Labels {
				c.Labels[key] = &value
			}
		}
		_, err := r.Update(r.Context(), a.ID, c)
		require.NoError(r.T, err)
		p, err := json.Marshal(c.Policy)
		require.NoError(r.T, err)
		text = append(text, fmt.Sprintf("%s: policy %s labels %v", a.ID, p, a.Labels))
	}
	return text
}

// require requires that flows fare as the policies of both ends decide now. Those with a socket are
// sent again.
func (r *randomPolicies) require(flows []*flow, round int, changes []string) {
	r.T.Helper()
	for _, f := range flows {
		f.want, f.answered = f.decide(), false
	}
	open := len(flows) > 0 && flows[0].fd != 0
	if open {
		for _, f := range flows {
			for f.read() { // an answer to a packet that was sent twice
			}
			require.NoError(r.T, f.send())
		}
	} else {
		r.open(flows)
	}
	awaitAnswers(r.T, flows)
	for _, f := range flows {
		if f.answered != f.want {
			require.Fail(r.T, "a packet fares otherwise than the policies decide", "round %d, sent again %v\n%s: answered %v\n%s\nbefore:\n%s",
				round, open, f, f.answered, f.why(), strings.Join(changes, "\n"))
		}
	}
}

func (r *randomPolicies) labels() map[string]string {
	return pick(r.Rand, nil, map[string]string{"app": "x"}, map[string]string{"app": "y", "tier": "x"}, map[string]string{"tier": ""})
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

func (r *randomPolicies) policy() *policy.Policy {
	p := &policy.Policy{Ingress: r.direction(), Egress: r.direction()}
	for _, preset := range []policy.Preset{policy.Isolated, policy.EgressOnly, policy.NoMetadata, policy.NoPrivate, policy.NoHost, policy.NoHost, policy.PublishedOnly, policy.PublishedOnly} {
		if r.IntN(10) == 0 {
			p.Presets = append(p.Presets, preset)
		}
	}
	require.NoError(r.T, p.Validate())
	return p
}

func (r *randomPolicies) direction() *policy.Direction {
	if r.IntN(8) == 0 {
		return nil
	}
	d := &policy.Direction{Default: pick(r.Rand, policy.Allow, policy.Deny)}
	for i := range r.IntN(7) {
		rule := policy.Rule{Name: fmt.Sprint("rule", i), Action: pick(r.Rand, policy.Allow, policy.Deny)}
		for range r.IntN(4) {
			rule.Peers = append(rule.Peers, r.peer())
		}
		for range r.IntN(5) {
			rule.Services = append(rule.Services, r.service())
		}
		d.Rules = append(d.Rules, rule)
	}
	return d
}

func (r *randomPolicies) peer() policy.Peer {
	switch r.IntN(7) {
	case 0, 1:
		return policy.Peer{Name: pick(r.Rand, "host", "world", "metadata")}
	case 2:
		return policy.Peer{Allocation: fmt.Sprint("a", r.IntN(10))}
	case 3, 4:
		return policy.Peer{Selector: r.selector()}
	}
	bits := pick(r.Rand, "0.0.0.0/0", "10.99.0.0/16", "10.99.0.0/22", "10.99.1.0/24", "10.99.3.0/24", "10.99.3.2/31", "10.99.2.2/32", "192.0.2.0/24",
		"192.0.2.2/32", "169.254.0.0/16", "::/0", "fd00::/8", "fd00:99:1::/64", "fd00:99:2::2/128", "fd00:99:3::/64", "2001:db8::/32", "2001:db8::2/128", "127.0.0.0/8")
	return policy.Peer{CIDR: netip.MustParsePrefix(bits)}
}

func (r *randomPolicies) selector() *policy.Selector {
	s := &policy.Selector{}
	if r.IntN(2) == 0 {
		s.Labels = map[string]string{pick(r.Rand, "app", "tier"): pick(r.Rand, "x", "y")}
	}
	if r.IntN(2) == 0 {
		one := policy.Requirement{Key: pick(r.Rand, "app", "tier"), Operator: pick(r.Rand, "In", "NotIn", "Exists", "DoesNotExist")}
		if strings.HasSuffix(one.Operator, "In") {
			one.Values = pick(r.Rand, []string{"x"}, []string{"y", "x"}, []string{""})
		}
		s.Expressions = []policy.Requirement{one}
	}
	return s
}

func (r *randomPolicies) service() policy.Service {
	s := policy.Service{Protocol: pick(r.Rand, "tcp", "udp", "udp", "icmp", "icmpv6", "sctp")}
	if strings.HasPrefix(s.Protocol, "icmp") {
		if r.IntN(2) == 0 {
			kind := pick(r.Rand, uint8(8), 128, 0)
			s.Type = &kind
		}
		return s
	}
	s.Ports = pick(r.Rand, "", "80", "81", "80-81", "81-90", "1-65535", "82-65535")
	return s
}

// ends are the senders and receivers of a flow, as the policies see them.
type ends struct {
	from, to         *random // nil if it is no allocation
	source, receiver policy.Remote
	service          policy.Flow
}

func remoteOf(a *random, address netip.Addr, host bool) policy.Remote {
	if a == nil {
		return policy.Remote{Addr: address, Host: host}
	}
	return policy.Remote{Addr: address, Known: true, Allocation: a.ID, Labels: a.Labels}
}

func (e *ends) decisions() (list []policy.Decision) {
	if e.from != nil {
		e.receiver.Labels = nil
		e.receiver.OwnNetwork = slices.ContainsFunc(e.from.subnets[:], func(p netip.Prefix) bool { return p.Contains(e.receiver.Addr) })
		if e.to != nil {
			e.receiver.Labels = e.to.Labels
		}
		list = append(list, e.from.Policy.Decide(policy.Egress, e.receiver, e.service), e.from.network.Decide(policy.Egress, e.receiver, e.service))
	}
	if e.to != nil {
		e.source.Labels = nil
		if e.from != nil {
			e.source.Labels = e.from.Labels
			e.source.OwnNetwork = slices.ContainsFunc(e.to.subnets[:], func(p netip.Prefix) bool { return p.Contains(e.source.Addr) })
		}
		list = append(list, e.to.Policy.Decide(policy.Ingress, e.source, e.service), e.to.network.Decide(policy.Ingress, e.source, e.service))
	}
	return list
}

// decide returns whether the policies of both ends allow the flow.
func (f *flow) decide() bool {
	return !slices.ContainsFunc(f.ends.decisions(), func(d policy.Decision) bool { return d.Verdict == policy.Deny })
}

func (f *flow) why() string {
	var text []string
	for _, a := range []*random{f.ends.from, f.ends.to} {
		if a != nil {
			p, _ := json.Marshal(a.Policy)
			text = append(text, fmt.Sprintf("%s: %s labels %v", a.ID, p, a.Labels))
		}
	}
	return fmt.Sprintf("decisions %v\n%s", f.ends.decisions(), strings.Join(text, "\n"))
}

// flows returns random flows, with new sockets.
func (r *randomPolicies) flows(n int) (list []*flow) {
	for len(list) < n {
		if f := r.flow(); f != nil {
			list = append(list, f)
		}
	}
	return list
}

var protocolNumbers = map[string][2]uint8{
	"tcp": {unix.IPPROTO_TCP, unix.IPPROTO_TCP}, "udp": {unix.IPPROTO_UDP, unix.IPPROTO_UDP}, "sctp": {unix.IPPROTO_SCTP, unix.IPPROTO_SCTP},
	"icmp": {unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6},
}

func (r *randomPolicies) flow() *flow {
	v6 := r.IntN(2)
	f := &flow{protocol: pick(r.Rand, "tcp", "udp", "udp", "sctp", "icmp")}
	e := &f.ends
	e.service = policy.Flow{Protocol: protocolNumbers[f.protocol][v6], Port: uint16(pick(r.Rand, randomPorts...))}
	if f.protocol == "icmp" {
		e.service.Port = [2]uint16{8, 128}[v6]
	}
	e.to = r.order[r.IntN(len(r.order))]
	hostAddress := [2]netip.Addr{testhost.Host4.Addr(), testhost.Host6.Addr()}[v6]
	switch r.IntN(6) {
	case 0: // to the host
		e.from, e.to = e.to, nil
		to := pick(r.Rand, hostAddress, e.from.gateways[v6])
		e.receiver = remoteOf(nil, to, true)
		f.name, f.netns, f.to = e.from.ID+" to the host", e.from.Netns, netip.AddrPortFrom(to, e.service.Port)
		return f
	case 1: // to the world
		e.from, e.to = e.to, nil
		to := pick(r.Rand, [][2]netip.Addr{{testhost.Outside4.Addr(), testhost.Outside6.Addr()}, {metadata4, metadata6}}...)[v6]
		e.receiver = remoteOf(nil, to, false)
		f.name, f.netns, f.to = e.from.ID+" to the world", e.from.Netns, netip.AddrPortFrom(to, e.service.Port)
		return f
	case 2: // from the host
		e.source = remoteOf(nil, e.to.gateways[v6], true)
		f.name = "the host to " + e.to.ID
	case 3: // from the world
		address := pick(r.Rand, [][2]netip.Addr{{testhost.Outside4.Addr(), testhost.Outside6.Addr()}, {metadata4, metadata6}}...)[v6]
		e.source, f.source = remoteOf(nil, address, false), address
		f.name, f.netns = "the world to "+e.to.ID, r.Outside.Path()
	default:
		for e.from = e.to; e.from == e.to; {
			e.from = r.order[r.IntN(len(r.order))]
		}
		e.source = remoteOf(e.from, e.from.addresses[v6], false)
		f.name, f.netns = e.from.ID+" to "+e.to.ID, e.from.Netns
	}
	e.receiver = remoteOf(e.to, e.to.addresses[v6], false)
	f.to = netip.AddrPortFrom(e.to.addresses[v6], e.service.Port)
	if (f.protocol == "udp" || f.protocol == "tcp") && r.IntN(3) == 0 { // through the host port
		e.service.Port, e.receiver.HostPort, e.source.HostPort = 80, true, true
		to := hostAddress
		if f.netns == "" && v6 == 0 {
			to = netip.MustParseAddr("127.0.0.1")
		}
		f.name, f.to = f.name+" through its host port", netip.AddrPortFrom(to, uint16(e.to.Ports[0].Value))
	}
	return f
}

// open opens flows, from each namespace at once.
func (h *host) open(flows []*flow) {
	h.T.Helper()
	byNetns := map[string][]*flow{}
	for _, f := range flows {
		byNetns[f.netns] = append(byNetns[f.netns], f)
	}
	for _, netns := range slices.Sorted(maps.Keys(byNetns)) {
		testbed.Within(h.T, netns, func() error {
			for _, f := range byNetns[netns] {
				if err := f.open(); err != nil {
					return fmt.Errorf("%s: %w", f, err)
				}
			}
			return nil
		})
	}
}
