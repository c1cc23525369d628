package ruleset

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestServices: host ports of every address leave the addresses of services alone, those of one address do not.
func TestServices(t *testing.T) {
	eachFamily(t, []string{"0"}, func(t *testing.T, n *testNet, prefix func(network, n int) netip.Prefix) {
		addr := func(network, number int) netip.Addr { return prefix(network, number).Addr() }
		service := addr(net1, 1)
		except := func(want bool, list ...netip.Addr) {
			t.Helper()
			changed, err := n.ExceptServices(t.Context(), list)
			require.NoError(t, err)
			require.Equal(t, want, changed)
		}
		except(false, service) // without tables
		n.serve(nil, "service", netip.AddrPortFrom(service, 8080).String())
		require.NoError(t, n.Add(t.Context(), n.elements(SNATLocal)))
		to := func() *Mapping {
			t.Helper()
			m, _, err := n.Destination(t.Context(), service, unix.IPPROTO_TCP, 8080)
			require.NoError(t, err)
			return m
		}
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(net1, 2)), n.c, service, 8080)
		require.Equal(t, netip.AddrPortFrom(addr(net0, 2), 80), to().To)
		except(true, service)
		except(false, service)
		require.NoError(t, n.Check(t.Context(), n.elements(SNATLocal)))
		n.wantAnswer(fmt.Sprintf("service sees %s", addr(net1, 2)), n.c, service, 8080)
		n.wantAnswer(fmt.Sprintf("service sees %s", service), nil, service, 8080)
		require.Nil(t, to())
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(wireNet, 2)), n.outside, addr(wireNet, 1), 8080)
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(net1, 2)), n.c, addr(net0, 1), 8080)
		except(true, addr4(wireNet, 1).Addr(), addr6(wireNet, 1).Addr())
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(net1, 2)), n.c, service, 8080)
		n.wantAnswer(fmt.Sprintf("a sees %s", addr(wireNet, 2)), n.outside, addr(wireNet, 1), 8081)
	})
}
