package policy

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// walk decides on a packet as a packet filter does: by the first step that matches.
func walk(p *Policy, t Traffic, remote Remote, flow Flow) Decision {
	steps, fallback := p.Steps(t)
	for i := range steps {
		if s := &steps[i]; s.matchesPeer(remote) && s.matchesService(flow) {
			return Decision{s.Verdict, s.Rule}
		}
	}
	return Decision{fallback, byDefault}
}

func (s *Step) matchesPeer(remote Remote) bool {
	switch {
	case s.Selector != nil:
		return remote.Known && s.Selector.Matches(remote.Labels)
	case s.Allocation != "":
		return remote.Known && s.Allocation == remote.Allocation
	case s.OtherNetwork && s.Host:
		return remote.Host && !remote.Known && !remote.OwnNetwork
	case s.OtherNetwork:
		return remote.Known && !remote.HostPort && !remote.OwnNetwork
	case s.Unpublished:
		return !remote.HostPort && !(remote.Known && remote.OwnNetwork)
	case s.Host:
		return remote.Host && !remote.Known
	case s.World:
		return !remote.Known && !remote.Host && !contains(s.Except, remote.Addr)
	case len(s.Prefixes) > 0:
		return contains(s.Prefixes, remote.Addr)
	}
	return true
}

func (s *Step) matchesService(flow Flow) bool {
	return slices.ContainsFunc(s.Services, func(s Span) bool { return s.matches(flow) })
}

// universe draws random policies and packets from few values, so that rules overlap.
type universe struct{ *rand.Rand }

func pick[T any](u universe, list ...T) T { return list[u.IntN(len(list))] }

func (u universe) policy() *Policy {
	p := &Policy{}
	for _, preset := range []Preset{Isolated, EgressOnly, NoMetadata, NoPrivate, NoHost, PublishedOnly} {
		if u.IntN(8) == 0 {
			p.Presets = append(p.Presets, preset)
		}
	}
	p.Ingress, p.Egress = u.direction(), u.direction()
	return p
}

func (u universe) direction() *Direction {
	if u.IntN(10) == 0 {
		return nil
	}
	d := &Direction{Default: pick(u, "", Allow, Deny)}
	for range u.IntN(7) {
		r := Rule{Name: pick(u, "", "", "a", "b"), Action: pick(u, "", Allow, Deny, Deny)}
		for range u.IntN(4) {
			r.Peers = append(r.Peers, u.peer())
		}
		for range u.IntN(4) {
			r.Services = append(r.Services, u.service())
		}
		d.Rules = append(d.Rules, r)
	}
	return d
}

func (u universe) peer() Peer {
	switch u.IntN(7) {
	case 0:
		return Peer{Name: pick(u, nameHost, nameWorld, nameMetadata)}
	case 1:
		return Peer{Name: pick(u, nameHost, nameWorld)}
	case 2:
		return Peer{Allocation: pick(u, "one", "two")}
	case 3:
		return Peer{Selector: u.selector()}
	default:
		return Peer{CIDR: netip.MustParsePrefix(pick(u, "0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/30", "10.0.0.1/32", "10.0.0.2/31",
			"169.254.0.0/16", "169.254.169.254/32", "255.255.255.254/31", "255.255.255.255/32", "0.0.0.0/32",
			"::/0", "fd00::/8", "fd00::/127", "fd00::1/128", "fe80::/64", "fe80::/9", "fd00:ec2::254/128",
			"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"))}
	}
}

func (u universe) selector() *Selector {
	s := &Selector{}
	if u.IntN(2) == 0 {
		s.Labels = map[string]string{pick(u, "app", "tier"): pick(u, "x", "y")}
	}
	if u.IntN(2) == 0 {
		r := Requirement{Key: pick(u, "app", "tier"), Operator: pick(u, opIn, opNotIn, opExists, opDoesNotExist)}
		if r.Operator == opIn || r.Operator == opNotIn {
			r.Values = pick(u, []string{"x"}, []string{"y", "x"}, []string{""})
		}
		s.Expressions = []Requirement{r}
	}
	return s
}

func (u universe) service() Service {
	s := Service{Protocol: pick(u, "tcp", "tcp", "udp", "icmp", "icmpv6", "sctp")}
	switch s.Protocol {
	case "icmp", "icmpv6":
		if u.IntN(2) == 0 {
			kind := pick[uint8](u, 0, 8, 128, 255)
			s.Type = &kind
		}
	default:
		s.Ports = pick(u, "", "1", "80", "81", "80-81", "79-82", "81-90", "1-65535", "82-65535", "65535")
	}
	return s
}

func (u universe) flow() Flow {
	return Flow{
		Protocol: pick[uint8](u, protoTCP, protoTCP, protoUDP, protoSCTP, protoICMP, protoICMPv6, 47),
		Port:     pick[uint16](u, 0, 1, 8, 79, 80, 81, 82, 90, 91, 128, 65535),
	}
}

func (u universe) remote() Remote {
	r := Remote{Addr: netip.MustParseAddr(pick(u, "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "11.0.0.1", "0.0.0.0",
		"169.254.1.1", "169.254.169.254", "192.0.0.192", "168.63.129.16", "8.8.8.8", "255.255.255.254", "255.255.255.255",
		"fd00::", "fd00::1", "fd00::2", "fe80::1", "fe90::1", "2001:db8::1", "fd00:ec2::254", "fd20:ce::254", "::",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))}
	r.OwnNetwork, r.HostPort = u.IntN(2) == 0, u.IntN(4) == 0
	switch u.IntN(4) {
	case 0:
		r.Host = true
	case 1, 2:
		r.Known, r.Host = true, u.IntN(8) == 0
		r.Allocation = pick(u, "one", "two", "three")
		r.Labels = pick(u, nil, map[string]string{"app": "x"}, map[string]string{"app": "y", "tier": "x"}, map[string]string{"tier": ""})
	}
	return r
}

// requireSame checks that the steps decide as Decide does. Of equally specific rules with one
// verdict, either may be named.
func requireSame(t testing.TB, p *Policy, remote Remote, flow Flow) {
	t.Helper()
	for _, traffic := range []Traffic{Ingress, Egress} {
		want, got := p.Decide(traffic, remote, flow), walk(p, traffic, remote, flow)
		require.Equal(t, want, got, "%s %+v %+v by %s", traffic, remote, flow, asJSON{p})
	}
}

// asJSON is a policy that a message shows, encoded only if the message is needed.
type asJSON struct{ *Policy }

func (p asJSON) String() string {
	text, _ := json.Marshal(p.Policy)
	return string(text)
}

func TestStepsDecideAsDecideDoes(t *testing.T) {
	u := universe{rand.New(rand.NewPCG(1, 2))}
	verdicts := map[string]int{}
	policies := 2000
	if testing.Short() {
		policies = 400
	}
	for range policies {
		p := u.policy()
		require.NoError(t, p.Validate())
		for range 50 {
			remote, flow := u.remote(), u.flow()
			requireSame(t, p, remote, flow)
			d := p.Decide(Egress, remote, flow)
			verdicts[fmt.Sprint(d.Verdict, d.Rule == byDefault)]++
		}
	}
	for kind, count := range verdicts {
		require.Greater(t, count, policies/2, "decisions of the kind %q", kind)
	}
	require.Len(t, verdicts, 4)
}

// TestSamePolicies checks that the order and the grouping of rules does not change the canonical
// form, and that policies with one canonical form decide alike.
func TestSamePolicies(t *testing.T) {
	u := universe{rand.New(rand.NewPCG(3, 4))}
	for range 300 {
		p := u.policy()
		q := u.shuffled(p)
		require.Equal(t, string(p.Canonical()), string(q.Canonical()))
		for range 20 {
			remote, flow := u.remote(), u.flow()
			require.Equal(t, walk(p, Egress, remote, flow).Verdict, walk(q, Egress, remote, flow).Verdict)
		}
	}
}

// shuffled returns the policy with one rule for each peer, in another order.
func (u universe) shuffled(p *Policy) *Policy {
	q := &Policy{Presets: slices.Clone(p.Presets)}
	u.Shuffle(len(q.Presets), func(i, j int) { q.Presets[i], q.Presets[j] = q.Presets[j], q.Presets[i] })
	split := func(d *Direction) *Direction {
		if d == nil {
			return &Direction{}
		}
		out := &Direction{Default: d.Default}
		for _, r := range d.Rules {
			if len(r.Peers) == 0 {
				out.Rules = append(out.Rules, r, r)
			}
			for _, peer := range r.Peers {
				out.Rules = append(out.Rules, Rule{Name: "other", Action: r.action(), Peers: []Peer{peer}, Services: r.Services})
			}
		}
		u.Shuffle(len(out.Rules), func(i, j int) { out.Rules[i], out.Rules[j] = out.Rules[j], out.Rules[i] })
		return out
	}
	q.Ingress, q.Egress = split(p.Ingress), split(p.Egress)
	return q
}

func FuzzSteps(f *testing.F) {
	f.Add([]byte("0123456789abcdef"))
	f.Fuzz(func(t *testing.T, seed []byte) {
		seed = append(seed, make([]byte, 16)...)
		u := universe{rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed), binary.LittleEndian.Uint64(seed[8:])))}
		p := u.policy()
		for range 20 {
			requireSame(t, p, u.remote(), u.flow())
		}
	})
}
