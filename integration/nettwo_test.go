package integration

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/policy"
)

// TestPolicyTwoStateDirectories: two users of one host with separate records have the same policy.
// Labels of the one select no allocations of the other, and neither removes what is the other's.
func TestPolicyTwoStateDirectories(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.connectOutside()
	other := h.in(t)
	other.cfg.StateDir = filepath.Join(t.TempDir(), "state")
	other.conf = filepath.Join(t.TempDir(), "net.d")
	require.NoError(t, os.Mkdir(other.conf, 0o755))
	other.cfg.ConfDir = other.conf
	var err error
	other.Configurator, err = configurator.New(other.cfg)
	require.NoError(t, err)
	h.network("first", policed("ptp", families{v4: "10.99.1.0/24"})...)
	other.network("second", policed("ptp", families{v4: "10.99.2.0/24"})...)

	p := &policy.Policy{
		Ingress: &policy.Direction{Default: policy.Deny, Rules: []policy.Rule{{Peers: []policy.Peer{{Selector: &policy.Selector{Labels: map[string]string{"app": "x"}}}}}}},
	}
	users := map[string]*host{"a": h, "b": h, "c": other, "d": other}
	allocs, addresses := map[string]configurator.Allocation{}, map[string]netip.Addr{}
	for _, id := range []string{"a", "b", "c", "d"} {
		a := h.alloc(id)
		a.Labels, a.Policy = map[string]string{"app": "x"}, p
		setSysctls(t, a.Netns, quick)
		answerAll(t, a.Netns, 80)
		s := users[id].setUp(a)
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
	other.tearDown(allocs["c"], allocs["d"])
	_, err = other.GC(other.ctx(), nil)
	require.NoError(t, err)
	require.NoError(t, h.CheckOnly(h.ctx(), allocs["a"]))
	h.requireFlows(flows("a", "b"))
	h.tearDown(allocs["a"], allocs["b"])
}
