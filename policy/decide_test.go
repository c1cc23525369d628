package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The peers of the tests.
var (
	web   = Remote{Addr: netip.MustParseAddr("10.1.0.5"), Known: true, Allocation: "web-1", Labels: map[string]string{"app": "web"}}
	other = Remote{Addr: netip.MustParseAddr("10.1.0.6"), Known: true, Allocation: "other"}
	host  = Remote{Addr: netip.MustParseAddr("10.1.0.1"), Host: true}
)

func from(addr string) Remote { return Remote{Addr: netip.MustParseAddr(addr)} }

func tcp(port uint16) Flow { return Flow{protoTCP, port} }

// rules makes a policy for egress from lines "ACTION PEER[ PEER] -- [SERVICE ...]"; a first
// line "deny" is the default.
func rules(t *testing.T, lines ...string) *Policy {
	t.Helper()
	d := &Direction{}
	for _, line := range lines {
		if line == "deny" {
			d.Default = Deny
			continue
		}
		before, services, _ := strings.Cut(line, " --")
		action, peers, _ := strings.Cut(before, " ")
		r := Rule{Action: Verdict(action)}
		for _, text := range strings.Fields(peers) {
			p, err := ParsePeer(text)
			require.NoError(t, err)
			r.Peers = append(r.Peers, p)
		}
		for _, text := range strings.Fields(services) {
			s, err := ParseService(text)
			require.NoError(t, err)
			r.Services = append(r.Services, s)
		}
		d.Rules = append(d.Rules, r)
	}
	p := &Policy{Egress: d}
	require.NoError(t, p.Validate())
	return p
}

func TestDecide(t *testing.T) {
	ping := Flow{protoICMP, 8}
	for name, c := range map[string]struct {
		rules  []string
		remote Remote
		flow   Flow
		want   string
	}{
		"no rule":                     {nil, web, tcp(80), "allow default"},
		"default":                     {[]string{"deny"}, web, tcp(80), "deny default"},
		"no peers":                    {[]string{"deny", "allow -- tcp/80"}, web, tcp(80), "allow egress.rules[0]"},
		"another port":                {[]string{"deny", "allow -- tcp/80"}, web, tcp(81), "deny default"},
		"another protocol":            {[]string{"deny", "allow -- tcp/80"}, web, Flow{protoUDP, 80}, "deny default"},
		"range":                       {[]string{"deny", "allow -- tcp/80-90"}, web, tcp(90), "allow egress.rules[0]"},
		"deny wins":                   {[]string{"allow -- tcp", "deny -- tcp/80"}, web, tcp(80), "deny egress.rules[1]"},
		"deny wins in either order":   {[]string{"deny --", "allow -- tcp/80"}, web, tcp(80), "deny egress.rules[0]"},
		"ID over labels":              {[]string{"allow alloc:web-1", "deny label:app=web"}, web, tcp(80), "allow egress.rules[0]"},
		"labels over CIDR":            {[]string{"allow label:app", "deny 10.1.0.5/32"}, web, tcp(80), "allow egress.rules[0]"},
		"other labels":                {[]string{"allow label:app", "deny 10.1.0.6/32"}, other, tcp(80), "deny egress.rules[1]"},
		"no label":                    {[]string{"allow label:!app", "deny 10.1.0.6/32"}, other, tcp(80), "allow egress.rules[0]"},
		"every allocation":            {[]string{"deny", "allow label:"}, other, tcp(80), "allow egress.rules[0]"},
		"labels need an allocation":   {[]string{"deny", "allow label:"}, from("10.1.0.9"), tcp(80), "deny default"},
		"host over CIDR":              {[]string{"deny", "allow host", "deny 10.1.0.1/32"}, host, tcp(80), "allow egress.rules[0]"},
		"longer prefix":               {[]string{"deny 10.0.0.0/8", "allow 10.1.0.0/16"}, from("10.1.2.3"), tcp(80), "allow egress.rules[1]"},
		"longer prefix, service":      {[]string{"allow 10.0.0.0/8", "deny 10.1.0.0/16 -- tcp/22"}, from("10.1.2.3"), tcp(23), "allow egress.rules[0]"},
		"CIDR over world":             {[]string{"allow world", "deny 8.0.0.0/8"}, from("8.8.8.8"), tcp(80), "deny egress.rules[1]"},
		"world over no peers":         {[]string{"deny --", "allow world"}, from("8.8.8.8"), tcp(80), "allow egress.rules[1]"},
		"world is not the host":       {[]string{"deny", "allow world"}, host, tcp(80), "deny default"},
		"world is no allocation":      {[]string{"deny", "allow world"}, web, tcp(80), "deny default"},
		"world is not link-local":     {[]string{"deny", "allow world"}, from("fe80::1"), tcp(80), "deny default"},
		"world is not metadata":       {[]string{"deny", "allow world"}, from("168.63.129.16"), tcp(80), "deny default"},
		"metadata over a CIDR":        {[]string{"allow 169.254.0.0/16", "deny metadata"}, from("169.254.169.254"), tcp(80), "deny egress.rules[1]"},
		"metadata is a full length":   {[]string{"allow 169.254.169.254/32", "deny metadata"}, from("169.254.169.254"), tcp(80), "deny egress.rules[1]"},
		"CIDR of an allocation":       {[]string{"deny", "allow 10.1.0.0/24"}, web, tcp(80), "allow egress.rules[0]"},
		"the most specific peer":      {[]string{"allow world alloc:web-1 0.0.0.0/0", "deny label:"}, web, tcp(80), "allow egress.rules[0]"},
		"mapped address":              {[]string{"deny", "allow 8.0.0.0/8"}, from("::ffff:8.8.8.8"), tcp(80), "allow egress.rules[0]"},
		"zone":                        {[]string{"allow world", "deny fe80::/64"}, from("fe80::1%eth0"), tcp(80), "deny egress.rules[1]"},
		"an allocation before host":   {[]string{"deny host"}, Remote{Addr: web.Addr, Known: true, Host: true}, tcp(80), "allow default"},
		"icmp":                        {[]string{"deny", "allow -- icmp"}, web, ping, "allow egress.rules[0]"},
		"icmp type":                   {[]string{"deny", "allow -- icmp/0"}, web, ping, "deny default"},
		"icmp is not icmpv6":          {[]string{"deny", "allow -- icmpv6/8"}, web, ping, "deny default"},
		"other protocols":             {[]string{"deny", "allow -- tcp udp sctp icmp icmpv6"}, web, Flow{Protocol: 47}, "deny default"},
		"other protocols, everything": {[]string{"deny", "allow --"}, web, Flow{Protocol: 47}, "allow egress.rules[0]"},
	} {
		p := rules(t, c.rules...)
		d := p.Decide(Egress, c.remote, c.flow)
		require.Equal(t, c.want, string(d.Verdict)+" "+d.Rule, name)
	}
}

// TestIngressFromTheHost checks that only rules that name the host deny it.
func TestIngressFromTheHost(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		want   Decision
	}{
		"default":  {Policy{Ingress: &Direction{Default: Deny}}, Decision{Allow, "host"}},
		"isolated": {Policy{Presets: []Preset{Isolated}}, Decision{Allow, "host"}},
		"all":      {Policy{Ingress: &Direction{Rules: []Rule{{Action: Deny}}}}, Decision{Allow, "host"}},
		"address":  {Policy{Ingress: &Direction{Rules: []Rule{{Action: Deny, Peers: []Peer{{CIDR: netip.MustParsePrefix("10.1.0.1/32")}}}}}}, Decision{Allow, "host"}},
		"named":    {Policy{Ingress: &Direction{Rules: []Rule{{Name: "no-host", Action: Deny, Peers: []Peer{{Name: "host"}}}}}}, Decision{Deny, "no-host"}},
		"service": {Policy{Ingress: &Direction{Default: Deny, Rules: []Rule{
			{Action: Deny, Peers: []Peer{{Name: "host"}}, Services: []Service{{Protocol: "udp"}}},
		}}}, Decision{Allow, "host"}},
	} {
		require.Equal(t, c.want, c.policy.Decide(Ingress, host, tcp(80)), name)
		requireSame(t, &c.policy, host, tcp(80))
	}
	require.Equal(t, Decision{Deny, "default"}, (&Policy{Presets: []Preset{Isolated}}).Decide(Egress, host, tcp(80)))
	require.Equal(t, Decision{Allow, "host"}, (*Policy)(nil).Decide(Ingress, host, tcp(80)))
}

func TestPresets(t *testing.T) {
	for name, c := range map[string]struct {
		policy *Policy
		egress map[string]string
	}{
		"isolated":    {&Policy{Presets: []Preset{Isolated}}, map[string]string{"8.8.8.8": "deny default", "10.0.0.1": "deny default"}},
		"egress-only": {&Policy{Presets: []Preset{EgressOnly}}, map[string]string{"8.8.8.8": "allow preset egress-only", "169.254.169.254": "deny default", "192.0.0.192": "deny default"}},
		"no-metadata": {&Policy{Presets: []Preset{NoMetadata}}, map[string]string{
			"8.8.8.8": "allow default", "169.254.169.254": "deny preset no-metadata", "169.254.1.1": "allow default",
			"fd00:ec2::254": "deny preset no-metadata", "100.100.100.200": "deny preset no-metadata",
		}},
		"no-private": {&Policy{Presets: []Preset{NoPrivate}}, map[string]string{
			"8.8.8.8": "allow default", "10.0.0.1": "deny preset no-private", "172.31.255.255": "deny preset no-private", "172.32.0.0": "allow default",
			"192.168.1.1": "deny preset no-private", "100.64.0.1": "deny preset no-private", "fd12::1": "deny preset no-private",
			"fe80::1": "deny preset no-private", "169.254.1.1": "deny preset no-private", "2001:db8::1": "allow default",
		}},
		"no-host": {&Policy{Presets: []Preset{NoHost}}, map[string]string{
			"8.8.8.8": "allow default", "10.0.0.1": "allow default", "169.254.169.254": "allow default",
		}},
		"together": {&Policy{Presets: []Preset{EgressOnly, NoPrivate, NoMetadata}}, map[string]string{
			"8.8.8.8": "allow preset egress-only", "10.0.0.1": "deny preset no-private", "169.254.169.254": "deny preset no-metadata",
		}},
		"isolated adds no rule": {&Policy{Presets: []Preset{Isolated, EgressOnly}}, map[string]string{"8.8.8.8": "allow preset egress-only"}},
		"own rules": {&Policy{Presets: []Preset{NoPrivate}, Egress: &Direction{Rules: []Rule{{Peers: []Peer{{CIDR: netip.MustParsePrefix("10.1.0.0/16")}}}}}}, map[string]string{
			"10.1.0.1": "allow egress.rules[0]", "10.2.0.1": "deny preset no-private",
		}},
	} {
		require.NoError(t, c.policy.Validate())
		for addr, want := range c.egress {
			d := c.policy.Decide(Egress, from(addr), tcp(80))
			require.Equal(t, want, string(d.Verdict)+" "+d.Rule, "%s: %s", name, addr)
		}
	}
	closed := &Policy{Presets: []Preset{NoHost}}
	gateway, other := Remote{Addr: netip.MustParseAddr("10.0.0.1"), Host: true, OwnNetwork: true}, Remote{Addr: netip.MustParseAddr("192.0.2.1"), Host: true}
	require.Equal(t, Decision{Allow, "default"}, closed.Decide(Egress, gateway, tcp(80)))
	require.Equal(t, Decision{Deny, "preset no-host"}, closed.Decide(Egress, other, tcp(80)))
	require.Equal(t, Decision{Allow, "host"}, closed.Decide(Ingress, other, tcp(80)))
	closed.Egress = &Direction{Rules: []Rule{{Name: "gateway", Action: Deny, Peers: []Peer{{Name: nameHost}}}}}
	require.Equal(t, Decision{Deny, "gateway"}, closed.Decide(Egress, gateway, tcp(80)))
	private := &Policy{Presets: []Preset{NoPrivate}}
	require.Equal(t, Decision{Deny, "preset no-private"}, private.Decide(Egress, Remote{Addr: netip.MustParseAddr("8.8.8.8"), Host: true}, tcp(80)))
	require.Equal(t, Decision{Allow, "default"}, private.Decide(Ingress, from("10.0.0.1"), tcp(80)))
	for _, preset := range []Preset{Isolated, EgressOnly} {
		require.Equal(t, Decision{Deny, "default"}, (&Policy{Presets: []Preset{preset}}).Decide(Ingress, from("8.8.8.8"), tcp(80)), preset)
	}
	for _, prefix := range Metadata() {
		require.True(t, prefix.IsSingleIP(), prefix)
	}
}

// TestSteps checks the order of steps, and that networks of one length are one of them.
func TestSteps(t *testing.T) {
	p := rules(t, "deny",
		"allow world -- tcp/1-100", "allow 10.0.0.0/8 11.0.0.0/8 10.1.0.0/16 -- tcp", "deny 10.2.0.0/16", "allow label:app=db host -- udp/53", "deny alloc:web-1", "allow -- icmp/8 tcp/80 tcp/90-91")
	steps, fallback := p.Steps(Egress)
	require.Equal(t, Deny, fallback)
	var list []string
	for _, s := range steps {
		list = append(list, fmt.Sprint(s.Verdict, " ", s.Rule, " ", s.Allocation, s.Selector != nil, s.Host, s.Prefixes, s.World, " ", s.Services))
	}
	require.Equal(t, []string{
		"deny egress.rules[4] web-1false false [] false [any]",
		"allow egress.rules[3] true false [] false [udp/53]",
		"allow egress.rules[3] false true [] false [udp/53]",
		"deny egress.rules[2] false false [10.2.0.0/16] false [any]",
		"allow egress.rules[1] false false [10.1.0.0/16] false [tcp]",
		"allow egress.rules[1] false false [10.0.0.0/8 11.0.0.0/8] false [tcp]",
		"allow egress.rules[0] false false [] true [tcp/1-100]",
		"allow egress.rules[5] false false [] false [icmp/8 tcp/80 tcp/90-91]",
	}, list)
	steps, fallback = (*Policy)(nil).Steps(Ingress)
	require.Equal(t, Allow, fallback)
	require.Equal(t, []Step{{Rule: "host", Verdict: Allow, Host: true, Services: []Span{{}}}}, steps)
}

func TestCanonical(t *testing.T) {
	p := rules(t, "deny", "allow label:b,a=1 10.0.0.0/8 -- tcp/80 tcp/81-81", "deny --")
	require.Equal(t, "egress allow 10.0.0.0/8 tcp/80\n"+
		"egress allow 10.0.0.0/8 tcp/81\n"+
		"egress allow label:a=1,b tcp/80\n"+
		"egress allow label:a=1,b tcp/81\n"+
		"egress default deny\n"+
		"egress deny everyone any\n"+
		"ingress default allow\n", string(p.Canonical()))
	preset := &Policy{Presets: []Preset{NoMetadata}}
	require.Equal(t, string(preset.Canonical()), string(rules(t, "deny metadata").Canonical()))
	require.Contains(t, string(preset.Canonical()), "egress deny 169.254.169.254/32 any\n")
	require.Equal(t, "egress default allow\ningress default allow\n", string((*Policy)(nil).Canonical()))
}
