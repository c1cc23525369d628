package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const example = `{
	"presets": ["no-metadata"],
	"ingress": {"default": "deny", "rules": [
		{"name": "web", "action": "allow", "peers": [{"labels": {"app": "web"}}, {"allocation": "web-1"}],
		 "services": [{"protocol": "tcp", "ports": "5432"}, {"protocol": "icmp", "type": 8}]}
	]},
	"egress": {"rules": [
		{"action": "deny", "peers": [{"cidr": "10.0.0.0/8"}, {"name": "host"},
			{"expressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}, {"labels": {}}]}
	]}
}`

func TestParse(t *testing.T) {
	p, err := Parse([]byte(example))
	require.NoError(t, err)
	echo := uint8(8)
	require.Equal(t, &Policy{
		Presets: []Preset{NoMetadata},
		Ingress: &Direction{Default: Deny, Rules: []Rule{{
			Name: "web", Action: Allow,
			Peers:    []Peer{{Selector: &Selector{Labels: map[string]string{"app": "web"}}}, {Allocation: "web-1"}},
			Services: []Service{{Protocol: "tcp", Ports: "5432"}, {Protocol: "icmp", Type: &echo}},
		}}},
		Egress: &Direction{Rules: []Rule{{Action: Deny, Peers: []Peer{
			{CIDR: netip.MustParsePrefix("10.0.0.0/8")}, {Name: "host"},
			{Selector: &Selector{Expressions: []Requirement{{Key: "tier", Operator: "In", Values: []string{"a", "b"}}}}},
			{Selector: &Selector{Labels: map[string]string{}}},
		}}}},
	}, p)
	text, err := json.Marshal(p)
	require.NoError(t, err)
	require.JSONEq(t, example, string(text))
	back, err := Parse(text)
	require.NoError(t, err)
	require.Equal(t, p, back)

	text, err = json.Marshal([]Peer{{Selector: &Selector{}}, {Name: "world"}})
	require.NoError(t, err)
	require.Equal(t, `[{"labels":{}},{"name":"world"}]`, string(text))
}

func TestParseNamesThePlace(t *testing.T) {
	rule := func(text string) string { return `{"egress":{"rules":[{},` + text + `]}}` }
	peer := func(text string) string { return rule(`{"peers":[{"name":"host"},` + text + `]}`) }
	service := func(text string) string { return rule(`{"services":[` + text + `]}`) }
	list := func(element string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
	}
	for text, want := range map[string]string{
		`null`:                                                       `parse policy: null is not possible here`,
		`{"egress":{"rules":[{"peers":null}]}}`:                      `parse policy: egress.rules[0].peers: null is not possible here`,
		`{"egress":null}`:                                            `parse policy: egress: null is not possible here`,
		rule(`{"peers":[{"cidr":null}]}`):                            `peers[0].cidr: null is not possible here`,
		`{"egres":{}}`:                                               `parse policy: unknown field "egres"`,
		`{"presets":["isolated","x"]}`:                               `check policy: presets[1]: "x" is unknown; the presets are egress-only isolated no-host no-metadata no-private published-only`,
		`{"presets":` + list(`"isolated"`, 7) + `}`:                  `presets: 7 are too many: there are 6`,
		`{"ingress":{"default":"drop"}}`:                             `ingress.default: "drop" is not allow or deny`,
		`{"ingress":{"rules":` + list("{}", 5001) + `}}`:             `ingress.rules: 5001 are too many: at most 5000`,
		rule(`{"action":"Allow"}`):                                   `egress.rules[1].action: "Allow" is not`,
		rule(`{"name":"a b"}`):                                       `egress.rules[1].name: "a b" must be`,
		rule(`{"peers":` + list(`{"name":"host"}`, 257) + `}`):       `egress.rules[1].peers: 257 are too many: at most 256`,
		service(strings.Trim(list(`{"protocol":"tcp"}`, 257), "[]")): `egress.rules[1].services: 257 are too many`,
		peer(`{}`):                `egress.rules[1].peers[1]: a peer has exactly one of`,
		peer(`{"allocation":""}`): `peers[1]: a peer has exactly one of`,
		peer(`{"cidr":"10.0.0.0/8","name":"host"}`):                                             `peers[1]: a peer has exactly one of`,
		peer(`{"labels":{},"name":"host"}`):                                                     `peers[1]: a peer has exactly one of`,
		peer(`{"cidr":"10.0.0.0"}`):                                                             `parse policy: egress.rules[1].peers[1].cidr: "10.0.0.0" is not a network`,
		peer(`{"cidr":""}`):                                                                     `peers[1].cidr: "" is not a network`,
		peer(`{"cidr":"10.0.0.1/8"}`):                                                           `peers[1].cidr: 10.0.0.1/8 has bits after its prefix; write 10.0.0.0/8`,
		peer(`{"cidr":"::ffff:10.0.0.0/104"}`):                                                  `peers[1].cidr: ::ffff:10.0.0.0/104 is IPv4-mapped`,
		peer(`{"cidr":"fe80::%eth0/64"}`):                                                       `peers[1].cidr: "fe80::%eth0/64" is not a network`,
		peer(`{"name":"internet"}`):                                                             `peers[1].name: "internet" is not host, world or metadata`,
		peer(`{"allocation":"a/b"}`):                                                            `peers[1].allocation: `,
		peer(`{"allocation":"` + strings.Repeat("a", 129) + `"}`):                               `peers[1].allocation: the ID has 129 characters: at most 128`,
		peer(`{"labels":{"-":""}}`):                                                             `peers[1].labels: label "-"`,
		peer(`{"labels":{"a":1}}`):                                                              `peers[1].labels: the value of "a" is not a string`,
		peer(`{"expressions":[{"key":"a"}]}`):                                                   `peers[1].expressions[0].operator: "" is not In, NotIn, Exists or DoesNotExist`,
		peer(`{"expressions":[{"key":"a","operator":"In"}]}`):                                   `peers[1].expressions[0].values: In needs a value`,
		peer(`{"expressions":[{"key":"a","operator":"Exists","values":["b"]}]}`):                `expressions[0].values: Exists has no values`,
		peer(`{"expressions":[{"key":"a","operator":"NotIn","values":["b","-"]}]}`):             `expressions[0].values[1]: label "a"`,
		peer(`{"expressions":[{"key":"","operator":"Exists"}]}`):                                `expressions[0].key: label ""`,
		peer(`{"expressions":` + list(`{"key":"a","operator":"Exists"}`, 257) + `}`):            `peers[1].expressions: 257 are too many`,
		peer(`{"expressions":[{"key":"a","operator":"In","values":` + list(`"b"`, 257) + `}]}`): `expressions[0].values: 257 are too many`,
		service(`{}`):                                 `egress.rules[1].services[0].protocol: "" is not tcp, udp, sctp, icmp or icmpv6`,
		service(`{"protocol":"TCP"}`):                 `services[0].protocol: "TCP" is not`,
		service(`{"protocol":"tcp","ports":"0"}`):     `services[0].ports: "0": a port is a number from 1 to 65535`,
		service(`{"protocol":"tcp","ports":"080"}`):   `services[0].ports: "080": a port`,
		service(`{"protocol":"tcp","ports":"65536"}`): `services[0].ports: "65536": a port`,
		service(`{"protocol":"tcp","ports":"90-80"}`): `services[0].ports: "90-80" ends before it begins`,
		service(`{"protocol":"tcp","ports":"80-"}`):   `services[0].ports: "": a port`,
		service(`{"protocol":"tcp","type":8}`):        `services[0].type: tcp has no types`,
		service(`{"protocol":"icmp","ports":"8"}`):    `services[0].ports: icmp has no ports`,
		service(`{"protocol":"icmp","type":256}`):     `services[0].type: 256 is not a number from 0 to 255`,
		strings.Repeat(" ", MaxSize) + `{}`:           `parse policy: 8388610 bytes are too many`,
	} {
		_, err := Parse([]byte(text))
		require.ErrorContains(t, err, want, "%.200s", text)
	}
	require.NoError(t, (*Policy)(nil).Validate())
	require.ErrorContains(t, (&Policy{Egress: &Direction{Rules: []Rule{{Peers: []Peer{{CIDR: netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 33)}}}}}}).Validate(),
		"peers[0].cidr: the length of the prefix is invalid")
}

// TestTooLarge checks the limits: of lookups, to which all ports of a rule and networks of one length
// count once, and of combinations of peers and services.
func TestTooLarge(t *testing.T) {
	var services []Service
	for port := range maxServices {
		services = append(services, Service{Protocol: "tcp", Ports: fmt.Sprint(1000 + 2*port)})
	}
	allocations := func(n int, services []Service) *Direction {
		d := &Direction{}
		for i := range n {
			d.Rules = append(d.Rules, Rule{Services: services, Peers: []Peer{{Allocation: fmt.Sprint("a-", i%1000)}}})
		}
		return d
	}
	networks := &Direction{}
	for i := range 16 {
		r := Rule{Services: services}
		for j := range maxPeers {
			r.Peers = append(r.Peers, Peer{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(j), 0}), 24)})
		}
		networks.Rules = append(networks.Rules, r)
	}
	lists := func(n int) *Direction {
		d := allocations(5000, nil)
		for i := range d.Rules {
			d.Rules[i].Services = []Service{{Protocol: "tcp", Ports: "1"}, {Protocol: "tcp", Ports: fmt.Sprint(2 + i%n)}}
		}
		return d
	}
	icmp := []Service{{Protocol: "icmp"}, {Protocol: "udp"}, {Protocol: "tcp", Ports: "80"}, {Protocol: "sctp", Ports: "80"}}
	for name, c := range map[string]struct {
		*Direction
		want string
	}{
		"5000 rules":        {allocations(5000, services[:6]), ""},
		"too many rules":    {allocations(5001, nil), "egress.rules: 5001 are too many: at most 5000 are possible"},
		"networks":          {networks, ""},
		"combinations":      {allocations(128, services), ""},
		"more combinations": {allocations(129, services), "egress: the rules have 33024 combinations of a peer and a service; at most 32768"},
		"sets":              {lists(24), ""},
		"more sets":         {lists(25), "egress: the rules have 1025 different selectors, and lists of ports or networks; at most 1024"},
		"lookups":           {allocations(2730, icmp), ""},
		"more lookups":      {allocations(2731, icmp), "egress: the rules are 8193 lookups for a packet; at most 8192"},
	} {
		err := (&Policy{Egress: c.Direction}).Validate()
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
	for len(networks.Rules)*maxPeers <= maxCombinations {
		networks.Rules = append(networks.Rules, networks.Rules...)
	}
	require.ErrorContains(t, (&Policy{Ingress: networks}).Validate(), "ingress: the rules have 65536 peers; at most 32768")
}

func TestNotation(t *testing.T) {
	for text, want := range map[string]Peer{
		"10.0.0.0/8":       {CIDR: netip.MustParsePrefix("10.0.0.0/8")},
		"fd00::/8":         {CIDR: netip.MustParsePrefix("fd00::/8")},
		"host":             {Name: "host"},
		"world":            {Name: "world"},
		"metadata":         {Name: "metadata"},
		"alloc:web-1":      {Allocation: "web-1"},
		"label:":           {Selector: &Selector{Labels: map[string]string{}}},
		"label:app=db":     {Selector: &Selector{Labels: map[string]string{"app": "db"}}},
		"label:app=":       {Selector: &Selector{Labels: map[string]string{"app": ""}}},
		"label:app=a,tier": {Selector: &Selector{Labels: map[string]string{"app": "a"}, Expressions: []Requirement{{Key: "tier", Operator: "Exists"}}}},
		"label:!example.com/x,app!=a|b,tier=a|b": {Selector: &Selector{Labels: map[string]string{}, Expressions: []Requirement{
			{Key: "example.com/x", Operator: "DoesNotExist"},
			{Key: "app", Operator: "NotIn", Values: []string{"a", "b"}}, {Key: "tier", Operator: "In", Values: []string{"a", "b"}},
		}}},
		"label:app=a,app=b": {Selector: &Selector{Labels: map[string]string{"app": "a"}, Expressions: []Requirement{{Key: "app", Operator: "In", Values: []string{"b"}}}}},
	} {
		got, err := ParsePeer(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		require.Equal(t, text, got.String())
	}
	one, err := ParsePeer("10.0.0.1")
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1/32", one.String())
	echo := uint8(8)
	for text, want := range map[string]Service{
		"tcp": {Protocol: "tcp"}, "tcp/80": {Protocol: "tcp", Ports: "80"}, "udp/8000-9000": {Protocol: "udp", Ports: "8000-9000"},
		"icmp": {Protocol: "icmp"}, "icmpv6/8": {Protocol: "icmpv6", Type: &echo}, "sctp": {Protocol: "sctp"},
	} {
		got, err := ParseService(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		require.Equal(t, text, got.String())
	}
}

func TestWrongNotation(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       `parse peer "": a peer has exactly one of`,
		"web-1":                                  `name: "web-1" is not host, world or metadata; examples are`,
		"10.0.0.1/8":                             `write 10.0.0.0/8`,
		"10.0.0.0/33":                            `is not a network in CIDR notation`,
		"::ffff:10.0.0.1":                        `IPv4-mapped`,
		"fe80::1%eth0":                           `is not host`,
		"alloc:":                                 `exactly one of`,
		"alloc:a b":                              `allocation: `,
		"label:,":                                `expressions[0].key: label ""`,
		"label:=a":                               `labels: label ""`,
		"label:a=-":                              `labels: label "a": the value "-"`,
		"label:!a=b":                             `label "!a"`,
		"label:a in (b,c)":                       `expressions[0].key: label "a in (b"`,
		"label:a!=b|c d":                         `expressions[0].values[1]: `,
		"label:!":                                `expressions[0].key: label ""`,
		"label:a=b|" + strings.Repeat("c|", 255): `values: 257 are too many`,
	} {
		_, err := ParsePeer(text)
		require.ErrorContains(t, err, want, text)
	}
	for text, want := range map[string]string{
		"": `parse service "": "" is not tcp`, "http": `"http" is not tcp`, "tcp/": `nothing follows "/"`, "tcp/http": `"http": a port`,
		"tcp/80/90": `"80/90": a port`, "icmp/x": `type "x" is not a number from 0 to 255`, "icmp/256": `type "256"`, "80": `"80" is not tcp`,
	} {
		_, err := ParseService(text)
		require.ErrorContains(t, err, want, text)
	}
}

func FuzzParsePeer(f *testing.F) {
	for _, text := range []string{"10.0.0.0/8", "host", "label:app=db,!tier,a!=b|c", "alloc:web-1", "fd00::1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePeer(text)
		if err != nil {
			return
		}
		again, err := ParsePeer(p.String())
		require.NoError(t, err)
		require.Equal(t, p.String(), again.String())
		encoded, err := json.Marshal(&Policy{Ingress: &Direction{Rules: []Rule{{Peers: []Peer{p}}}}})
		require.NoError(t, err)
		_, err = Parse(encoded)
		require.NoError(t, err)
	})
}

func FuzzParseService(f *testing.F) {
	f.Add("tcp/80-90")
	f.Add("icmp/8")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseService(text); err == nil {
			again, err := ParseService(s.String())
			require.NoError(t, err)
			require.Equal(t, s, again)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(example)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse([]byte(text))
		if err != nil {
			return
		}
		encoded, err := json.Marshal(p)
		require.NoError(t, err)
		back, err := Parse(encoded)
		require.NoError(t, err, "%s", encoded)
		require.Equal(t, string(p.Canonical()), string(back.Canonical()))
	})
}

func TestParseFlow(t *testing.T) {
	for text, want := range map[string]Flow{
		"tcp/443": {Protocol: 6, Port: 443}, "443/tcp": {Protocol: 6, Port: 443}, "icmp": {Protocol: 1, Port: 8}, "icmp/3": {Protocol: 1, Port: 3},
		"icmpv6": {Protocol: 58, Port: 128}, "sctp/9": {Protocol: 132, Port: 9},
	} {
		got, err := ParseFlow(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	require.Equal(t, "udp/53", Flow{Protocol: 17, Port: 53}.String())
	require.Equal(t, "47", Flow{Protocol: 47}.String())
	for _, text := range []string{"tcp", "tcp/1-2", "x/1", "70000/tcp", "tcp/", ""} {
		_, err := ParseFlow(text)
		require.Error(t, err, text)
	}
}
