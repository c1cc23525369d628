package networkpolicy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/policy"
)

// doc returns a document of the namespace shop with a spec.
func doc(spec string) []byte {
	return []byte(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p","namespace":"shop","uid":"x","creationTimestamp":null},
		"spec":` + spec + `,"status":{}}`)
}

// The pods of the tests. Namespace shop has the label team=a, namespace lab the labels
// team=b and example.com/env=test.
func pod(namespace, app string) Pod {
	labels := map[string]map[string]string{"shop": {"team": "a"}, "lab": {"team": "b", "example.com/env": "test"}}
	return Pod{Namespace: namespace, NamespaceLabels: labels[namespace], Labels: map[string]string{"app": app, "x": "y"},
		Ports: namedPorts[app], PeerPorts: slices.Concat(namedPorts["web"], namedPorts["api"], namedPorts["db"])}
}

// namedPorts are the named ports of the pods, by their label app.
var namedPorts = map[string][]Port{
	"web": {{"http", "tcp", 80}},
	"api": {{"http", "tcp", 81}, {"http", "tcp", 82}, {"http", "udp", 83}},
	"db":  {{"http", "tcp", 8080}, {"dns", "udp", 53}},
}

// remote returns a peer: "NAMESPACE/APP" for a pod, "alloc" for an allocation that is not a
// pod, "host", or an address.
func remote(t *testing.T, text string) policy.Remote {
	t.Helper()
	r := policy.Remote{Addr: netip.MustParseAddr("10.88.0.9")}
	switch namespace, app, isPod := strings.Cut(text, "/"); {
	case text == "host":
		r.Host = true
	case text == "alloc":
		r.Known, r.Labels = true, map[string]string{"app": "db"}
	case isPod:
		p := pod(namespace, app)
		labels, err := p.AllocationLabels()
		require.NoError(t, err)
		r.Known, r.Labels = true, labels
	default:
		r.Addr = netip.MustParseAddr(text)
	}
	return r
}

// flow parses "tcp/80", "icmp" and the like.
func flow(t *testing.T, text string) policy.Flow {
	t.Helper()
	var f policy.Flow
	name, port, _ := strings.Cut(text, "/")
	f.Protocol = map[string]uint8{"icmp": 1, "tcp": 6, "udp": 17, "sctp": 132, "gre": 47}[name]
	require.NotZero(t, f.Protocol)
	if port != "" {
		_, err := fmt.Sscan(port, &f.Port)
		require.NoError(t, err)
	}
	return f
}

func TestSemantics(t *testing.T) {
	for name, c := range map[string]struct {
		pod           string // shop/db if empty
		documents     [][]byte
		allowed, deny []string // "ingress|egress PEER SERVICE"
	}{
		"no document": {
			allowed: []string{"ingress shop/web tcp/80", "egress 8.8.8.8 icmp"},
		},
		"a document for other pods": {
			documents: [][]byte{doc(`{"podSelector":{"matchLabels":{"app":"web"}},"policyTypes":["Ingress","Egress"]}`)},
			allowed:   []string{"ingress shop/web tcp/80", "egress 8.8.8.8 udp/53"},
		},
		"a document of another namespace": {
			pod: "lab/db", documents: [][]byte{doc(`{"podSelector":{}}`)},
			allowed: []string{"ingress shop/web tcp/80"},
		},
		"an empty podSelector selects all pods, ingress is the default type": {
			documents: [][]byte{doc(`{"podSelector":{}}`)},
			allowed:   []string{"egress 8.8.8.8 tcp/80", "ingress host tcp/80"}, deny: []string{"ingress shop/web tcp/80", "ingress 8.8.8.8 icmp"},
		},
		"no podSelector": {
			documents: [][]byte{doc(`{}`)}, deny: []string{"ingress shop/web tcp/80"},
		},
		"podSelector with an expression": {
			documents: [][]byte{doc(`{"podSelector":{"matchExpressions":[{"key":"app","operator":"In","values":["db","web"]}]}}`)},
			deny:      []string{"ingress shop/web tcp/80"},
		},
		"an egress rule implies egress": {
			documents: [][]byte{doc(`{"podSelector":{},"egress":[{"ports":[{"port":53,"protocol":"UDP"}]}]}`)},
			allowed:   []string{"egress 8.8.8.8 udp/53", "egress shop/web udp/53"},
			deny:      []string{"egress 8.8.8.8 tcp/53", "ingress shop/web tcp/80", "egress host tcp/80"},
		},
		"no egress rule does not": {
			documents: [][]byte{doc(`{"podSelector":{},"egress":[]}`)},
			allowed:   []string{"egress 8.8.8.8 tcp/53"}, deny: []string{"ingress shop/web tcp/80"},
		},
		"policyTypes Egress": {
			documents: [][]byte{doc(`{"podSelector":{},"policyTypes":["Egress"],"ingress":[{"from":[{"podSelector":{}}]}]}`)},
			allowed:   []string{"ingress 8.8.8.8 tcp/80"}, deny: []string{"egress 8.8.8.8 tcp/80", "egress shop/web tcp/80"},
		},
		"policyTypes Ingress ignores egress rules": {
			documents: [][]byte{doc(`{"podSelector":{},"policyTypes":["Ingress"],"egress":[{}]}`)},
			allowed:   []string{"egress 8.8.8.8 tcp/80"}, deny: []string{"ingress 8.8.8.8 tcp/80"},
		},
		"several documents add up": {
			documents: [][]byte{
				doc(`{"podSelector":{},"policyTypes":["Ingress","Egress"]}`),
				doc(`{"podSelector":{"matchLabels":{"app":"db"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"web"}}}],"ports":[{"port":5432}]}]}`),
				doc(`{"podSelector":{"matchLabels":{"app":"db"}},"ingress":[{"ports":[{"port":9100}]}]}`),
			},
			allowed: []string{"ingress shop/web tcp/5432", "ingress shop/web tcp/9100", "ingress 8.8.8.8 tcp/9100"},
			deny:    []string{"ingress shop/api tcp/5432", "ingress lab/web tcp/5432", "egress shop/web tcp/80", "ingress shop/web udp/5432"},
		},
		"no from, or an empty one": {
			documents: [][]byte{doc(`{"podSelector":{},"ingress":[{"ports":[{"port":80}]},{"from":[],"ports":[{"port":81}]},{"from":null,"ports":[{"port":82}]}]}`)},
			allowed:   []string{"ingress 8.8.8.8 tcp/80", "ingress lab/x tcp/81", "ingress alloc tcp/82"}, deny: []string{"ingress 8.8.8.8 tcp/83"},
		},
		"an empty rule": {
			documents: [][]byte{doc(`{"podSelector":{},"ingress":[{}]}`)},
			allowed:   []string{"ingress 8.8.8.8 tcp/80", "ingress lab/x icmp", "ingress lab/x gre"},
		},
		"a rule with ports is not about ICMP": {
			documents: [][]byte{doc(`{"podSelector":{},"ingress":[{"ports":[{},{"protocol":"UDP"},{"protocol":"SCTP"}]}]}`)},
			allowed:   []string{"ingress lab/x tcp/1", "ingress lab/x udp/1", "ingress lab/x sctp/1"}, deny: []string{"ingress lab/x icmp"},
		},
		"all pods of the namespace": {
			documents: [][]byte{doc(`{"podSelector":{},"ingress":[{"from":[{"podSelector":{}}]}]}`)},
			allowed:   []string{"ingress shop/x tcp/80"}, deny: []string{"ingress lab/x tcp/80", "ingress alloc tcp/80", "ingress 10.88.0.9 tcp/80"},
		},
		"all namespaces": {
			documents: [][]byte{doc(`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{}}]}]}`)},
			allowed:   []string{"ingress shop/x tcp/80", "ingress lab/x tcp/80"}, deny: []string{"ingress alloc tcp/80", "ingress 8.8.8.8 tcp/80"},
		},
		"some namespaces": {
			documents: [][]byte{doc(`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"example.com/env":"test"},
				"matchExpressions":[{"key":"team","operator":"NotIn","values":["a"]}]}}]}]}`)},
			allowed: []string{"ingress lab/x tcp/80"}, deny: []string{"ingress shop/x tcp/80", "ingress alloc tcp/80"},
		},
		"a namespace that must not have a label": {
			documents: [][]byte{doc(`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"example.com/env","operator":"DoesNotExist"}]}}]}]}`)},
			allowed:   []string{"ingress shop/x tcp/80"}, deny: []string{"ingress lab/x tcp/80", "ingress alloc tcp/80"},
		},
		"a namespace by its name": {
			documents: [][]byte{doc(`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"lab"}}}]}]}`)},
			allowed:   []string{"ingress lab/x tcp/80"}, deny: []string{"ingress shop/x tcp/80"},
		},
		"both selectors in one peer": {
			documents: [][]byte{doc(`{"podSelector":{},"egress":[{"to":[{"podSelector":{"matchLabels":{"app":"web"}},"namespaceSelector":{"matchLabels":{"team":"b"}}}]}]}`)},
			allowed:   []string{"egress lab/web tcp/80"}, deny: []string{"egress shop/web tcp/80", "egress lab/x tcp/80"},
		},
		"both selectors in two peers": {
			documents: [][]byte{doc(`{"podSelector":{},"egress":[{"to":[{"podSelector":{"matchLabels":{"app":"web"}}},{"namespaceSelector":{"matchLabels":{"team":"b"}}}]}]}`)},
			allowed:   []string{"egress lab/x tcp/80", "egress shop/web tcp/80"}, deny: []string{"egress shop/x tcp/80"},
		},
		"ipBlock": {
			documents: [][]byte{doc(`{"podSelector":{},"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.1/8","except":["10.1.0.0/16","10.2.3.4/32"]}},{"ipBlock":{"cidr":"fd00::/8"}}]}]}`)},
			allowed:   []string{"egress 10.0.0.1 tcp/80", "egress 10.2.3.5 tcp/80", "egress shop/x tcp/80", "egress fd12::1 udp/53", "egress 10.255.255.255 tcp/1"},
			deny:      []string{"egress 10.1.2.3 tcp/80", "egress 10.2.3.4 tcp/80", "egress 11.0.0.0 tcp/80", "egress 2001:db8::1 tcp/80"},
		},
		"except does not deny what another block allows": {
			documents: [][]byte{doc(`{"podSelector":{},"egress":[{"to":[{"ipBlock":{"cidr":"0.0.0.0/0","except":["10.0.0.0/8"]}},{"ipBlock":{"cidr":"10.1.0.0/16"}}]},
				{"to":[{"ipBlock":{"cidr":"10.0.0.0/8"}}],"ports":[{"port":443}]}]}`)},
			allowed: []string{"egress 10.1.2.3 tcp/80", "egress 10.2.3.4 tcp/443", "egress 8.8.8.8 tcp/80"}, deny: []string{"egress 10.2.3.4 tcp/80"},
		},
		"a block without addresses is not every peer": {
			documents: [][]byte{doc(`{"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.0.0.0/9","10.128.0.0/9"]}}]}]}`)},
			deny:      []string{"egress 10.0.0.1 tcp/80", "egress 10.128.0.1 tcp/80", "egress 8.8.8.8 tcp/80"},
		},
		"endPort": {
			documents: [][]byte{doc(`{"podSelector":{},"egress":[{"ports":[{"protocol":"TCP","port":32000,"endPort":32768},{"protocol":"UDP","port":5,"endPort":5}]}]}`)},
			allowed:   []string{"egress 8.8.8.8 tcp/32000", "egress 8.8.8.8 tcp/32768", "egress 8.8.8.8 udp/5"},
			deny:      []string{"egress 8.8.8.8 tcp/31999", "egress 8.8.8.8 tcp/32769", "egress 8.8.8.8 udp/6"},
		},
		"named ports": {
			documents: [][]byte{doc(`{"podSelector":{},"ingress":[{"ports":[{"port":"http"},{"port":"dns","protocol":"UDP"}]}],"egress":[{"ports":[{"port":"http"}]}]}`)},
			allowed:   []string{"ingress 8.8.8.8 tcp/8080", "ingress 8.8.8.8 udp/53", "egress shop/web tcp/80", "egress lab/web tcp/80", "egress shop/api tcp/81", "egress shop/api tcp/82"},
			deny: []string{"ingress 8.8.8.8 tcp/80", "ingress 8.8.8.8 tcp/53", "egress 8.8.8.8 tcp/80", "egress alloc tcp/80", "egress host tcp/80",
				"egress shop/web tcp/81", "egress shop/api tcp/80", "egress shop/api tcp/83", "egress shop/other tcp/80", "egress shop/web icmp"},
		},
		"named ports of some peers": {
			documents: [][]byte{doc(`{"podSelector":{},"egress":[{"to":[{"podSelector":{}},{"ipBlock":{"cidr":"10.0.0.0/8"}}],"ports":[{"port":"http"},{"port":443}]}]}`)},
			allowed:   []string{"egress shop/web tcp/80", "egress shop/api tcp/81", "egress shop/web tcp/443", "egress 10.1.1.1 tcp/443"},
			deny: []string{"egress shop/web tcp/81", "egress shop/api tcp/80", "egress lab/web tcp/80", "egress 10.1.1.1 tcp/80", "egress 10.1.1.1 tcp/81",
				"egress lab/web udp/443", "egress 8.8.8.8 tcp/443"},
		},
		"a named port of a block alone is not one of every peer": {
			documents: [][]byte{doc(`{"podSelector":{},"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8"}}],"ports":[{"port":"http"}]}]}`)},
			deny:      []string{"egress 10.1.1.1 tcp/80", "egress shop/web tcp/80", "egress 8.8.8.8 tcp/80", "egress 10.1.1.1 icmp"},
		},
		"a named port without a number is not every port": {
			documents: [][]byte{doc(`{"podSelector":{},"ingress":[{"ports":[{"port":"nothing"}]}]}`)},
			deny:      []string{"ingress 8.8.8.8 tcp/80", "ingress 8.8.8.8 icmp"},
		},
		"a list": {
			documents: [][]byte{[]byte(`{"apiVersion":"v1","kind":"List","metadata":{},"items":[` + string(doc(`{"podSelector":{}}`)) + `,` +
				string(doc(`{"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}`)) + `]}`)},
			allowed: []string{"ingress 8.8.8.8 tcp/80"}, deny: []string{"ingress 8.8.8.8 tcp/81"},
		},
		"a list of the API server": {
			documents: [][]byte{[]byte(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicyList","metadata":{"resourceVersion":"1"},"items":[` +
				`{"metadata":{"name":"x","namespace":"shop"},"spec":{"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}}]}`)},
			allowed: []string{"ingress 8.8.8.8 tcp/80"}, deny: []string{"ingress 8.8.8.8 tcp/81"},
		},
	} {
		set, err := Parse(c.documents...)
		require.NoError(t, err, name)
		if c.pod == "" {
			c.pod = "shop/db"
		}
		namespace, app, _ := strings.Cut(c.pod, "/")
		p, err := set.For(pod(namespace, app))
		require.NoError(t, err, name)
		for verdict, lines := range map[policy.Verdict][]string{policy.Allow: c.allowed, policy.Deny: c.deny} {
			for _, line := range lines {
				part := strings.Fields(line)
				traffic := policy.Egress
				if part[0] == "ingress" {
					traffic = policy.Ingress
				}
				require.Equal(t, verdict, p.Decide(traffic, remote(t, part[1]), flow(t, part[2])).Verdict, "%s: %s", name, line)
			}
		}
	}
}

func TestRulesAreNamed(t *testing.T) {
	long := strings.Repeat("a", 62) + ".b.example"
	set, err := Parse([]byte(strings.Replace(string(doc(`{"ingress":[{}]}`)), `"name":"p"`, `"name":"`+long+`"`, 1)))
	require.NoError(t, err)
	p, err := set.For(pod("shop", "db"))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("a", 62), p.Ingress.Rules[0].Name)
}

// TestManyPeers checks that more peers and ports than a rule can have become several rules.
func TestManyPeers(t *testing.T) {
	var ports, blocks []string
	for i := range 257 {
		ports = append(ports, fmt.Sprintf(`{"port":%d}`, i+1))
		blocks = append(blocks, fmt.Sprintf(`{"ipBlock":{"cidr":"10.%d.%d.0/24"}}`, i/256, i%256))
	}
	spec := `{"egress":[{"to":[` + strings.Join(blocks, ",") + `],"ports":[` + strings.Join(ports, ",") + `]}]}`
	set, err := Parse(doc(spec))
	require.NoError(t, err)
	p, err := set.For(pod("shop", "db"))
	require.NoError(t, err)
	require.Len(t, p.Egress.Rules, 4)
	for _, line := range []string{"10.0.0.1 1", "10.1.0.1 1", "10.0.0.1 257", "10.1.0.1 257"} {
		addr, port, _ := strings.Cut(line, " ")
		require.Equal(t, policy.Allow, p.Decide(policy.Egress, remote(t, addr), flow(t, "tcp/"+port)).Verdict, line)
	}
	require.Equal(t, policy.Deny, p.Decide(policy.Egress, remote(t, "10.0.0.1"), flow(t, "tcp/258")).Verdict)

	var documents [][]byte
	for range 5001 {
		documents = append(documents, doc(`{"egress":[{}]}`))
	}
	set, err = Parse(documents...)
	require.NoError(t, err)
	_, err = set.For(pod("shop", "db"))
	require.ErrorContains(t, err, `translate network policies for a pod in namespace "shop": check policy: egress.rules: 5001 are too many`)
}

// TestLarge translates documents that are large and possible: all ports of many namespaces, 5000 rules, and
// pods with many labels.
func TestLarge(t *testing.T) {
	var namespaces, ports, rules []string
	for i := range 30 {
		namespaces = append(namespaces, fmt.Sprintf(`{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns-%d"}}}`, i))
	}
	for i := range 50 {
		ports = append(ports, fmt.Sprintf(`{"port":%d}`, 8000+2*i))
	}
	for i := range 5000 {
		rules = append(rules, fmt.Sprintf(`{"to":[{"podSelector":{"matchLabels":{"app":"a-%d"}}}],"ports":[{"port":%d}]}`, i%1000, 1000+i))
	}
	set, err := Parse(doc(`{"ingress":[{"from":[`+strings.Join(namespaces, ",")+`],"ports":[`+strings.Join(ports, ",")+`]}]}`),
		doc(`{"policyTypes":["Egress"],"egress":[`+strings.Join(rules, ",")+`]}`))
	require.NoError(t, err)
	p, err := set.For(pod("shop", "db"))
	require.NoError(t, err)
	for traffic, want := range map[policy.Traffic]int{policy.Ingress: 30 + 1, policy.Egress: 5000} {
		steps, _ := p.Steps(traffic)
		require.Len(t, steps, want)
	}
	require.Equal(t, policy.Allow, p.Decide(policy.Ingress, remote(t, "ns-29/x"), flow(t, "tcp/8098")).Verdict)
	require.Equal(t, policy.Deny, p.Decide(policy.Ingress, remote(t, "ns-29/x"), flow(t, "tcp/8099")).Verdict)
	require.Equal(t, policy.Allow, p.Decide(policy.Egress, remote(t, "shop/a-999"), flow(t, "tcp/5999")).Verdict)
	require.Equal(t, policy.Deny, p.Decide(policy.Egress, remote(t, "shop/a-999"), flow(t, "tcp/5998")).Verdict)

	many := Pod{Labels: map[string]string{}, NamespaceLabels: map[string]string{}}
	for i := range 100 {
		many.Labels[fmt.Sprint("l-", i)], many.NamespaceLabels[fmt.Sprint("n-", i)] = "", ""
	}
	labels, err := many.AllocationLabels()
	require.NoError(t, err)
	require.Len(t, labels, 201)
}

// TestBounds checks that documents of a moderate size do not become a great many peers.
func TestBounds(t *testing.T) {
	var except []string
	for i := range 30 {
		except = append(except, `"`+netip.PrefixFrom(netip.AddrFrom16([16]byte{byte(8 * i), 15: 1}), 128).String()+`"`)
	}
	block := `{"ipBlock":{"cidr":"::/0","except":[` + strings.Join(except, ",") + `]}},`
	rule := func(blocks int) string {
		return `{"to":[` + strings.TrimSuffix(strings.Repeat(block, blocks), ",") + `]},`
	}
	document := func(rules int) []byte {
		return doc(`{"egress":[` + strings.TrimSuffix(strings.Repeat(rule(4), rules), ",") + `]}`)
	}
	_, err := Parse(document(1))
	require.NoError(t, err)
	_, err = Parse(doc(`{"egress":[` + strings.TrimSuffix(rule(5), ",") + `]}`))
	require.ErrorContains(t, err, "spec.egress[0]: more than 16384 peers")
	_, err = Parse(document(24))
	require.ErrorContains(t, err, "document 0: the documents have more than 262144 peers")
	_, err = Parse(make([]byte, MaxSize+1))
	require.ErrorContains(t, err, "document 0: 16777217 bytes are too many")
}

func TestErrorsNameThePlace(t *testing.T) {
	from := func(peer string) string { return `{"ingress":[{},{"from":[{"podSelector":{}},` + peer + `]}]}` }
	port := func(text string) string { return `{"egress":[{"ports":[` + text + `]}]}` }
	for spec, want := range map[string]string{
		`{"podselector":{}}`:                        `parse network policies: document 0: spec: unknown field "podselector"`,
		`{"policyTypes":["ingress"]}`:               `spec.policyTypes[0]: "ingress" is not Ingress or Egress`,
		`{"podSelector":{"matchLabels":{"a":"-"}}}`: `spec.podSelector.matchLabels: label "a"`,
		`{"podSelector":{"matchExpressions":[{"key":"a","operator":"Exists"},{"key":"a","operator":"In"}]}}`: `spec.podSelector.matchExpressions[1].values: In needs a value`,
		`{"podSelector":{"matchLabels":{"namespace.allocnet/team":"a"}}}`:                                    `spec.podSelector: label "namespace.allocnet/team" is reserved`,
		from(`{}`): `spec.ingress[1].from[1]: a peer has either ipBlock`,
		from(`{"podSelector":{},"ipBlock":{"cidr":"10.0.0.0/8"}}`): `spec.ingress[1].from[1]: a peer has either`,
		from(`{"namespace":{}}`):                                   `spec.ingress[1].from[1]: unknown field "namespace"`,
		from(`{"podSelector":{"matchExpressions":[{"key":"x.namespace.allocnet/a","operator":"Exists"}]}}`): `from[1].podSelector: label "x.namespace.allocnet/a" is reserved`,
		from(`{"namespaceSelector":{"matchExpressions":[{"key":"a","operator":"Gt"}]}}`):                    `from[1].namespaceSelector.matchExpressions[0].operator: "Gt"`,
		from(`{"namespaceSelector":{"matchLabels":{"` + strings.Repeat("a", 240) + `/b":""}}}`):             `from[1].namespaceSelector: label "aaa`,
		from(`{"ipBlock":{"cidr":"10.0.0.0"}}`):                                                             `from[1].ipBlock.cidr: "10.0.0.0" is not a network`,
		from(`{"ipBlock":{"cidr":"::ffff:10.0.0.0/104"}}`):                                                  `from[1].ipBlock.cidr: "::ffff`,
		from(`{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.0.0.0/9","x"]}}`):                               `from[1].ipBlock.except[1]: "x" is not a network`,
		from(`{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.0.0.0/8"]}}`):                                   `except[0]: 10.0.0.0/8 is not a part of 10.0.0.0/8`,
		from(`{"ipBlock":{"cidr":"10.0.0.0/8","except":["11.0.0.0/16"]}}`):                                  `except[0]: 11.0.0.0/16 is not a part of`,
		from(`{"ipBlock":{"cidr":"10.0.0.0/8","except":["fd00::/16"]}}`):                                    `except[0]: fd00::/16 is not a part of`,
		port(`{"protocol":"ICMP"}`):                                                                         `spec.egress[0].ports[0].protocol: "ICMP" is not TCP, UDP or SCTP`,
		port(`{"port":0}`):                                                                                  `ports[0].port: 0 is neither a number from 1 to 65535`,
		port(`{"port":65536}`):                                                                              `ports[0].port: 65536 is neither`,
		port(`{"port":""}`):                                                                                 `ports[0].port: "" is neither`,
		port(`{"endPort":80}`):                                                                              `ports[0].endPort: it needs port`,
		port(`{"port":"80"}`):                                                                               `ports[0].port: "80" is neither a number nor the name of a port`,
		port(`{"port":"Http"}`):                                                                             `ports[0].port: "Http" is`,
		port(`{"port":"a_b"}`):                                                                              `ports[0].port: "a_b" is`,
		port(`{"port":"a--b"}`):                                                                             `ports[0].port: "a--b" is`,
		port(`{"port":"-a"}`):                                                                               `ports[0].port: "-a" is`,
		port(`{"port":"a-"}`):                                                                               `ports[0].port: "a-" is`,
		port(`{"port":"abcdefghijklmnop"}`):                                                                 `ports[0].port: "abcdefghijklmnop" is`,
		port(`{"port":"http","endPort":80}`):                                                                `ports[0].endPort: it needs port`,
		port(`{"port":81,"endPort":80}`):                                                                    `ports[0].endPort: 80 is less than port 81`,
		port(`{"port":81,"endPort":65536}`):                                                                 `ports[0].endPort: 65536 is not a number from 0 to 65535`,
	} {
		_, err := Parse(doc(spec))
		require.ErrorContains(t, err, want, spec)
	}
	for text, want := range map[string]string{
		`x`:                                `document 0: not a JSON document`,
		`{"apiVersion":"v1","kind":"Pod"}`: `document 0: the document is a "Pod" of "v1", not a NetworkPolicy of networking.k8s.io/v1`,
		`{"apiVersion":"extensions/v1beta1","kind":"NetworkPolicy"}`:                                          `document 0: the document is a "NetworkPolicy" of "extensions/v1beta1"`,
		`{"kind":"NetworkPolicyList","apiVersion":"networking.k8s.io/v1","itms":[` + string(doc(`{}`)) + `]}`: `document 0: unknown field "itms"`,
		`{"kind":"List","apiVersion":"v1","items":[` + string(doc(`{}`)) + `],"items":[]}`:                    `document 0: `,
		`{"kind":"List","apiVersion":"v1","items":[],"ITEMS":[]}`:                                             `document 0: unknown field "ITEMS"`,
		`{"kind":"List","apiVersion":"v1","items":null}`:                                                      `document 0: items: the list has none`,
		`{"kind":"List","apiVersion":"v1"}`:                                                                   `document 0: items: the list has none`,
		`{"kind":"NetworkPolicy","kind":"List","apiVersion":"v1","spec":{}}`:                                  `document 0: `,
		`{"kind":"NetworkPolicyList","apiVersion":"crd.projectcalico.org/v1","items":[]}`:                     `document 0: the list is a "NetworkPolicyList" of "crd.projectcalico.org/v1", not of networking.k8s.io/v1`,
		`{"kind":"List","items":[{"kind":"NetworkPolicy","x":1}]}`:                                            `document 0: items[0]: unknown field "x"`,
		`{"kind":"List","items":[` + string(doc(`{}`)) + `,` + string(doc(`{"policyTypes":["x"]}`)) + `]}`:    `document 0: items[1].spec.policyTypes[0]: "x"`,
		`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":1}}`:                  `metadata: not an object with the strings`,
	} {
		_, err := Parse([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
	set, err := Parse([]byte(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy"}`))
	require.NoError(t, err)
	for namespace, isolated := range map[string]bool{"": true, "default": true, "shop": false} {
		p, err := set.For(Pod{Namespace: namespace})
		require.NoError(t, err)
		require.Equal(t, isolated, p.Ingress != nil, namespace)
	}
}

func TestWarnings(t *testing.T) {
	set, err := Parse(doc(`{"policyTypes":["Ingress","Egress"],"ingress":[{"ports":[{"port":80},{"port":"sql"},{"port":"http"}]}],"egress":[
		{"to":[{"podSelector":{}},{"ipBlock":{"cidr":"10.0.0.0/8"}}],"ports":[{"port":"http"}]},{"ports":[{"port":"http"},{"port":"dns"}]}]}`),
		doc(`{"policyTypes":["Ingress"],"egress":[{"ports":[{"port":"none"}]}]}`))
	require.NoError(t, err)
	require.Equal(t, []string{
		`network policy shop/p: spec.ingress[0].ports[1].port: the pod has no tcp port "sql": it allows nothing`,
		`network policy shop/p: spec.egress[0].ports[0].port: port "http" has a number at pods only: it allows nothing for an ipBlock`,
		`network policy shop/p: spec.egress[1].ports[1].port: no peer has a tcp port "dns": it allows nothing`,
	}, set.Warnings(pod("shop", "db")))
	require.Empty(t, set.Warnings(pod("lab", "db")), "no document selects it")
}

func TestPorts(t *testing.T) {
	set, err := Parse()
	require.NoError(t, err)
	for want, port := range map[string]Port{
		`port "": names have`:                      {"", "tcp", 80},
		`port "80": names have`:                    {"80", "tcp", 80},
		`port "a": protocol "TCP" is not tcp, udp`: {"a", "TCP", 80},
		`port "a": it has no number`:               {"a", "tcp", 0},
	} {
		own := Pod{Ports: []Port{port}}
		_, err := own.AllocationLabels()
		require.ErrorContains(t, err, `translate labels of a pod in namespace "default": `+want)
		_, err = set.For(own)
		require.ErrorContains(t, err, want)
		_, err = set.For(Pod{PeerPorts: []Port{port}})
		require.ErrorContains(t, err, want)
	}
}

func TestAllocationLabels(t *testing.T) {
	p := pod("lab", "web")
	labels, err := p.AllocationLabels()
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"app": "web", "x": "y", "namespace.allocnet/team": "b", "example.com.namespace.allocnet/env": "test",
		"kubernetes.io.namespace.allocnet/metadata.name": "lab", "http.tcp.port.allocnet/80": "",
	}, labels)
	empty := Pod{}
	labels, err = empty.AllocationLabels()
	require.NoError(t, err)
	require.Equal(t, map[string]string{"kubernetes.io.namespace.allocnet/metadata.name": "default"}, labels)
	// The name of the namespace is not what its labels say.
	other := Pod{Namespace: "a", NamespaceLabels: map[string]string{nameKey: "b"}}
	labels, err = other.AllocationLabels()
	require.NoError(t, err)
	require.Equal(t, "a", labels["kubernetes.io.namespace.allocnet/metadata.name"])
	for key, of := range map[string]string{
		"namespace.allocnet/team": "namespaces", "kubernetes.io.namespace.allocnet/metadata.name": "namespaces", "http.tcp.port.allocnet/80": "ports",
	} {
		forged := Pod{Labels: map[string]string{key: "x"}}
		_, err = forged.AllocationLabels()
		require.EqualError(t, err, `translate labels of a pod in namespace "default": label "`+key+`" is reserved for labels of `+of)
	}
	wrong := Pod{Labels: map[string]string{"a": "-"}}
	_, err = wrong.AllocationLabels()
	require.ErrorContains(t, err, `label "a": the value "-"`)
}

// TestSubtraction compares blocks with a list of their addresses.
func TestSubtraction(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		block := ipBlock{CIDR: "10.0.0.0/24"}
		want := map[netip.Addr]bool{}
		for i := range 256 {
			want[netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})] = true
		}
		for range random.IntN(4) {
			hole := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(256))}), 25+random.IntN(8))
			block.Except = append(block.Except, hole.String())
			for addr := range want {
				if hole.Contains(addr) {
					delete(want, addr)
				}
			}
		}
		prefixes, err := block.prefixes()
		require.NoError(t, err)
		got := map[netip.Addr]bool{}
		for _, p := range prefixes {
			require.Equal(t, p.Masked(), p)
			for addr := p.Addr(); p.Contains(addr); addr = addr.Next() {
				require.False(t, got[addr], "%s is in two prefixes", addr)
				got[addr] = true
			}
		}
		require.Equal(t, want, got, block)
	}
	many := ipBlock{CIDR: "::/0"}
	for i := range 64 {
		many.Except = append(many.Except, netip.PrefixFrom(netip.AddrFrom16([16]byte{byte(4 * i), 15: 1}), 128).String())
	}
	_, err := many.prefixes()
	require.ErrorContains(t, err, "the rest of the block is more than 4096 prefixes")
}

func FuzzParse(f *testing.F) {
	f.Add(`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}],"ports":[{"port":"http"}]}]}`)
	f.Fuzz(func(t *testing.T, spec string) {
		if !json.Valid([]byte(spec)) {
			return
		}
		set, err := Parse(doc(spec))
		if err != nil {
			return
		}
		if p, err := set.For(pod("shop", "db")); err == nil {
			require.NoError(t, p.Validate())
		}
	})
}
