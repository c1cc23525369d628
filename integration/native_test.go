package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestEngineChanges: a configurator with another default engine checks and
// tears down what the first one set up.
func TestEngineChanges(t *testing.T) {
	testbed.EachElsewhere(t, testbed.Engines, func(t *testing.T, w testbed.Way) {
		for _, main := range []string{"bridge", "ptp"} {
			t.Run(main, func(t *testing.T) { testEngineChanges(t, w, main) })
		}
	})
}

func testEngineChanges(t *testing.T, w testbed.Way, main string) {
	h := newHost(t, w.Engine)
	h.Network("net", testbed.Chain(main, testbed.Dual, w.Backend)...)
	a, b := h.Alloc("a"), h.Alloc("b")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	b.Ports = []portmap.Port{{Value: 8081, To: 80}}
	first := h.SetUp(a)
	other := h.in(t)
	other.Config.Engine = configurator.EngineExec
	if w.Engine == configurator.EngineExec {
		other.Config.Engine = configurator.EngineNative
	}
	var err error
	other.Configurator, err = configurator.New(other.Config)
	require.NoError(t, err)
	require.NoError(t, other.Check(h.Context(), a))
	require.Equal(t, first, other.SetUp(a))
	second := other.SetUp(b)
	require.NotEqual(t, first.Address, second.Address, "both see the same leases")
	for _, alloc := range []configurator.Allocation{a, b} {
		testbed.Serve(t, alloc.Netns, "tcp", 80, alloc.ID)
	}
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, 8081), "b")
	other.TearDown(a)
	h.TearDown(b)
}

// TestMixedChain: a chain has native plugins and a binary, because the native
// plugin does not support its configuration. Results pass through all of them.
func TestMixedChain(t *testing.T) {
	var log strings.Builder
	h := newHost(t, configurator.EngineAuto, func(c *configurator.Config) { c.Logger = logger(&log) })
	plugins := slices.Insert(testbed.Chain("bridge", testbed.Dual, ""), 2,
		map[string]any{"type": "tuning", "mtu": 1400, "aKeyOfTomorrow": true})
	h.Network("net", plugins...)
	a := h.Alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	h.SetUp(a)
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, configurator.EngineNative, r.Engine)
	require.Contains(t, log.String(), "aKeyOfTomorrow", "the log says why a binary runs")
	testbed.Serve(t, a.Netns, "tcp", 80, "a")
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
	ns, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	defer ns.Close()
	require.NoError(t, ns.Do(func() error {
		require.Equal(t, 1400, mtuOf(t, "eth0"))
		return nil
	}))
	h.TearDown(a)
}

// TestAutoChooses: EngineAuto selects native if the network has a native
// plugin, otherwise exec.
func TestAutoChooses(t *testing.T) {
	h := newHost(t, configurator.EngineAuto)
	h.Network("known", testbed.Chain("ptp", testbed.V4Only, "")...)
	h.Network("foreign", map[string]any{"type": "dummy", "ipam": testbed.V4Only.IPAM()})
	for network, engine := range map[string]configurator.Engine{"known": configurator.EngineNative, "foreign": configurator.EngineExec} {
		a := h.Alloc(network)
		a.Networks = []string{network}
		if _, err := h.Setup(h.Context(), a); network == "foreign" && err != nil {
			// The kernel may or may not support dummy links.
			require.ErrorContains(t, err, `"dummy"`)
			continue
		}
		r, err := h.Get(t.Context(), network)
		require.NoError(t, err)
		require.Equal(t, engine, r.Engine)
		h.TearDown(a)
	}
}

// TestRepair: after other programs flushed everything, one call restores the
// rules of all allocations, and no allocation loses its address.
func TestRepair(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Networks = []string{"one"} })
	h.Network("one", testbed.Chain("bridge", testbed.Dual, "")...)
	h.Network("two", testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, "")...)
	for _, program := range []string{"iptables", "ip6tables"} {
		require.NoError(t, testbed.Command(program, "-P", "FORWARD", "DROP"))
		t.Cleanup(func() { require.NoError(t, testbed.Command(program, "-P", "FORWARD", "ACCEPT")) })
	}
	var allocs []configurator.Allocation
	var before []*configurator.Status
	for i, id := range testbed.IDs("r", 8) {
		a := h.Alloc(id)
		a.Ports = []portmap.Port{{Value: 20000 + i, To: 80}}
		a.Networks = [][]string{{"one"}, {"two"}}[i%2]
		h.InNew(a, func() { testbed.Serve(t, a.Netns, "tcp", 80, id) })
		allocs, before = append(allocs, a), append(before, h.SetUp(a))
	}
	reach := func() {
		for i, a := range allocs {
			testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 20000+i), a.ID)
			testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, 20000+i), a.ID)
		}
	}
	reach()
	report, err := h.Repair(h.Context())
	require.NoError(t, err)
	require.Len(t, report.Healthy, len(allocs))

	privhost.FlushRuleset(t)
	for _, program := range []string{"iptables", "ip6tables"} {
		require.NoError(t, testbed.Command(program, "-F"))
		require.NoError(t, testbed.Command(program, "-P", "FORWARD", "DROP"))
	}
	testbed.RequireSilence(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 20000))
	require.ErrorIs(t, h.Check(h.Context(), allocs[0]), configurator.ErrUnhealthy)
	report, err = h.Repair(h.Context())
	require.NoError(t, err)
	require.Len(t, report.Repaired, len(allocs))
	require.Empty(t, report.Broken)
	reach()
	for i, a := range allocs {
		require.NoError(t, h.Check(h.Context(), a))
		require.Equal(t, before[i], h.SetUp(a))
	}
	h.TearDown(allocs...)
}

// TestIPv6AtOnce: when an ADD returns, duplicate address detection has ended
// for all addresses of the host. Otherwise it would delay connections for
// seconds.
func TestIPv6AtOnce(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
			a := h.Alloc("a")
			s := h.SetUp(a)
			for _, i := range s.Interfaces {
				if i.Sandbox != "" {
					continue
				}
				link, err := netlink.LinkByName(i.Name)
				require.NoError(t, err)
				addresses, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V6) })
				require.NoError(t, err)
				for _, address := range addresses {
					require.Zero(t, address.Flags&unix.IFA_F_TENTATIVE, "%s of %s", address.IPNet, i.Name)
				}
			}
			h.TearDown(a)
		})
	}
}

// TestStateLost: without any record, GC finds the objects of allocations by
// their owners in the kernel.
func TestStateLost(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
			var live []string
			for i, id := range testbed.IDs("lost", 6) {
				a := h.Alloc(id)
				a.Ports = []portmap.Port{{Value: 20000 + i, To: 80}}
				h.SetUp(a)
				live = append(live, id)
			}
			h.WithoutSlots()
			require.NoError(t, os.RemoveAll(configurator.DefaultStateDir))
			report, err := h.GC(h.Context(), live)
			require.NoError(t, err)
			require.Empty(t, report.Removed, "they live")
			require.NoError(t, sandbox.Destroy("/run/netns/lost-0")) // one allocation's link is deleted with its namespace
			report, err = h.GC(h.Context(), nil)
			require.NoError(t, err)
			require.Len(t, report.Removed, len(live))
			require.Subset(t, report.Removed, live[1:]) // the other one may be known by its slot only
		})
	}
}

// TestCycles: repeated operations do not increase the descriptors or threads of
// an embedding process.
func TestCycles(t *testing.T) {
	const atOnce = 50
	cycles := 2000
	if testing.Short() {
		cycles = 250
	}
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Logger = nil })
	h.Network("net", testbed.Chain("ptp", testbed.V4Only, "")...)
	var allocs []configurator.Allocation
	for i, id := range testbed.IDs("c", atOnce) {
		a := h.Alloc(id)
		a.Ports = []portmap.Port{{Value: 20000 + i, To: 80}}
		allocs = append(allocs, a)
	}
	round := func() {
		var running sync.WaitGroup
		for _, a := range allocs {
			running.Go(func() {
				if _, err := h.Setup(h.Context(), a); err != nil {
					t.Errorf("setup %s: %v", a.ID, err)
				}
				if err := h.Teardown(h.Context(), a); err != nil {
					t.Errorf("teardown %s: %v", a.ID, err)
				}
			})
		}
		running.Wait()
	}
	round() // opens what stays open, and starts the threads for the concurrent operations
	descriptors, threads := testbed.Entries(t, "/proc/self/fd"), testbed.Entries(t, "/proc/self/task")
	for range cycles/atOnce - 1 {
		round()
	}
	// Some sockets, and descriptors of the lock file, are kept for concurrent operations.
	const kept = 8 + 8
	require.Eventually(t, func() bool { return testbed.Entries(t, "/proc/self/fd") <= descriptors+kept }, 10*time.Second, 10*time.Millisecond,
		"descriptors: %d before", descriptors)
	// The runtime keeps threads that were blocked at the same time. Their
	// number depends on the concurrency, not on the number of operations.
	require.LessOrEqual(t, testbed.Entries(t, "/proc/self/task"), threads+atOnce)
}

// TestPortTaken: if another owner has a host port in the kernel without a
// record, the error names the port and the owner.
func TestPortTaken(t *testing.T) {
	h := newHost(t, configurator.EngineNative, func(c *configurator.Config) { c.Retry.Attempts = 1 })
	h.Network("net", testbed.Chain("ptp", testbed.V4Only, "")...)
	a, b := h.Alloc("a"), h.Alloc("b")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	b.Ports = a.Ports
	h.SetUp(a)
	_, err := h.Setup(h.Context(), b)
	var conflict *portmap.ConflictError
	require.ErrorAs(t, err, &conflict)
	owner := h.Container(a)
	h.WithoutSlots()
	require.NoError(t, os.Rename(configurator.DefaultStateDir, configurator.DefaultStateDir+".aside"))
	_, err = h.Setup(h.Context(), b)
	require.ErrorContains(t, err, fmt.Sprintf("%d", 8080))
	require.ErrorContains(t, err, owner+"/eth0")
	h.WithoutSlots()
	require.NoError(t, os.RemoveAll(configurator.DefaultStateDir))
	require.NoError(t, os.Rename(configurator.DefaultStateDir+".aside", configurator.DefaultStateDir))
	require.NoError(t, h.Check(h.Context(), a), "the first one was not harmed")
	h.TearDown(a)
}
