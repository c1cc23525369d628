package policy_test

import (
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/policy/networkpolicy"
)

// TestDocument checks the examples in docs/policy.md: its policies, the notations in its
// tables, the rules in its text, and the decisions that it explains.
func TestDocument(t *testing.T) {
	data, err := os.ReadFile("../docs/policy.md")
	require.NoError(t, err)
	text := string(data)
	var policies []*policy.Policy
	for _, found := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(text, -1) {
		if strings.Contains(found[1], `"kind"`) {
			set, err := networkpolicy.Parse([]byte(found[1]))
			require.NoError(t, err)
			p, err := set.For(networkpolicy.Pod{Namespace: "shop", Labels: map[string]string{"app": "db"}})
			require.NoError(t, err)
			require.NotEmpty(t, p.Ingress.Rules)
			continue
		}
		if strings.Contains(found[1], `"plugins"`) {
			continue // integration/docs checks networks
		}
		p, err := policy.Parse([]byte(found[1]))
		require.NoError(t, err)
		policies = append(policies, p)
	}
	require.Len(t, policies, 5)

	rules := regexp.MustCompile("`(\\{[^`\n]*\"peers\"[^`]*\\})`").FindAllStringSubmatch(text, -1)
	require.Len(t, rules, 3)
	for _, found := range rules {
		_, err := policy.Parse([]byte(`{"egress":{"rules":[` + found[1] + `]}}`))
		require.NoError(t, err, found[1])
	}

	notations := 0
	for _, found := range regexp.MustCompile("(?m)^\\| `(\\{.*\\})` \\| `(.*?)` \\|").FindAllStringSubmatch(text, -1) {
		var fromText, fromJSON policy.Rule
		field, element := "peers", &fromText
		if peer, err := policy.ParsePeer(found[2]); err == nil {
			element.Peers = []policy.Peer{peer}
		} else {
			service, err := policy.ParseService(found[2])
			require.NoError(t, err, found[2])
			field, element.Services = "services", []policy.Service{service}
		}
		p, err := policy.Parse([]byte(`{"egress":{"rules":[{"` + field + `":[` + found[1] + `]}]}}`))
		require.NoError(t, err, found[1])
		fromJSON = p.Egress.Rules[0]
		same := func(r policy.Rule) string {
			return string((&policy.Policy{Egress: &policy.Direction{Rules: []policy.Rule{r}}}).Canonical())
		}
		require.Equal(t, same(fromText), same(fromJSON), found[0])
		notations++
	}
	require.Equal(t, 12, notations)

	decisions := regexp.MustCompile("(?m)^\\| ([0-9.]+), (TCP|UDP) port ([0-9]+) \\| (\\w+), `(.*?)` \\|").FindAllStringSubmatch(text, -1)
	require.Len(t, decisions, 4)
	for _, found := range decisions {
		service, err := policy.ParseService(strings.ToLower(found[2]) + "/" + found[3])
		require.NoError(t, err)
		d := policies[0].Decide(policy.Egress, policy.Remote{Addr: netip.MustParseAddr(found[1])}, flowOf(t, service))
		require.Equal(t, policy.Decision{Verdict: policy.Verdict(found[4]), Rule: found[5]}, d, found[0])
	}
}

// flowOf returns a packet to a single port.
func flowOf(t *testing.T, s policy.Service) policy.Flow {
	t.Helper()
	steps, _ := (&policy.Policy{Egress: &policy.Direction{Rules: []policy.Rule{{Services: []policy.Service{s}}}}}).Steps(policy.Egress)
	require.Len(t, steps, 1)
	service := steps[0].Services[0]
	require.Equal(t, service.First, service.Last)
	return policy.Flow{Protocol: service.Protocol, Port: service.First}
}
