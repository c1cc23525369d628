package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestLostRecordOfANamedBackend: rules of the native engine in the layout of
// the reference plugins are found without the record: by Teardown, and by GC
// also if the namespace and its link are gone. Rules of another allocation
// stay.
func TestLostRecordOfANamedBackend(t *testing.T) {
	testbed.EachElsewhere(t, []testbed.Way{testbed.NativeTables, testbed.NativeNFT}, func(t *testing.T, w testbed.Way) {
		for i, main := range []string{"bridge", "ptp"} {
			for name, remove := range map[string]func(*host, configurator.Allocation){"Teardown": (*host).tearDownLost, "GC": (*host).collectLost} {
				t.Run(main+" "+name, func(t *testing.T) {
					if (name == "GC") != (i == 1) {
						skip.InShort(t)
					}
					h := newHost(t, w.Engine, func(c *configurator.Config) { c.Networks = []string{"net"} })
					h.Network("net", testbed.Chain(main, testbed.Dual, w.Backend)...)
					other, a := h.Alloc("a1"), h.Alloc("a")
					other.Ports, a.Ports = []portmap.Port{{Value: 8081, To: 80}}, []portmap.Port{{Value: 8080, To: 80}}
					h.SetUp(other)
					h.SetUp(a)
					require.NoError(t, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
					remove(h, a)
					requireNoRulesOf(t, "a")
					require.NoError(t, h.Check(h.Context(), other))
					h.TearDown(other)
					_, err := h.GC(h.Context(), nil) // removes entries from the index of ports
					require.NoError(t, err)
				})
			}
		}
	})
}

func (h *host) tearDownLost(a configurator.Allocation) {
	h.T.Helper()
	require.NoError(h.T, h.Teardown(h.Context(), configurator.Allocation{ID: a.ID}))
}

func (h *host) collectLost(a configurator.Allocation) {
	h.T.Helper()
	h.deleteLinksOf(a)
	report, err := h.GC(h.Context(), []string{"a1"})
	require.NoError(h.T, err)
	require.Equal(h.T, []string{a.ID}, report.Removed)
	require.Equal(h.T, []string{"a1"}, report.Kept)
}

// deleteLinksOf deletes the links that disappear with an allocation's
// namespace.
func (h *host) deleteLinksOf(a configurator.Allocation) {
	h.T.Helper()
	links, err := retry.List(netlink.LinkList)
	require.NoError(h.T, err)
	for _, l := range links {
		if l.Attrs().Alias == "allocnet:net/"+a.ID+"/eth0" {
			require.NoError(h.T, netlink.LinkDel(l))
		}
	}
}

// requireNoRulesOf checks that no rule has a comment of the allocation.
func requireNoRulesOf(t *testing.T, id string) {
	t.Helper()
	for _, list := range [][]string{{"iptables", "-t", "nat", "-S"}, {"ip6tables", "-t", "nat", "-S"}, {"nft", "list", "ruleset"}} {
		out, err := testbed.Output(list[0], list[1:]...)
		require.NoError(t, err)
		require.NotContains(t, out, `id: \"`+id+`\"`)
		require.NotContains(t, out, `comment "`+id+`"`)
		require.NotContains(t, out, `id: `+id+`"`)
	}
}

// TestLostRecordAndConfiguration: without record and configuration, the objects
// that carry the ID are removed.
func TestLostRecordAndConfiguration(t *testing.T) {
	testbed.Each(t, []testbed.Way{testbed.NativeTables, testbed.NativeNFT}, func(t *testing.T, w testbed.Way) {
		h := newHost(t, w.Engine)
		h.Network("net", testbed.Chain("bridge", testbed.Dual, w.Backend)...)
		other, a := h.Alloc("a1"), h.Alloc("a")
		other.Ports, a.Ports = []portmap.Port{{Value: 8081, To: 80}}, []portmap.Port{{Value: 8080, To: 80}}
		h.SetUp(other)
		h.SetUp(a)
		require.NoError(t, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
		without := h.Config
		without.ConfDir, without.Networks = t.TempDir(), []string{"net"}
		later, err := configurator.New(without)
		require.NoError(t, err)
		require.NoError(t, later.Teardown(h.Context(), configurator.Allocation{ID: "a"}))
		requireNoRulesOf(t, "a")
		require.NoError(t, h.Check(h.Context(), other))
		h.TearDown(other)
		_, err = h.GC(h.Context(), nil) // removes entries from the index of ports
		require.NoError(t, err)
	})
}

// TestLostRecordOfOtherNetworks: if the record is lost and the request names no
// networks, objects on the host show the networks and interfaces of the allocation.
// Those of a new allocation may differ.
func TestLostRecordOfOtherNetworks(t *testing.T) {
	testbed.Each(t, []testbed.Way{testbed.Native, testbed.ExecTables}, func(t *testing.T, w testbed.Way) {
		for name, remove := range map[string]func(*host, configurator.Allocation){
			"Teardown": func(h *host, a configurator.Allocation) { h.TearDown(a) },
			"Force": func(h *host, a configurator.Allocation) {
				_, err := h.Force(h.Context(), a)
				require.NoError(h.T, err)
			},
		} {
			t.Run(name, func(t *testing.T) {
				h := newHost(t, w.Engine, func(c *configurator.Config) { c.Networks = []string{"first"} })
				a := h.loseRecord(w, "third", "second")
				remove(h, configurator.Allocation{ID: a.ID, Netns: a.Netns})
				_, err := h.GC(h.Context(), nil) // removes entries from the index of ports
				require.NoError(t, err)
			})
		}
	})
}

// TestCollectLostInAnotherOrder: the interfaces of a lost allocation cannot be
// derived from the names of its networks.
func TestCollectLostInAnotherOrder(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"first", "second"} })
	h.loseRecord(testbed.Native, "second", "first")
	report, err := h.GC(h.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Removed)
}

// loseRecord sets up an allocation in two of three networks and deletes its
// record.
func (h *host) loseRecord(w testbed.Way, networks ...string) configurator.Allocation {
	h.T.Helper()
	for i, network := range []string{"first", "second", "third"} {
		h.Network(network, testbed.Chain("ptp", testbed.Families{V4: fmt.Sprintf("10.31.%d.0/24", i)}, w.Backend)...)
	}
	a := h.Alloc("a")
	a.Ports, a.Networks = []portmap.Port{{Value: 8080, To: 80}}, networks
	h.SetUp(a)
	require.NoError(h.T, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
	return a
}

// TestCollectLostOfAllKinds: without any record, GC of given networks removes
// everything that the native engine made, even if the network namespaces and
// their links are gone.
func TestCollectLostOfAllKinds(t *testing.T) {
	shaped := map[string]any{"type": "bandwidth", "ingressRate": 1000000, "ingressBurst": 1000000, "egressRate": 1000000, "egressBurst": 1000000}
	tuned := map[string]any{"type": "tuning", "mtu": 1400, "promisc": true}
	testbed.Each(t, []testbed.Way{testbed.Native, testbed.NativeTables, testbed.NativeNFT}, func(t *testing.T, w testbed.Way) {
		h := newHost(t, w.Engine)
		h.Network("one", append(testbed.Chain("bridge", testbed.Dual, w.Backend), shaped, tuned)...)
		h.Network("two", append(testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, w.Backend)[1:], shaped, tuned)...)
		for i, id := range []string{"a", "b"} {
			a := h.Alloc(id)
			a.Networks = []string{"one", "two"}
			a.Ports = []portmap.Port{{Value: 8080 + i, To: 80}, {Value: 8090 + i, To: 90, HostIP: "127.0.0.1"}, {Value: 8070 + i, To: 70, Protocols: []string{"sctp"}}}
			h.SetUp(a)
		}
		h.WithoutSlots()
		require.NoError(t, os.RemoveAll(configurator.DefaultStateDir))
		for _, id := range []string{"a", "b"} {
			require.NoError(t, sandbox.Destroy(sandbox.DefaultDir+"/"+id))
		}
		report, err := h.GCScope(h.Context(), configurator.Scope{Networks: []string{"one", "two"}})
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, report.Removed)
	})
}

// TestCollectLostWithoutConfiguration: the name of a network is enough to find
// the objects that name it in their owner.
func TestCollectLostWithoutConfiguration(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"net"} })
			h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
			a := h.Alloc("a")
			a.Ports = []portmap.Port{{Value: 8080, To: 80}}
			h.SetUp(a)
			h.WithoutSlots()
			require.NoError(t, os.RemoveAll(configurator.DefaultStateDir))
			require.NoError(t, os.Remove(h.ConfDir+"/net.conflist"))
			report, err := h.GC(h.Context(), nil)
			require.NoError(t, err)
			require.Equal(t, []string{"a"}, report.Removed)
		})
	}
}
