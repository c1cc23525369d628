package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/portmap"
)

// without runs a function while programs are not installed.
func without(t *testing.T, fn func(), programs ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables", "nft", "sh"} {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	for _, name := range programs {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	before := os.Getenv("PATH")
	require.NoError(t, os.Setenv("PATH", dir))
	defer func() { require.NoError(t, os.Setenv("PATH", before)) }()
	fn()
}

// TestProgramMissingAtTeardown: rules that cannot be listed do not count as
// removed, with either engine, with and without the record, with both programs
// of iptables missing and with one. After the program is installed again,
// everything is removed.
func TestProgramMissingAtTeardown(t *testing.T) {
	testbed.EachElsewhere(t, []testbed.Way{testbed.ExecTables, testbed.NativeTables, {Engine: configurator.EngineExec}}, func(t *testing.T, w testbed.Way) {
		for main, missing := range map[string][]string{"bridge": {"iptables", "ip6tables"}, "ptp": {"ip6tables"}} {
			t.Run(main, func(t *testing.T) {
				h := newHost(t, w.Engine)
				h.Network("net", testbed.Chain(main, testbed.Dual, w.Backend)...)
				a := h.Alloc("a")
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				h.SetUp(a)
				without(t, func() { h.requireUnseen(a, missing[len(missing)-1]) }, missing...)
				h.TearDown(a)
			})
		}
	})
}

// withVariant runs a function on a host with one of the two kinds of iptables.
func withVariant(t *testing.T, variant string, fn func()) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		path, err := exec.LookPath(name + "-" + variant)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	before := os.Getenv("PATH")
	require.NoError(t, os.Setenv("PATH", dir+string(filepath.ListSeparator)+before))
	defer func() { require.NoError(t, os.Setenv("PATH", before)) }()
	fn()
}

// TestOtherIPTablesAtTeardown: iptables-legacy and iptables-nft do not list
// each other's rules, so a rule that one of them does not list may still exist.
func TestOtherIPTablesAtTeardown(t *testing.T) {
	testbed.EachElsewhere(t, []testbed.Way{testbed.ExecTables, testbed.NativeTables}, func(t *testing.T, w testbed.Way) {
		for made, other := range map[string]string{"nft": "legacy", "legacy": "nft"} {
			t.Run(made, func(t *testing.T) {
				h := newHost(t, w.Engine)
				h.Network("net", testbed.Chain("bridge", testbed.Dual, w.Backend)...)
				a := h.Alloc("a")
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				withVariant(t, made, func() { h.SetUp(a) })
				withVariant(t, other, func() {
					err := h.Teardown(h.Context(), a)
					require.ErrorIs(t, err, configurator.ErrIncomplete)
					require.ErrorIs(t, err, netfilter.ErrHeld)
					_, err = h.Get(t.Context(), a.ID)
					require.NoError(t, err, "the record is kept")
				})
				withVariant(t, made, func() { h.TearDown(a) })
			})
		}
	})
}

// requireUnseen checks that Teardown and Force fail for rules that cannot be
// listed.
func (h *host) requireUnseen(a configurator.Allocation, program string) {
	h.T.Helper()
	err := h.Teardown(h.Context(), a)
	require.ErrorIs(h.T, err, configurator.ErrIncomplete)
	require.ErrorIs(h.T, err, exec.ErrNotFound)
	require.ErrorContains(h.T, err, "table "+program+" -t nat: chain CNI-")
	_, err = h.Get(h.Context(), a.ID)
	require.NoError(h.T, err, "the record is kept")
	_, err = h.Force(h.Context(), a)
	require.ErrorIs(h.T, err, configurator.ErrIncomplete)
	_, err = h.Get(h.Context(), a.ID)
	require.NoError(h.T, err, "the record is kept")
}

// TestRecordLostAndProgramMissing: neither a record nor a program shows what
// was set up.
func TestRecordLostAndProgramMissing(t *testing.T) {
	testbed.Each(t, []testbed.Way{testbed.ExecTables, testbed.NativeTables}, func(t *testing.T, w testbed.Way) {
		h := newHost(t, w.Engine)
		h.Network("net", testbed.Chain("bridge", testbed.Dual, w.Backend)...)
		a := h.Alloc("a")
		a.Ports = []portmap.Port{{Value: 8080, To: 80}}
		h.SetUp(a)
		require.NoError(t, os.Remove(configurator.DefaultStateDir+"/allocs/a.json"))
		without(t, func() { require.ErrorIs(t, h.Teardown(h.Context(), a), configurator.ErrIncomplete) }, "iptables", "ip6tables")
		h.TearDown(a)
	})
}

// TestNoIPTables: a host that never had iptables does not need it.
func TestNoIPTables(t *testing.T) {
	testbed.Each(t, []testbed.Way{testbed.Native, testbed.NativeNFT}, func(t *testing.T, w testbed.Way) {
		h := newHost(t, w.Engine)
		plugins := testbed.Chain("bridge", testbed.Dual, w.Backend)
		delete(plugins[2], "backend") // iptables
		h.Network("net", plugins...)
		a, b := h.Alloc("a"), h.Alloc("b")
		a.Ports = []portmap.Port{{Value: 8080, To: 80}}
		without(t, func() {
			h.SetUp(a)
			h.SetUp(b)
			require.NoError(t, h.Check(h.Context(), a))
			h.TearDown(a)
			require.NoError(t, os.Remove(configurator.DefaultStateDir+"/allocs/b.json"))
			require.NoError(t, h.Teardown(h.Context(), b), "lost")
			require.NoError(t, h.Teardown(h.Context(), configurator.Allocation{ID: "never"}))
			_, err := h.GC(h.Context(), nil)
			require.NoError(t, err)
		}, "iptables", "ip6tables")
	})
}
