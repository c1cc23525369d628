package policy

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/policy"
)

// TestPolicyTwoStateDirectories: two users of one host with separate records have the same policy.
// Labels of the one select no allocations of the other, and neither removes what is the other's.
func TestPolicyTwoStateDirectories(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.connectOutside()
	other := h.in(t)
	other.Config.StateDir = filepath.Join(t.TempDir(), "state")
	other.ConfDir = filepath.Join(t.TempDir(), "net.d")
	require.NoError(t, os.Mkdir(other.ConfDir, 0o755))
	other.Config.ConfDir = other.ConfDir
	var err error
	other.Configurator, err = configurator.New(other.Config)
	require.NoError(t, err)
	h.Network("first", policed("ptp", testbed.Families{V4: "10.99.1.0/24"})...)
	other.Network("second", policed("ptp", testbed.Families{V4: "10.99.2.0/24"})...)

	p := &policy.Policy{
		Ingress: &policy.Direction{Default: policy.Deny, Rules: []policy.Rule{{Peers: []policy.Peer{{Selector: &policy.Selector{Labels: map[string]string{"app": "x"}}}}}}},
	}
	users := map[string]*host{"a": h, "b": h, "c": other, "d": other}
	allocs, addresses := map[string]configurator.Allocation{}, map[string]netip.Addr{}
	for _, id := range []string{"a", "b", "c", "d"} {
		a := h.Alloc(id)
		a.Labels, a.Policy = map[string]string{"app": "x"}, p
		testbed.SetSysctls(t, a.Netns, testbed.Quick)
		answerAll(t, a.Netns, 80)
		s := users[id].SetUp(a)
		allocs[id], addresses[id] = a, netip.MustParseAddr(s.Address)
	}
	flows := func(ids ...string) (list []*flow) {
		for _, from := range ids {
			for _, to := range ids {
				if from != to {
					list = append(list, &flow{
						name: from + " to " + to, netns: allocs[from].Netns, protocol: "udp", to: netip.AddrPortFrom(addresses[to], 80),
						want: users[from] == users[to],
					})
				}
			}
		}
		return list
	}
	h.requireFlows(flows("a", "b", "c", "d"))
	other.TearDown(allocs["c"], allocs["d"])
	_, err = other.GC(other.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, h.CheckOnly(h.Context(), allocs["a"]))
	h.requireFlows(flows("a", "b"))
	h.TearDown(allocs["a"], allocs["b"])
}
