package veth

import (
	"net"
	"net/netip"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// TestElementsOfRules: one set of elements has those of the masquerading, unless a backend makes its
// rules, and those of the source guard. The rules of a backend need a CHECK.
func TestElementsOfRules(t *testing.T) {
	backend := "nftables"
	address := netip.MustParsePrefix("10.9.0.2/24")
	port := ruleset.BridgePort{Name: "veth0", Addresses: []netip.Addr{address.Addr()}}
	guard := func(*sdk.CmdArgs, *types100.Result) []ruleset.BridgePort { return []ruleset.BridgePort{port} }
	r := &types100.Result{IPs: []*types100.IPConfig{{Address: net.IPNet{IP: net.IP{10, 9, 0, 2}, Mask: net.CIDRMask(24, 32)}}}}
	c := &sdk.CmdArgs{ContainerID: "web", IfName: "eth0"}
	for name, test := range map[string]struct {
		masquerade             Masquerade
		guard                  Guard
		masqueraded, guarded   bool
		wants, wantsIndividual bool
	}{
		"none":              {},
		"masquerading":      {masquerade: Masquerade{On: true}, masqueraded: true, wants: true},
		"backend":           {masquerade: Masquerade{On: true, Backend: &backend}, wantsIndividual: true},
		"backend, off":      {masquerade: Masquerade{Backend: &backend}},
		"guard":             {guard: guard, guarded: true, wants: true},
		"both":              {masquerade: Masquerade{On: true}, guard: guard, masqueraded: true, guarded: true, wants: true},
		"guard and backend": {masquerade: Masquerade{On: true, Backend: &backend}, guard: guard, guarded: true, wants: true, wantsIndividual: true},
	} {
		t.Run(name, func(t *testing.T) {
			test.masquerade.Network = "net"
			u := Rules{Network: "net", Masquerade: test.masquerade, Guard: test.guard}
			want := &ruleset.Elements{Owner: c.Owner("net")}
			if test.masqueraded {
				want.Masquerade = []netip.Prefix{address}
			}
			if test.guarded {
				want.Ports = []ruleset.BridgePort{port}
			}
			require.Equal(t, want, u.elements(c, r))
			w := &sdk.Wanted{}
			u.Want(w, c, r)
			require.Equal(t, test.wantsIndividual, w.Individual)
			require.Equal(t, test.wants, w.Elements != nil)
		})
	}
}
