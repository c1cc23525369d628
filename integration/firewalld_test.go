package integration

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/testing/firewalldtest"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// firewalldHost is a host with a network on which firewalld runs.
type firewalldHost struct {
	*host
	*firewalldtest.Bus
	firewalld *firewalldtest.Firewalld
}

func newFirewalldHost(t *testing.T, w testbed.Way, backend string) *firewalldHost {
	// A client remembers for some seconds whether there is a firewalld.
	firewalld.Shared = &firewalld.Client{}
	t.Cleanup(func() { firewalld.Shared = &firewalld.Client{} })
	h := newHost(t, w.Engine, func(c *configurator.Config) { c.Networks = []string{"net"} })
	testbed.SetSysctls(t, "", testbed.Quick)
	bus := firewalldtest.StartBus(t)
	plugins := testbed.Chain("bridge", testbed.Dual, w.Backend)
	delete(plugins[2], "backend") // of the firewall plugin
	h.Network("net", plugins...)
	return &firewalldHost{h, bus, bus.Start(backend)}
}

// setUpPublished sets up an allocation with a host port.
func (h *firewalldHost) setUpPublished(id string) (configurator.Allocation, *configurator.Status) {
	h.T.Helper()
	a := h.Alloc(id)
	h.InNew(a, func() { testbed.SetSysctls(h.T, a.Netns, testbed.Quick) })
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	s := h.SetUp(a)
	require.ElementsMatch(h.T, []string{s.Address + "/32", s.AddressIPv6 + "/128"}, h.firewalld.Sources("trusted"))
	return a, s
}

// TestBesideFirewalld: allocations can connect and are reachable through their
// host ports, and nothing of them remains in a zone. The test covers both
// engines, both backends of firewalld and all backends of host ports, and the
// case that firewalld ends meanwhile.
func TestBesideFirewalld(t *testing.T) {
	reference := testbed.Way{Engine: configurator.EngineExec}
	ways := map[string][]testbed.Way{
		"nftables": {reference, testbed.ExecNFT, testbed.Native, testbed.NativeTables, testbed.NativeNFT},
		"iptables": {reference, testbed.Native},
	}
	testhost.EachElsewhere(t, []string{"nftables", "iptables"}, func(t *testing.T, backend string) {
		testbed.Each(t, ways[backend], func(t *testing.T, w testbed.Way) { testBesideFirewalld(t, w, backend) })
	})
}

func testBesideFirewalld(t *testing.T, w testbed.Way, backend string) {
	h := newFirewalldHost(t, w, backend)
	a, _ := h.setUpPublished("a")
	testbed.Serve(t, a.Netns, "tcp", 80, "a")
	testbed.Serve(t, h.Outside.Path(), "tcp", 7000, "outside")
	for host, outside := range map[netip.Prefix]netip.Prefix{testhost.Host4: testhost.Outside4, testhost.Host6: testhost.Outside6} {
		testbed.RequireAnswer(t, a.Netns, "tcp", testbed.At(outside.Addr(), 7000), "outside")
		testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.At(host.Addr(), 8080), "a")
	}
	testbed.RequireAnswer(t, "", "tcp", "127.0.0.1:8080", "a")
	require.NoError(t, h.Check(h.Context(), a))
	h.TearDown(a)
	require.Empty(t, h.firewalld.Sources("trusted"))

	b := h.Alloc("b")
	h.SetUp(b)
	h.firewalld.End()
	h.TearDown(b)
}

// TestFirewalldLostRecord: if an allocation's record and namespace are gone,
// its sources are found by its elements or leases.
func TestFirewalldLostRecord(t *testing.T) {
	collect := func(h *firewalldHost) error { _, err := h.GC(h.Context(), nil); return err }
	tearDown := func(h *firewalldHost) error { return h.Teardown(h.Context(), configurator.Allocation{ID: "a"}) }
	all := newFirewalldHost(t, testbed.Native, "nftables") // for all: its start takes a second
	all.useNewestVersion("net")
	for name, test := range map[string]struct {
		elements bool
		remove   func(*firewalldHost) error
	}{
		"GC by elements":     {true, collect},
		"GC by leases":       {false, collect},
		"Teardown by leases": {false, tearDown},
	} {
		t.Run(name, func(t *testing.T) {
			h := &firewalldHost{all.in(t), all.Bus, all.firewalld}
			a, _ := h.setUpPublished("a")
			require.NoError(t, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
			if !test.elements {
				require.NoError(t, testbed.Command("nft", "delete", "table", "ip", "allocnet"))
				require.NoError(t, testbed.Command("nft", "delete", "table", "ip6", "allocnet"))
			}
			h.deleteLinksOf(a)
			require.NoError(t, test.remove(h))
			require.Empty(t, h.firewalld.Sources("trusted"))
			require.Empty(t, leases(t, "net"))
			require.NoError(t, collect(h), "the index of ports")
		})
	}
}

// useNewestVersion changes the version of a network so that runtimes call GC of
// its plugins.
func (h *host) useNewestVersion(network string) {
	path := filepath.Join(h.ConfDir, network+".conflist")
	conf, err := os.ReadFile(path)
	require.NoError(h.T, err)
	conf = bytes.Replace(conf, []byte(`"cniVersion":"1.0.0"`), []byte(`"cniVersion":"1.1.0"`), 1)
	require.NoError(h.T, os.WriteFile(path, conf, 0o600))
}

// TestFirewalldUnreachable: while an allocation's addresses may be in a zone,
// its record and its leases are kept.
func TestFirewalldUnreachable(t *testing.T) {
	testbed.Each(t, testbed.Engines, func(t *testing.T, w testbed.Way) {
		h := newFirewalldHost(t, w, "nftables")
		a, s := h.setUpPublished("a")
		runs, err := firewalld.Shared.Runs(h.Context()) // the exec engine has not asked yet
		require.NoError(t, err)
		require.True(t, runs)
		t.Run("away", func(t *testing.T) {
			t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
			for range 2 {
				err := h.Teardown(h.Context(), a)
				require.ErrorIs(t, err, configurator.ErrIncomplete)
				require.ErrorIs(t, err, firewalld.ErrUnreachable)
			}
			_, err := h.Force(h.Context(), a)
			require.ErrorIs(t, err, firewalld.ErrUnreachable)
			if w == testbed.Native { // reference plugins release leases in any case
				require.ElementsMatch(t, []string{s.Address, s.AddressIPv6}, leases(t, "net"))
			}
		})
		h.TearDown(a)
		require.Empty(t, h.firewalld.Sources("trusted"))
		require.Empty(t, leases(t, "net"))
	})
}

// leases returns the addresses that host-local has leased in a network.
func leases(t *testing.T, network string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir("/var/lib/cni/networks/" + network)
	require.NoError(t, err)
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err == nil {
			list = append(list, e.Name())
		}
	}
	return list
}
