package policy

import (
	"encoding/json"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/policystate"
	"github.com/allocnet/allocnet/policy"
)

func TestNew(t *testing.T) {
	for conf, want := range map[string]string{
		`{"policy": {"presets": ["no"]}}`: `check policy: presets[0]: "no" is unknown; the presets are egress-only isolated no-host no-metadata no-private published-only`,
		`{"policy": null}`:                "check policy: it is null: leave the key out, or give it a value",
		`{"runtimeConfig": {"policy": {"labels": {"namespace.allocnet/team": "a"}}}}`: `label "namespace.allocnet/team" is reserved for labels of namespaces`,
		`{"runtimeConfig": {"policy": {"policy": {"egress": {"default": "no"}}}}}`:    `runtimeConfig: check policy: egress.default: "no" is not allow or deny`,
	} {
		_, err := New([]byte(conf))
		require.EqualError(t, err, want, conf)
		var coded *types.Error
		require.ErrorAs(t, err, &coded)
		require.EqualValues(t, types.ErrInvalidNetworkConfig, coded.Code, conf)
	}
	for conf, want := range map[string]string{`{`: "", `{"policy": {"ingres": {}}}`: "ingres"} {
		_, err := New([]byte(conf))
		require.ErrorContains(t, err, want, conf)
	}
	p, err := New([]byte(`{"name": "net", "type": "policy", "policy": {"presets": ["isolated"]},
		"runtimeConfig": {"policy": {"allocation": "a", "labels": {"app": "x"}}}}`))
	require.NoError(t, err)
	require.Equal(t, Request{Allocation: "a", Labels: map[string]string{"app": "x"}}, p.(*plugin).request)
	again, err := p.(sdk.RuntimeConfigured).WithRuntime(map[string]json.RawMessage{"policy": json.RawMessage(`{"allocation": "b"}`)})
	require.NoError(t, err)
	require.Equal(t, Request{Allocation: "b"}, again.(*plugin).request, "nothing remains of another allocation")
	require.Equal(t, "a", p.(*plugin).request.Allocation, "the former is not changed")
}

// TestPoliciesOfSeveralAllocations: what is kept of the latest policy serves only allocations with the
// same text, of the same instance.
func TestPoliciesOfSeveralAllocations(t *testing.T) {
	base, err := New([]byte(`{"name": "net", "type": "policy"}`))
	require.NoError(t, err)
	of := func(instance, request string) *compiled {
		p, err := base.(sdk.RuntimeConfigured).WithRuntime(map[string]json.RawMessage{"policy": json.RawMessage(request)})
		require.NoError(t, err)
		c, err := p.(*plugin).compile(instance, &types100.Result{})
		require.NoError(t, err)
		return c
	}
	isolated, noMetadata := `{"allocation": "a", "policy": {"presets": ["isolated"]}}`, `{"allocation": "b", "policy": {"presets": ["no-metadata"]}}`
	first := of("", isolated)
	require.Same(t, first, of("", strings.Replace(isolated, `"a"`, `"c"`, 1)))
	require.NotEqual(t, first.ID, of("", noMetadata).ID)
	require.Nil(t, of("", `{"allocation": "d"}`))
	require.Equal(t, first.ID, of("", isolated).ID)
	require.NotEqual(t, first.ID, of("other", isolated).ID)
	for range 2 {
		_, err = base.(sdk.RuntimeConfigured).WithRuntime(map[string]json.RawMessage{"policy": json.RawMessage(`{"policy": {"presets": ["no"]}}`)})
		require.ErrorContains(t, err, `"no"`)
	}
}

func mustCompile(t *testing.T, instance string, texts ...string) *compiled {
	t.Helper()
	var list []*policy.Policy
	for _, text := range texts {
		p, err := policy.Parse([]byte(text))
		require.NoError(t, err)
		list = append(list, p)
	}
	c, err := compile(instance, "", nil, list...)
	require.NoError(t, err)
	return c
}

// TestCompile: what allows everything needs no policy, equal policies share one, and those of another
// instance are others.
func TestCompile(t *testing.T) {
	c, err := compile("", "", nil, nil, nil)
	require.NoError(t, err)
	require.Nil(t, c)
	require.Nil(t, mustCompile(t, "", `{}`, `{"egress": {"rules": [{"peers": [{"name": "world"}]}]}}`))

	const selecting = `{"ingress": {"default": "deny", "rules": [{"peers": [{"labels": {"tier": "1", "app": "x"}}, {"allocation": "a"}]}]}}`
	c = mustCompile(t, "", selecting)
	require.Len(t, c.Ingress, 1)
	require.Empty(t, c.Egress)
	require.Len(t, c.Selections, 2)
	require.ElementsMatch(t, []string{policystate.LabelKey("app", "x"), policystate.AllocationKey("a")}, []string{c.Selections[0].Label, c.Selections[1].Label})
	require.Equal(t, c.ID, mustCompile(t, "", selecting).ID)
	other := mustCompile(t, "other", selecting)
	require.NotEqual(t, c.ID, other.ID)
	require.NotEqual(t, c.Selections[0].Name, other.Selections[0].Name)
	both := mustCompile(t, "", `{"presets": ["no-metadata"]}`, selecting)
	require.Len(t, both.Egress, 1, "that of the network")
	require.NotEqual(t, c.ID, both.ID)
}

// TestCompileMetadata: rules that deny metadata come first, for connections that are redirected. Others only match
// where these lead.
func TestCompileMetadata(t *testing.T) {
	c := mustCompile(t, "", `{"egress": {"default": "deny", "rules": [{"name": "a", "peers": [{"name": "metadata"}]}, {"name": "b", "peers": [{"name": "host"}, {"name": "world"}]},
		{"name": "c", "action": "deny", "peers": [{"cidr": "169.254.169.254/32"}, {"cidr": "10.0.0.1/32"}], "services": [{"protocol": "tcp", "ports": "80"}]}]},
		"ingress": {"rules": [{"action": "deny", "peers": [{"name": "metadata"}]}]}}`)
	first := c.Egress[0].Rules[0]
	require.Equal(t, "c", first.Name)
	require.Equal(t, ruleset.Peer{Original: []netip.Prefix{netip.MustParsePrefix("169.254.169.254/32")}}, first.Peer)
	require.Equal(t, uint16(80), first.Services[0].First)
	for _, r := range c.Egress[0].Rules[1:] {
		require.Equal(t, r.Peer.World, len(r.Peer.Original) > 0, r.Name)
	}
	for _, r := range c.Ingress[0].Rules {
		require.Empty(t, r.Peer.Original)
	}
}

// TestSelects: the label under which members are found is one that all selected ones have.
func TestSelects(t *testing.T) {
	c := mustCompile(t, "", `{"ingress": {"default": "deny", "rules": [{"peers": [{"labels": {"app": "x"}}]}, {"peers": [{"expressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}]}, {"peers": [{"allocation": "a"}]}]}}`)
	require.Len(t, c.Selections, 3)
	for _, test := range []struct {
		m    policystate.Member
		want int // how many select it
	}{
		{policystate.Member{Labels: map[string]string{"app": "x"}}, 1},
		{policystate.Member{Labels: map[string]string{"app": "y"}}, 1},
		{policystate.Member{}, 1},
		{policystate.Member{Allocation: "a", Labels: map[string]string{"app": "x"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, 2},
	} {
		n := 0
		for i := range c.Selections {
			yes, err := selects(&c.Selections[i], &test.m)
			require.NoError(t, err)
			if yes {
				n++
			}
		}
		require.Equal(t, test.want, n, "%+v", test.m)
	}
	_, err := selects(&policystate.Selection{Name: "n", Selector: json.RawMessage(`{`)}, &policystate.Member{})
	require.ErrorContains(t, err, "selection n")
}

// TestFamilyOfPolicy: allocations with other families have other policies.
func TestFamilyOfPolicy(t *testing.T) {
	base, err := New([]byte(`{"name": "net", "type": "policy", "policy": {"presets": ["no-metadata"]}}`))
	require.NoError(t, err)
	of := func(addresses ...string) *compiled {
		r := &types100.Result{Interfaces: []*types100.Interface{{Name: "eth0", Sandbox: "/n"}}}
		for _, text := range addresses {
			ip, network, err := net.ParseCIDR(text)
			require.NoError(t, err)
			network.IP = ip
			r.IPs = append(r.IPs, &types100.IPConfig{Interface: types100.Int(0), Address: *network})
		}
		c, err := base.(*plugin).compile("", r)
		require.NoError(t, err)
		return c
	}
	v4, v6, both, none := of("10.0.0.2/24"), of("fd00::2/64"), of("10.0.0.2/24", "fd00::2/64"), of()
	require.Equal(t, ruleset.PolicyIPv4, v4.Family)
	require.Equal(t, ruleset.PolicyIPv6, v6.Family)
	require.Empty(t, both.Family)
	require.Equal(t, both.ID, none.ID)
	require.NotEqual(t, v4.ID, v6.ID)
	require.NotEqual(t, v4.ID, both.ID)
	require.Equal(t, v4.ID, of("10.0.0.3/24").ID)
}
