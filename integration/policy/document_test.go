package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/policy/networkpolicy"
)

// pods are allocations of pods, each with servers at ports.
type pods struct {
	*host
	status map[string]*configurator.Status
	allocs []configurator.Allocation
}

// add sets up an allocation for a pod.
func (p *pods) add(id string, pod networkpolicy.Pod, of *policy.Policy, ports ...int) configurator.Allocation {
	p.T.Helper()
	a := p.Alloc(id)
	var err error
	a.AllowReservedLabels = true
	a.Labels, err = pod.AllocationLabels()
	require.NoError(p.T, err)
	a.Policy = of
	p.InNew(a, func() {
		testbed.SetSysctls(p.T, a.Netns, testbed.Quick)
		for _, port := range ports {
			testbed.Serve(p.T, a.Netns, "tcp", port, id)
		}
	})
	p.status[id] = p.SetUp(a)
	p.allocs = append(p.allocs, a)
	return a
}

// at returns a port at the addresses of an allocation.
func (p *pods) at(id string, port int) []string {
	s := p.status[id]
	return []string{testbed.At(netip.MustParseAddr(s.Address), port), testbed.At(netip.MustParseAddr(s.AddressIPv6), port)}
}

func newPods(t *testing.T) *pods {
	h := newHost(t, configurator.EngineNative)
	testbed.SetSysctls(t, "", testbed.Quick)
	h.Network("net", policed("ptp", testbed.Dual)...)
	return &pods{host: h, status: map[string]*configurator.Status{}}
}

func document(t *testing.T, pod networkpolicy.Pod, spec string) *policy.Policy {
	t.Helper()
	set, err := networkpolicy.Parse([]byte(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"p"},"spec":` + spec + `}`))
	require.NoError(t, err)
	p, err := set.For(pod)
	require.NoError(t, err)
	return p
}

// TestNamedPorts: a named port of an egress rule is, at each peer, the port that has this name there.
func TestNamedPorts(t *testing.T) {
	p := newPods(t)
	web := func(number uint16) []networkpolicy.Port {
		return []networkpolicy.Port{{Name: "web", Protocol: "tcp", Number: number}}
	}
	client := networkpolicy.Pod{PeerPorts: append(web(80), web(8080)...)}
	p.add("b", networkpolicy.Pod{Ports: web(80)}, nil, 80, 8080)
	p.add("c", networkpolicy.Pod{Ports: web(8080)}, nil, 80, 8080)
	outside := testhost.Outside4.Addr()
	testbed.Serve(t, p.Outside.Path(), "tcp", 80, "outside")
	a := p.add("a", client, document(t, client, `{"egress":[
		{"to":[{"podSelector":{}},{"ipBlock":{"cidr":"0.0.0.0/0"}}],"ports":[{"port":"web"}]},{"to":[{"ipBlock":{"cidr":"`+outside.String()+`/32"}}],"ports":[{"port":81}]}]}`))
	for _, at := range p.at("b", 80) {
		testbed.RequireAnswer(t, a.Netns, "tcp", at, "b")
	}
	for _, at := range p.at("c", 8080) {
		testbed.RequireAnswer(t, a.Netns, "tcp", at, "c")
	}
	for _, at := range append(append(p.at("b", 8080), p.at("c", 80)...), testbed.At(outside, 80)) {
		testbed.RequireSilence(t, a.Netns, "tcp", at)
	}
	p.TearDown(p.allocs...)
}

// TestManyNamespaces: many peers with many ports are possible, and stay so in CHECK, after a flush and a
// repair, and in an update.
func TestManyNamespaces(t *testing.T) {
	p := newPods(t)
	var peers, ports []string
	for i := range 30 {
		peers = append(peers, fmt.Sprintf(`{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns-%d"}}}`, i))
	}
	for i := range 50 {
		ports = append(ports, fmt.Sprintf(`{"port":%d}`, 8000+2*i))
	}
	spec := func(peers []string) string {
		return `{"ingress":[{"from":[` + strings.Join(peers, ",") + `],"ports":[` + strings.Join(ports, ",") + `]}]}`
	}
	db := p.add("db", networkpolicy.Pod{}, document(t, networkpolicy.Pod{}, spec(peers)), 8098, 8099)
	last := p.add("last", networkpolicy.Pod{Namespace: "ns-29"}, nil)
	other := p.add("other", networkpolicy.Pod{Namespace: "ns-30"}, nil)
	reaches := func(answers bool) {
		t.Helper()
		for _, at := range p.at("db", 8098) {
			if answers {
				testbed.RequireAnswer(t, last.Netns, "tcp", at, "db")
			} else {
				testbed.RequireSilence(t, last.Netns, "tcp", at)
			}
			testbed.RequireSilence(t, other.Netns, "tcp", at)
		}
		testbed.RequireSilence(t, last.Netns, "tcp", p.at("db", 8099)[0])
	}
	require.NoError(t, p.CheckOnly(p.Context(), db))
	reaches(true)
	privhost.FlushRuleset(t)
	_, err := p.Repair(p.Context())
	require.NoError(t, err)
	require.NoError(t, p.CheckOnly(p.Context(), db))
	reaches(true)
	_, err = p.Update(p.Context(), "db", configurator.Change{Policy: document(t, networkpolicy.Pod{}, spec(peers[:29]))})
	require.NoError(t, err)
	reaches(false)
	p.TearDown(p.allocs...)
}
