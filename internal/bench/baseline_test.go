package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/sandbox"
)

// TestBaselineIsWhatPluginsMake compares the links, addresses and routes of one
// allocation, in its sandbox and on the host, with those that the reference
// plugins create for the same network.
func TestBaselineIsWhatPluginsMake(t *testing.T) {
	e := testEnvironment(t)
	for _, kind := range []string{"bridge", "ptp"} {
		for _, dual := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s dual %v", kind, dual), func(t *testing.T) {
				n := e.newNetwork("same", kind, dual)
				s := testSlots(t, e, 1)[0]
				f, err := newBaseline(t.Context(), n)
				require.NoError(t, err)
				before := hostState(t)
				ofBaseline := lifeOf(t, f, s)
				require.Equal(t, before, hostState(t), "a DEL leaves nothing")
				require.NoError(t, f.close(t.Context()))

				exec, err := e.newConfigured(t.Context(), n, execName, configurator.EngineExec)
				require.NoError(t, err)
				ofPlugins := lifeOf(t, exec, s)
				require.NoError(t, exec.close(t.Context()))
				require.Equal(t, ofPlugins, ofBaseline)
			})
		}
	}
}

// TestBaselineElements checks that an allocation adds as many elements as it
// does with the native engine, apart from those of the source guard of bridges.
func TestBaselineElements(t *testing.T) {
	e := testEnvironment(t)
	for _, dual := range []bool{false, true} {
		t.Run(fmt.Sprintf("dual %v", dual), func(t *testing.T) {
			slots := testSlots(t, e, 2)
			added := map[string]map[string]int{}
			for name, table := range map[string]string{baselineName: baselineTable, nativeName: names.Table} {
				sys, err := e.open(t.Context(), name, "bridge", dual)
				require.NoError(t, err)
				// The first allocation also adds the shared elements.
				require.NoError(t, sys.add(t.Context(), slots[0]))
				before := countElements(t, table)
				require.NoError(t, sys.add(t.Context(), slots[1]))
				added[name] = difference(before, countElements(t, table))
				require.NoError(t, sys.del(t.Context(), slots[1]))
				require.Equal(t, before, countElements(t, table))
				require.NoError(t, sys.del(t.Context(), slots[0]))
				require.NoError(t, sys.close(t.Context()))
			}
			want := map[string]int{"ip": 5}
			if dual {
				want["ip6"] = 5
			}
			require.Equal(t, want, added[baselineName])
			require.Equal(t, added[nativeName], added[baselineName])
		})
	}
}

// TestBaselineBatch deletes several allocations together.
func TestBaselineBatch(t *testing.T) {
	e := testEnvironment(t)
	for _, kind := range []string{"bridge", "ptp"} {
		t.Run(kind, func(t *testing.T) {
			f, err := newBaseline(t.Context(), e.newNetwork("batch", kind, true))
			require.NoError(t, err)
			slots := testSlots(t, e, 120)
			before := hostState(t)
			require.NoError(t, fill(t.Context(), f, slots))
			require.NotEqual(t, before, hostState(t))
			require.NoError(t, drain(t.Context(), f, slots))
			require.Equal(t, before, hostState(t))
			require.NoError(t, f.close(t.Context()))
		})
	}
}

// TestBaselineErrors checks that an operation returns the kernel's error,
// whichever of its messages the kernel refuses.
func TestBaselineErrors(t *testing.T) {
	e := testEnvironment(t)
	f, err := newBaseline(t.Context(), e.newNetwork("errors", "ptp", false))
	require.NoError(t, err)
	s := testSlots(t, e, 1)[0]
	require.ErrorIs(t, f.del(t.Context(), s), unix.ENOENT)
	require.NoError(t, f.add(t.Context(), s))
	require.ErrorIs(t, f.add(t.Context(), s), unix.EEXIST)
	sockets, err := f.take()
	require.NoError(t, err)
	err = sockets.links.do(groupMessage("missing", 1), upMessage(loopbackIndex))
	require.ErrorIs(t, err, unix.ENODEV)
	require.ErrorContains(t, err, "netlink message 1 of 2")
	f.give(sockets)
	require.ErrorIs(t, f.delBatch([]*slot{s, {index: 77}}), unix.ENOENT)
	require.NoError(t, f.del(t.Context(), s))
	require.NoError(t, f.close(t.Context()))
}

// testSlots returns slots whose sandboxes are destroyed when the test ends.
func testSlots(t *testing.T, e *environment, n int) []*slot {
	t.Helper()
	slots, err := e.slots(t.Context(), n)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, s := range e.all {
			require.NoError(t, sandbox.Destroy(s.netns))
		}
		e.all = nil
	})
	return slots
}

// lifeOf adds an allocation, describes it and removes it.
func lifeOf(t *testing.T, sys system, s *slot) string {
	t.Helper()
	require.NoError(t, sys.add(t.Context(), s))
	in, err := sandbox.Open(s.netns)
	require.NoError(t, err)
	defer in.Close()
	var inside string
	require.NoError(t, in.Do(func() error {
		inside = describe(t, func(l netlink.Link) bool { return true })
		return nil
	}))
	outside := describe(t, func(l netlink.Link) bool { return l.Type() == "veth" })
	require.NoError(t, sys.del(t.Context(), s))
	return "in the sandbox:\n" + inside + "on the host:\n" + outside
}

// describe returns links with their addresses and routes as text, without those
// that the kernel adds by itself and without names that differ.
func describe(t *testing.T, want func(netlink.Link) bool) string {
	t.Helper()
	links, err := retry.List(netlink.LinkList)
	require.NoError(t, err)
	var text strings.Builder
	for _, l := range links {
		if !want(l) {
			continue
		}
		a := l.Attrs()
		hairpin := "no port"
		if a.MasterIndex != 0 {
			p, err := netlink.LinkGetProtinfo(l)
			require.NoError(t, err)
			hairpin = fmt.Sprint(p.Hairpin)
		}
		fmt.Fprintf(&text, "%s mtu %d up %v hairpin %s\n", l.Type(), a.MTU, a.RawFlags&unix.IFF_UP != 0, hairpin)
		for _, line := range slices.Concat(describeAddresses(t, l), describeRoutes(t, l)) {
			text.WriteString("  " + line + "\n")
		}
	}
	return text.String()
}

func describeAddresses(t *testing.T, l netlink.Link) (lines []string) {
	t.Helper()
	addrs, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
	require.NoError(t, err)
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() {
			lines = append(lines, fmt.Sprintf("%s scope %d", a.IPNet, a.Scope))
		}
	}
	slices.Sort(lines)
	return lines
}

func describeRoutes(t *testing.T, l netlink.Link) (lines []string) {
	t.Helper()
	routes, err := retry.List(func() ([]netlink.Route, error) { return netlink.RouteList(l, netlink.FAMILY_ALL) })
	require.NoError(t, err)
	for _, r := range routes {
		if r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() && !r.Dst.IP.IsMulticast() {
			lines = append(lines, fmt.Sprintf("%s via %s src %s scope %s", r.Dst, r.Gw, r.Src, r.Scope))
		}
	}
	slices.Sort(lines)
	return lines
}

// hostState describes the host's links, addresses and routes, and the
// baseline's elements.
func hostState(t *testing.T) string {
	t.Helper()
	return describe(t, func(netlink.Link) bool { return true }) + fmt.Sprint(countElements(t, baselineTable))
}

// countElements returns the number of elements of all named sets of a table, by
// family.
func countElements(t *testing.T, table string) map[string]int {
	t.Helper()
	c, err := nftables.New()
	require.NoError(t, err)
	all, err := c.ListTables()
	require.NoError(t, err)
	counts := map[string]int{}
	for _, one := range all {
		if one.Name != table || one.Family == nftables.TableFamilyBridge {
			continue
		}
		sets, err := c.GetSets(one)
		require.NoError(t, err)
		for _, s := range sets {
			elements, err := c.GetSetElements(s)
			require.NoError(t, err)
			counts[familyName(one.Family)] += len(elements)
		}
	}
	return counts
}

func familyName(f nftables.TableFamily) string {
	if f == nftables.TableFamilyIPv4 {
		return "ip"
	}
	return "ip6"
}

func difference(before, after map[string]int) map[string]int {
	d := map[string]int{}
	for family, n := range after {
		if n != before[family] {
			d[family] = n - before[family]
		}
	}
	return d
}
