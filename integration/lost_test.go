package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestLostRecordOfANamedBackend: rules of the native engine in the layout of
// the reference plugins are found without the record: by Teardown, and by GC
// also if the namespace and its link are gone. Rules of another allocation
// stay.
func TestLostRecordOfANamedBackend(t *testing.T) {
	each(t, []way{nativeTables, nativeNFT}, func(t *testing.T, w way) {
		for _, main := range []string{"bridge", "ptp"} {
			for name, remove := range map[string]func(*host, configurator.Allocation){"Teardown": (*host).tearDownLost, "GC": (*host).collectLost} {
				t.Run(main+" "+name, func(t *testing.T) {
					h := newHost(t, w.engine, func(c *configurator.Config) { c.Networks = []string{"net"} })
					h.network("net", chain(main, dual, w.backend)...)
					other, a := h.alloc("a1"), h.alloc("a")
					other.Ports, a.Ports = []portmap.Port{{Value: 8081, To: 80}}, []portmap.Port{{Value: 8080, To: 80}}
					h.setUp(other)
					h.setUp(a)
					require.NoError(t, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
					remove(h, a)
					requireNoRulesOf(t, "a")
					require.NoError(t, h.Check(h.ctx(), other))
					h.tearDown(other)
					_, err := h.GC(h.ctx(), nil) // removes entries from the index of ports
					require.NoError(t, err)
				})
			}
		}
	})
}

func (h *host) tearDownLost(a configurator.Allocation) {
	h.t.Helper()
	require.NoError(h.t, h.Teardown(h.ctx(), configurator.Allocation{ID: a.ID}))
}

func (h *host) collectLost(a configurator.Allocation) {
	h.t.Helper()
	h.deleteLinksOf(a)
	report, err := h.GC(h.ctx(), []string{"a1"})
	require.NoError(h.t, err)
	require.Equal(h.t, []string{a.ID}, report.Removed)
	require.Equal(h.t, []string{"a1"}, report.Kept)
}

// deleteLinksOf deletes the links that disappear with an allocation's
// namespace.
func (h *host) deleteLinksOf(a configurator.Allocation) {
	h.t.Helper()
	links, err := retry.List(netlink.LinkList)
	require.NoError(h.t, err)
	for _, l := range links {
		if l.Attrs().Alias == "allocnet:net/"+a.ID+"/eth0" {
			require.NoError(h.t, netlink.LinkDel(l))
		}
	}
}

// requireNoRulesOf checks that no rule has a comment of the allocation.
func requireNoRulesOf(t *testing.T, id string) {
	t.Helper()
	for _, list := range [][]string{{"iptables", "-t", "nat", "-S"}, {"ip6tables", "-t", "nat", "-S"}, {"nft", "list", "ruleset"}} {
		out, err := output(list[0], list[1:]...)
		require.NoError(t, err)
		require.NotContains(t, out, `id: \"`+id+`\"`)
		require.NotContains(t, out, `comment "`+id+`"`)
		require.NotContains(t, out, `id: `+id+`"`)
	}
}

// TestLostRecordAndConfiguration: without record and configuration, the objects
// that carry the ID are removed.
func TestLostRecordAndConfiguration(t *testing.T) {
	each(t, []way{nativeTables, nativeNFT}, func(t *testing.T, w way) {
		h := newHost(t, w.engine)
		h.network("net", chain("bridge", dual, w.backend)...)
		other, a := h.alloc("a1"), h.alloc("a")
		other.Ports, a.Ports = []portmap.Port{{Value: 8081, To: 80}}, []portmap.Port{{Value: 8080, To: 80}}
		h.setUp(other)
		h.setUp(a)
		require.NoError(t, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
		without := h.cfg
		without.ConfDir, without.Networks = t.TempDir(), []string{"net"}
		later, err := configurator.New(without)
		require.NoError(t, err)
		require.NoError(t, later.Teardown(h.ctx(), configurator.Allocation{ID: "a"}))
		requireNoRulesOf(t, "a")
		require.NoError(t, h.Check(h.ctx(), other))
		h.tearDown(other)
		_, err = h.GC(h.ctx(), nil) // removes entries from the index of ports
		require.NoError(t, err)
	})
}

// TestLostRecordOfOtherNetworks: if the record is lost and the request names no
// networks, objects on the host show the networks and interfaces of the allocation.
// Those of a new allocation may differ.
func TestLostRecordOfOtherNetworks(t *testing.T) {
	each(t, []way{native, execTables}, func(t *testing.T, w way) {
		for name, remove := range map[string]func(*host, configurator.Allocation){
			"Teardown": func(h *host, a configurator.Allocation) { h.tearDown(a) },
			"Force": func(h *host, a configurator.Allocation) {
				_, err := h.Force(h.ctx(), a)
				require.NoError(h.t, err)
			},
		} {
			t.Run(name, func(t *testing.T) {
				h := newHost(t, w.engine, func(c *configurator.Config) { c.Networks = []string{"first"} })
				a := h.loseRecord(w, "third", "second")
				remove(h, configurator.Allocation{ID: a.ID, Netns: a.Netns})
				_, err := h.GC(h.ctx(), nil) // removes entries from the index of ports
				require.NoError(t, err)
			})
		}
	})
}

// TestCollectLostInAnotherOrder: the interfaces of a lost allocation cannot be
// derived from the names of its networks.
func TestCollectLostInAnotherOrder(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"first", "second"} })
	h.loseRecord(native, "second", "first")
	report, err := h.GC(h.ctx(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Removed)
}

// loseRecord sets up an allocation in two of three networks and deletes its
// record.
func (h *host) loseRecord(w way, networks ...string) configurator.Allocation {
	h.t.Helper()
	for i, network := range []string{"first", "second", "third"} {
		h.network(network, chain("ptp", families{v4: fmt.Sprintf("10.31.%d.0/24", i)}, w.backend)...)
	}
	a := h.alloc("a")
	a.Ports, a.Networks = []portmap.Port{{Value: 8080, To: 80}}, networks
	h.setUp(a)
	require.NoError(h.t, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
	return a
}

// TestCollectLostOfAllKinds: without any record, GC of given networks removes
// everything that the native engine made, even if the network namespaces and
// their links are gone.
func TestCollectLostOfAllKinds(t *testing.T) {
	shaped := map[string]any{"type": "bandwidth", "ingressRate": 1000000, "ingressBurst": 1000000, "egressRate": 1000000, "egressBurst": 1000000}
	tuned := map[string]any{"type": "tuning", "mtu": 1400, "promisc": true}
	each(t, []way{native, nativeTables, nativeNFT}, func(t *testing.T, w way) {
		h := newHost(t, w.engine)
		h.network("one", append(chain("bridge", dual, w.backend), shaped, tuned)...)
		h.network("two", append(chain("ptp", families{"10.98.0.0/24", "fd00:98::/64"}, w.backend)[1:], shaped, tuned)...)
		for i, id := range []string{"a", "b"} {
			a := h.alloc(id)
			a.Networks = []string{"one", "two"}
			a.Ports = []portmap.Port{{Value: 8080 + i, To: 80}, {Value: 8090 + i, To: 90, HostIP: "127.0.0.1"}, {Value: 8070 + i, To: 70, Protocols: []string{"sctp"}}}
			h.setUp(a)
		}
		h.withoutSlots()
		require.NoError(t, os.RemoveAll(configurator.DefaultStateDir))
		for _, id := range []string{"a", "b"} {
			require.NoError(t, sandbox.Destroy(sandbox.DefaultDir+"/"+id))
		}
		report, err := h.GCScope(h.ctx(), configurator.Scope{Networks: []string{"one", "two"}})
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
			h.network("net", chain(main, dual, "")...)
			a := h.alloc("a")
			a.Ports = []portmap.Port{{Value: 8080, To: 80}}
			h.setUp(a)
			h.withoutSlots()
			require.NoError(t, os.RemoveAll(configurator.DefaultStateDir))
			require.NoError(t, os.Remove(h.conf+"/net.conflist"))
			report, err := h.GC(h.ctx(), nil)
			require.NoError(t, err)
			require.Equal(t, []string{"a"}, report.Removed)
		})
	}
}
