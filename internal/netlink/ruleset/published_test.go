package ruleset

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPublishedOnly: other hosts and networks reach an address at host ports, the host and allocations of the same
// network at every port.
func TestPublishedOnly(t *testing.T) {
	eachFamily(t, []string{"0", "1"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		addr := func(network, number int) netip.Addr { return prefix(network, number).Addr() }
		require.NoError(t, n.outside.Do(func() error {
			run(t, "ip", "route", "add", prefix(net0, 0).String(), "via", addr(wireNet, 1).String())
			return nil
		}))
		e := n.elements(SNATLocal)
		require.NoError(t, n.Add(t.Context(), e))
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(wireNet, 2)), n.outside, addr(net0, 2), 80)
		e.PublishedOnly = []netip.Prefix{addr4(net0, 2), addr6(net0, 2)}
		neighbour := &Elements{Owner: owner("b"), PublishedOnly: []netip.Prefix{addr4(net0, 3), addr6(net0, 3)}}
		other := &Elements{Owner: owner("c"), PublishedOnly: []netip.Prefix{addr4(net1, 2), addr6(net1, 2)}}
		for _, one := range []*Elements{e, neighbour, other} {
			require.ErrorIs(t, n.Check(t.Context(), one), ErrMissing)
			require.NoError(t, n.Add(t.Context(), one))
			require.NoError(t, n.Check(t.Context(), one))
		}
		for _, port := range []int{8080, 8081} {
			n.wantAnswer(fmt.Sprintf("a sees %s", addr(wireNet, 2)), n.outside, addr(wireNet, 1), port)
			n.wantAnswer(fmt.Sprintf("a sees %s", addr(net1, 2)), n.c, addr(wireNet, 1), port)
			n.wantAnswer(fmt.Sprintf("a sees %s", addr(net0, 1)), n.b, addr(wireNet, 1), port)
		}
		n.wantSilence(n.outside, addr(net0, 2), 80)
		n.wantSilence(n.c, addr(net0, 2), 80)
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(net0, 1)), nil, addr(net0, 2), 80)
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(net0, 3)), n.b, addr(net0, 2), 80)
		n.wantAnswer(fmt.Sprintf("outside sees %s", addr(wireNet, 1)), n.a, addr(wireNet, 2), 80)

		require.NoError(t, n.Del(t.Context(), e))
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(wireNet, 2)), n.outside, addr(net0, 2), 80)
	})
}
