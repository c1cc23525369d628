package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// TestLostRecordOfANamedBackend: rules that the native engine laid out as the
// reference plugins do are found without the record: by Teardown, and by GC also
// where the namespace is gone and the link with it. Another allocation's stay.
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
					_, err := h.GC(h.ctx(), nil) // of the index of ports
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
	links, err := netlink.LinkList()
	require.NoError(h.t, err)
	for _, l := range links {
		if l.Attrs().Alias == "allocnet:net/"+a.ID+"/eth0" {
			require.NoError(h.t, netlink.LinkDel(l)) // as with the end of its namespace
		}
	}
	report, err := h.GC(h.ctx(), []string{"a1"})
	require.NoError(h.t, err)
	require.Equal(h.t, []string{a.ID}, report.Removed)
	require.Equal(h.t, []string{"a1"}, report.Kept)
}

// requireNoRulesOf looks for the comments of an allocation's rules.
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

// TestLostRecordAndConfiguration: with nothing but the ID, what bears it goes.
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
		_, err = h.GC(h.ctx(), nil) // of the index of ports
		require.NoError(t, err)
	})
}

// TestLostRecordOfOtherNetworks: without the record, and where nobody names them,
// the networks and interfaces of an allocation are those that the host tells of,
// not those that a new one would get.
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
				_, err := h.GC(h.ctx(), nil) // of the index of ports
				require.NoError(t, err)
			})
		}
	})
}

// TestCollectLostInAnotherOrder: the interfaces of a lost allocation do not follow
// from the names of its networks.
func TestCollectLostInAnotherOrder(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"first", "second"} })
	h.loseRecord(native, "second", "first")
	report, err := h.GC(h.ctx(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Removed)
}

// loseRecord sets up an allocation in two of three networks, and loses its record.
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
