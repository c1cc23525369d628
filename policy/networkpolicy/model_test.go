package networkpolicy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/policy"
)

// The model evaluates documents as the reference of NetworkPolicy v1 describes it, without
// a translation.

func (s *selector) selects(labels map[string]string) bool {
	for key, value := range s.MatchLabels {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	for _, r := range s.MatchExpressions {
		value, ok := labels[r.Key]
		in := ok && slices.Contains(r.Values, value)
		if holds := map[string]bool{"In": in, "NotIn": !in, "Exists": ok, "DoesNotExist": !ok}[r.Operator]; !holds {
			return false
		}
	}
	return true
}

// end is the other end of a packet: a pod, or an address without one.
type end struct {
	pod  *Pod
	addr netip.Addr
}

func (p *peer) includes(namespace string, e end) bool {
	if p.IPBlock != nil {
		in := func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(e.addr) }
		return in(p.IPBlock.CIDR) && !slices.ContainsFunc(p.IPBlock.Except, in)
	}
	switch {
	case e.pod == nil || p.PodSelector != nil && !p.PodSelector.selects(e.pod.Labels):
		return false
	case p.NamespaceSelector != nil:
		return p.NamespaceSelector.selects(e.pod.NamespaceLabels)
	default:
		return e.pod.Namespace == namespace
	}
}

// includes reports whether the port is that of a packet whose receiver has the named ports.
func (p *port) includes(named []Port, f policy.Flow) bool {
	name := "tcp"
	if p.Protocol != nil {
		name = strings.ToLower(*p.Protocol)
	}
	switch {
	case map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132}[name] != f.Protocol:
		return false
	case p.Port == nil:
		return true
	case p.Port.name != "":
		return slices.Contains(named, Port{p.Port.name, name, f.Port})
	case p.EndPort != nil:
		return p.Port.number <= f.Port && f.Port <= *p.EndPort
	default:
		return p.Port.number == f.Port
	}
}

// allows decides on a packet of a pod.
func allows(documents []document, pod *Pod, traffic policy.Traffic, e end, f policy.Flow) bool {
	isolated, allowed := false, false
	for i := range documents {
		d := &documents[i]
		if d.Metadata.Namespace != pod.Namespace || !d.Spec.PodSelector.selects(pod.Labels) {
			continue
		}
		applies := slices.Contains(d.Spec.PolicyTypes, map[policy.Traffic]string{policy.Ingress: "Ingress", policy.Egress: "Egress"}[traffic])
		if len(d.Spec.PolicyTypes) == 0 {
			applies = traffic == policy.Ingress || len(d.Spec.Egress) > 0
		}
		if !applies {
			continue
		}
		isolated = true
		rules := d.Spec.Egress
		if traffic == policy.Ingress {
			rules = nil
			for _, r := range d.Spec.Ingress {
				rules = append(rules, egressRule{To: r.From, Ports: r.Ports})
			}
		}
		named := pod.Ports
		if traffic == policy.Egress && e.pod != nil {
			named = e.pod.Ports
		} else if traffic == policy.Egress {
			named = nil
		}
		for _, r := range rules {
			ports := func(named []Port) bool {
				return len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p port) bool { return p.includes(named, f) })
			}
			allowed = allowed || len(r.To) == 0 && ports(named) || slices.ContainsFunc(r.To, func(p peer) bool {
				if p.IPBlock != nil && traffic == policy.Egress { // whether or not a pod has the address
					return p.includes(d.Metadata.Namespace, e) && ports(nil)
				}
				return p.includes(d.Metadata.Namespace, e) && ports(named)
			})
		}
	}
	return !isolated || allowed
}

// universe draws documents as JSON.
type universe struct{ *rand.Rand }

func (u universe) pick(list ...string) string { return list[u.IntN(len(list))] }

// list returns up to n elements in brackets.
func (u universe) list(n int, element func() string) string {
	var all []string
	for range u.IntN(n + 1) {
		all = append(all, element())
	}
	return "[" + strings.Join(all, ",") + "]"
}

func (u universe) selector(key, one, two string) string {
	return u.pick(`{}`, `{"matchLabels":{"`+key+`":"`+one+`"}}`, `{"matchLabels":{"`+key+`":"`+two+`"}}`,
		`{"matchExpressions":[{"key":"`+key+`","operator":"NotIn","values":["`+one+`"]}]}`,
		`{"matchExpressions":[{"key":"`+key+`","operator":"In","values":["`+one+`","`+two+`"]}]}`,
		`{"matchExpressions":[{"key":"`+key+`","operator":"DoesNotExist"}]}`, `{"matchExpressions":[{"key":"`+key+`","operator":"Exists"}]}`)
}

func (u universe) pods() string { return u.selector("app", "a", "b") }

func (u universe) namespaces() string {
	return u.pick(u.selector("example.com/team", "x", "y"), u.selector(nameKey, "shop", "lab"))
}

func (u universe) peer() string {
	switch u.IntN(4) {
	case 0:
		return `{"podSelector":` + u.pods() + `}`
	case 1:
		return `{"namespaceSelector":` + u.namespaces() + `}`
	case 2:
		return `{"podSelector":` + u.pods() + `,"namespaceSelector":` + u.namespaces() + `}`
	default:
		return u.pick(`{"ipBlock":{"cidr":"0.0.0.0/0","except":["10.0.0.0/30","9.0.0.0/8"]}}`, `{"ipBlock":{"cidr":"10.0.0.0/29","except":["10.0.0.2/31"]}}`,
			`{"ipBlock":{"cidr":"10.0.0.3/32"}}`, `{"ipBlock":{"cidr":"10.0.0.0/31","except":["10.0.0.0/32","10.0.0.1/32"]}}`, `{"ipBlock":{"cidr":"fd00::/8"}}`)
	}
}

func (u universe) port() string {
	return u.pick(`{}`, `{"port":80}`, `{"port":80,"endPort":82,"protocol":"TCP"}`, `{"protocol":"UDP"}`, `{"protocol":"UDP","port":53}`,
		`{"port":"http"}`, `{"port":"none"}`, `{"port":"dns"}`, `{"port":"dns","protocol":"UDP"}`, `{"protocol":"SCTP","port":81}`)
}

func (u universe) document() []byte {
	rule := func(peers string) func() string {
		return func() string { return `{"` + peers + `":` + u.list(2, u.peer) + `,"ports":` + u.list(2, u.port) + `}` }
	}
	return []byte(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p","namespace":"` + u.pick("shop", "lab") + `"},"spec":{
		"podSelector":` + u.pods() + `,"policyTypes":` + u.pick(`null`, `[]`, `["Ingress"]`, `["Egress"]`, `["Ingress","Egress"]`) + `,
		"ingress":` + u.list(2, rule("from")) + `,"egress":` + u.list(2, rule("to")) + `}}`)
}

var modelPorts = []Port{{"http", "tcp", 80}, {"http", "tcp", 81}, {"http", "tcp", 8080}, {"dns", "udp", 53}, {"dns", "tcp", 83}}

func (u universe) pod() *Pod {
	p := &Pod{Namespace: u.pick("shop", "lab", "dev"), Labels: map[string]string{}, NamespaceLabels: map[string]string{}, PeerPorts: modelPorts}
	for _, port := range modelPorts {
		if u.IntN(2) == 0 {
			p.Ports = append(p.Ports, port)
		}
	}
	p.NamespaceLabels[nameKey] = p.Namespace
	if app := u.pick("", "a", "b", "c"); app != "" {
		p.Labels["app"] = app
	}
	if p.Namespace != "dev" {
		p.NamespaceLabels["example.com/team"] = map[string]string{"shop": "x", "lab": "y"}[p.Namespace]
	}
	return p
}

// TestModel compares the translation of random documents with the model.
func TestModel(t *testing.T) {
	u := universe{rand.New(rand.NewPCG(7, 8))}
	count := map[bool]int{}
	for range 1500 {
		var data [][]byte
		var documents []document
		for range u.IntN(4) {
			data = append(data, u.document())
			d, err := decodeOne(data[len(data)-1], document{})
			require.NoError(t, err)
			documents = append(documents, d)
		}
		set, err := Parse(data...)
		require.NoError(t, err)
		pod := u.pod()
		p, err := set.For(*pod)
		require.NoError(t, err)
		for range 20 {
			e := end{addr: netip.MustParseAddr(u.pick("10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.8", "9.1.1.1", "8.8.8.8", "fd00::1", "2001:db8::1"))}
			r := policy.Remote{Addr: e.addr}
			if u.IntN(2) == 0 {
				e.pod = u.pod()
				r.Known = true
				r.Labels, err = e.pod.AllocationLabels()
				require.NoError(t, err)
			}
			f := flow(t, u.pick("tcp/80", "tcp/81", "tcp/83", "tcp/8080", "udp/53", "udp/80", "sctp/81", "icmp/8", "gre"))
			for _, traffic := range []policy.Traffic{policy.Ingress, policy.Egress} {
				want := allows(documents, pod, traffic, e, f)
				got := p.Decide(traffic, r, f)
				require.Equal(t, want, got.Verdict == policy.Allow, "%s %+v with %+v %+v: %+v by %s", traffic, pod, r, f, got, fmt.Sprintf("%s", data))
				if len(data) > 0 {
					count[want]++
				}
			}
		}
	}
	require.Greater(t, count[true], 5000)
	require.Greater(t, count[false], 5000)
}
