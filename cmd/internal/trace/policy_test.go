package trace

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/policy"
)

// TestPolicy: the rule of a network policy that drops the probe is named, with its policy.
func TestPolicy(t *testing.T) {
	for _, main := range []string{"ptp", "bridge"} {
		t.Run(main, func(t *testing.T) { testPolicy(t, main) })
	}
}

func testPolicy(t *testing.T, main string) {
	h := newHostOf(t, main, configurator.EngineNative, `{"type":"policy","capabilities":{"policy":true},
		"policy":{"ingress":{"rules":[{"name":"no-documentation","action":"deny","peers":[{"cidr":"192.0.2.0/24"}],"services":[{"protocol":"udp"}]}]}}}`)
	set := func(text string) {
		t.Helper()
		p, err := policy.Parse([]byte(text))
		require.NoError(t, err)
		_, err = h.Update(t.Context(), "web", configurator.Change{Policy: p})
		require.NoError(t, err)
	}
	require.True(t, h.follow("tcp", true, true, "").Reached)
	requireDenied := func(protocol string, ipv4, remote bool, found, next string) {
		t.Helper()
		p := h.follow(protocol, ipv4, remote, "")
		s := failed(p)
		require.Equal(t, map[bool]string{true: "forward", false: "output"}[remote], s.Name, "%+v", p.Steps)
		require.Contains(t, s.Found, found)
		require.Contains(t, s.Next, next)
	}
	// The network alone denies something.
	requireDenied("udp", true, true, "denied by no-documentation of the policy of network net (ip allocnet_policy policy_",
		"in the configuration of its plugin policy")
	// Both do, and each decides on one of the protocols.
	set(`{"ingress":{"default":"deny"}}`)
	requireDenied("udp", true, true, "denied by no-documentation of the policy of network net", "change that rule")
	requireDenied("tcp", true, true, "denied by default of the policy of allocation web",
		`allow it with {"peers": [{"cidr": "192.0.2.7/32"}], "services": [{"protocol": "tcp", "ports": "80"}]} in ingress.rules: `+"`allocnet set web --policy FILE`")
	requireDenied("tcp", false, true, "denied by default of the policy of allocation web (ip6 allocnet_policy policy_", "allocnet policy explain web --from 2001:db8::7 tcp/80")
	require.True(t, h.follow("tcp", true, false, "").Reached, "from the host")
	// The remedy is one.
	set(`{"ingress":{"default":"deny","rules":[{"peers": [{"cidr": "192.0.2.7/32"}], "services": [{"protocol": "tcp", "ports": "80"}]}]}}`)
	require.True(t, h.follow("tcp", true, true, "").Reached)

	set(`{"ingress":{"rules":[{},{"action":"deny","peers":[{"cidr":"192.0.2.7/32"}],"services":[{"protocol":"tcp"}]}]}}`)
	requireDenied("tcp", true, true, "denied by ingress.rules[1] of the policy of allocation web", "change that rule, or, if its peer is less specific, allow it")
	if main == "bridge" {
		set(`{"ingress":{"rules":[{"name":"no-host","action":"deny","peers":[{"name":"host"}]}]}}`)
		requireDenied("tcp", true, false, "denied by no-host of the policy of allocation web", "allocnet policy explain web --from host tcp/80")
	}
	if main == "ptp" {
		h.run("nft flush map ip allocnet_policy ingress_links")
		requireDenied("tcp", true, true, "drop by rule ", "`allocnet repair` restores it")
		_, err := h.Repair(t.Context())
		require.NoError(t, err)
	}
}
