package cleanup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// TestGuardOfLink: the guard of a link that only the allocation has is found and removed,
// although it names no owner. The guards of bridges and of other allocations stay.
func TestGuardOfLink(t *testing.T) {
	h := newTestHost(t)
	rules, err := ruleset.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rules.Close()) })
	own, other := names.Owner{Network: "net", ID: "a", IfName: "eth0"}, names.Owner{Network: "net", ID: "b", IfName: "eth0"}
	guard := func(link string) ruleset.Guard { return ruleset.Guard{Bridge: link, Isolated: true} }
	require.NoError(t, rules.Add(t.Context(), &ruleset.Elements{Owner: own, Guarded: []ruleset.Guard{guard(own.Veth()), guard(other.Veth()), guard("br0")}}))

	target := Target{ID: "a", Attachments: []Attachment{{Network: "net", IfName: "eth0",
		Config: []byte(`{"name": "net", "plugins": [{"type": "ptp"}, {"type": "firewall", "ingressPolicy": "isolated"}]}`)}}}
	wanted := []string{
		`nftables-element table allocnet guarded bridge "` + own.Veth() + `"`,
		`nftables-element table allocnet isolated ports of bridge "` + own.Veth() + `"`,
	}
	require.ElementsMatch(t, wanted, h.audit(target))
	require.ElementsMatch(t, wanted, h.force(target))
	require.Empty(t, h.audit(target))
	for _, link := range []string{other.Veth(), "br0"} {
		left, err := rules.Guards(t.Context(), []string{link})
		require.NoError(t, err)
		require.Len(t, left, 2, link)
		require.NoError(t, rules.DelGuard(t.Context(), link))
	}
}
