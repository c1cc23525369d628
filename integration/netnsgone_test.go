package integration

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestNetnsGoneAndSpoofCheck: if the namespace is gone, the reference plugins
// leave the rules of macspoofchk, and the file in which the tuning plugin saves
// the former values of an interface. Force removes both, also without a record.
// Those of another allocation stay.
func TestNetnsGoneAndSpoofCheck(t *testing.T) {
	for _, engine := range []configurator.Engine{configurator.EngineExec, configurator.EngineAuto} {
		t.Run(string(engine), func(t *testing.T) {
			privhost.Require(t, "nft")
			h := newHost(t, engine)
			plugins := testbed.Chain("bridge", testbed.Dual, testbed.ExecTables.Backend)
			plugins[1]["macspoofchk"] = true
			h.Network("net", slices.Insert(plugins, 2, map[string]any{"type": "tuning", "mtu": 1400})...)
			other := h.Alloc("a1")
			h.SetUp(other)
			for _, lost := range []bool{false, true} {
				if testing.Short() && lost == (engine == configurator.EngineExec) {
					continue
				}
				s, err := sandbox.Create("a")
				require.NoError(t, err)
				a := configurator.Allocation{ID: "a", Netns: s.Path(), Ports: []portmap.Port{{Value: 8080, To: 80}}}
				link := testbed.HostLink(t, h.SetUp(a))
				require.Len(t, spoofChains(t, "a"), 2)
				require.FileExists(t, "/run/cni/tuning/a_eth0.json")
				require.NoError(t, s.Destroy())
				require.Eventually(t, func() bool { // deleted with its namespace
					_, err := netlink.LinkByName(link)
					return err != nil
				}, 10*time.Second, time.Millisecond)
				if lost {
					require.NoError(t, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
				}
				h.TearDown(a)
				require.Empty(t, spoofChains(t, "a"))
				require.NoFileExists(t, "/run/cni/tuning/a_eth0.json")
			}
			require.Len(t, spoofChains(t, "a1"), 2)
			require.FileExists(t, "/run/cni/tuning/a1_eth0.json")
			require.NoError(t, h.Check(h.Context(), other))
			h.TearDown(other)
			_, err := h.GC(h.Context(), nil) // removes entries from the index of namespaces
			require.NoError(t, err)
			require.NoError(t, testbed.Command("nft", "delete", "table", "bridge", "nat"), "only what is shared is left in it")
		})
	}
}

// spoofChains returns the chains of an allocation's interface and the rules
// that jump to them, one per line.
func spoofChains(t *testing.T, id string) (chains []string) {
	t.Helper()
	out, err := testbed.Output("nft", "list", "table", "bridge", "nat")
	require.NoError(t, err)
	for line := range strings.Lines(out) {
		if strings.Contains(line, "chain cni-br-iface-"+id+"-eth0") {
			chains = append(chains, strings.TrimSpace(line))
		}
	}
	return chains
}
