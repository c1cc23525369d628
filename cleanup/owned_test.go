package cleanup

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

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

// TestRenamedLink: a link that names its owner is found and removed under any name, with and
// without a result, and with the ID alone. Links of other owners stay.
func TestRenamedLink(t *testing.T) {
	own, other := names.Owner{Network: "net", ID: "a", IfName: "eth0"}, names.Owner{Network: "net", ID: "b", IfName: "eth0"}
	config := []byte(`{"name": "net", "plugins": [{"type": "ptp"}]}`)
	result := `{"cniVersion": "1.0.0", "interfaces": [{"name": "` + own.Veth() + `", "mac": "02:00:00:00:00:01"}, {"name": "eth0", "sandbox": "/run/netns/a"}]}`
	for name, attachments := range map[string][]Attachment{
		"with the result":  {{Network: "net", IfName: "eth0", Config: config, Result: []byte(result)}},
		"without a result": {{Network: "net", IfName: "eth0", Config: config}},
		"by the ID":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			make := func(name string, owner names.Owner) {
				link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
				require.NoError(t, netlink.LinkAdd(link))
				t.Cleanup(func() { _ = netlink.LinkDel(link) })
				require.NoError(t, netlink.LinkSetAlias(link, owner.String()))
			}
			make("renamed0", own)
			make("renamed1", other)
			instance := ""
			target := Target{ID: "a", Instance: &instance, Attachments: attachments}
			require.Equal(t, []string{`link renamed0 (network "net")`}, h.audit(target))
			require.Equal(t, []string{`link renamed0 (network "net")`}, h.force(target))
			require.Empty(t, h.audit(target))
			_, err := netlink.LinkByName("renamed1")
			require.NoError(t, err)
		})
	}
}
