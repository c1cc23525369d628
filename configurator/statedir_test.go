package configurator

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/portmap"
)

// spellings returns paths that lead to the same state directory.
func spellings(t *testing.T, state string) map[string]string {
	t.Helper()
	root, name := filepath.Split(state)
	links := t.TempDir()
	link, bound := filepath.Join(links, "link"), filepath.Join(links, "bound")
	require.NoError(t, os.Symlink(root, link))
	require.NoError(t, os.Mkdir(bound, 0o700))
	require.NoError(t, unix.Mount(root, bound, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(bound, unix.MNT_DETACH)) })
	return map[string]string{
		"plain": state, "trailing slash": state + "/", "two slashes": root + "//" + name, "dot": root + "/./" + name,
		"symlink": filepath.Join(link, name), "bind mount": filepath.Join(bound, name),
	}
}

// requireNothingOwned checks that nothing of native plugins is left for an ID,
// with any owner.
func requireNothingOwned(t *testing.T, id string) {
	t.Helper()
	rules, err := ruleset.Open()
	require.NoError(t, err)
	defer rules.Close()
	elements, err := rules.Owned(t.Context(), func(o names.Owner) bool { return o.OfID(id) })
	require.NoError(t, err)
	require.Empty(t, elements)
	links, err := retry.List(netlink.LinkList)
	require.NoError(t, err)
	for _, l := range links {
		owner, _ := names.ParseOwner(l.Attrs().Alias)
		require.False(t, owner.OfID(id), l.Attrs().Name)
	}
}

// TestSpellingsOfTheStateDirectory: all paths to a state directory are one
// owner. What is set up through one path can be checked, found and torn down
// through another.
func TestSpellingsOfTheStateDirectory(t *testing.T) {
	for _, e := range []Engine{EngineNative, EngineExec} {
		t.Run(string(e), func(t *testing.T) {
			h, leases := nativeHost(t, "1.1.0", `{"type":"firewall"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`)
			network := "net"
			if e == EngineExec {
				h.network("fakes", "1.1.0", adds())
				network = "fakes"
			}
			users := map[string]*Configurator{}
			for name, dir := range spellings(t, h.cfg.StateDir) {
				if e == EngineExec && name != "plain" && name != "symlink" && name != "bind mount" {
					continue // each run takes long, and the native engine covers all spellings
				}
				cfg := h.cfg
				cfg.StateDir, cfg.Network, cfg.Networks, cfg.Engine = dir, "", []string{network}, e
				users[name] = newConfigurator(t, cfg)
			}
			a := h.alloc("spelt")
			a.Ports = []portmap.Port{{Label: "http", Value: 18080}}
			for first, one := range users {
				other := users["plain"]
				if first == "plain" {
					other = users["bind mount"]
				}
				for _, pair := range [][2]*Configurator{{one, other}, {other, one}} {
					h.requireOneOwner(pair[0], pair[1], a)
				}
			}
			requireNothingOwned(t, "spelt")
			entries, err := filepath.Glob(filepath.Join(leases, "net", "10.*"))
			require.NoError(t, err)
			require.Empty(t, entries)
		})
	}
}

func (h *testHost) requireOneOwner(one, other *Configurator, a Allocation) {
	h.t.Helper()
	t := h.t
	set, err := one.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, other.Check(t.Context(), a))
	again, err := other.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, found(set), again)
	records, err := other.List(context.Background())
	require.NoError(t, err)
	require.Len(t, records, 1)
	repaired, err := other.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"spelt"}, repaired.Healthy)
	kept, err := other.GC(t.Context(), []string{"spelt"})
	require.NoError(t, err)
	require.Equal(t, []string{"spelt"}, kept.Kept)
	require.NoError(t, one.Check(t.Context(), a))
	a.Wait = true
	require.NoError(t, other.Teardown(t.Context(), a))
	requireNothingOwned(t, "spelt")
}

// TestLostStateDirectory: a directory that is created again has the same owner
// through every path. GC finds the objects whose records are lost.
func TestLostStateDirectory(t *testing.T) {
	h, _ := nativeHost(t, "1.1.0", `{"type":"firewall"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`)
	a := h.alloc("spelt")
	a.Ports = []portmap.Port{{Label: "http", Value: 18080}}
	for name, dir := range spellings(t, h.cfg.StateDir) {
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, os.RemoveAll(h.cfg.StateDir))
		cfg := h.cfg
		cfg.StateDir, cfg.Network = dir, ""
		report, err := newConfigurator(t, cfg).GC(t.Context(), nil)
		require.NoError(t, err, name)
		require.Equal(t, []string{"spelt"}, report.Removed, name)
		requireNothingOwned(t, "spelt")
		require.NoError(t, os.MkdirAll(h.cfg.StateDir, 0o700))
	}
}

// TestOwnersOfEarlierDirectories: an allocation's objects in the kernel are
// found by the owner that its ADD used, even if its record was moved, or an
// older version derived owners from the text of the path.
func TestOwnersOfEarlierDirectories(t *testing.T) {
	for name, age := range map[string]func(*testing.T, *testHost, Allocation) string{
		"moved": func(t *testing.T, h *testHost, a Allocation) string {
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			moved := h.cfg.StateDir + "-moved"
			require.NoError(t, os.Rename(h.cfg.StateDir, moved))
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(moved)) })
			return moved
		},
		"older version": func(t *testing.T, h *testHost, a Allocation) string {
			h.instance = statedir.FormerInstance(h.cfg.StateDir)
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			h.changeRecord(a.ID, func(r *record.Record) { r.Instance = nil })
			return h.cfg.StateDir
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := nativeHost(t, "1.1.0", `{"type":"firewall"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`)
			a := h.alloc("spelt")
			a.Ports = []portmap.Port{{Label: "http", Value: 18080}}
			cfg := h.cfg
			cfg.StateDir, cfg.Network = age(t, h, a), ""
			later := newConfigurator(t, cfg)
			require.NoError(t, later.Check(t.Context(), a))
			repaired, err := later.Repair(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"spelt"}, repaired.Healthy)
			_, err = later.GC(t.Context(), []string{"spelt"})
			require.NoError(t, err)
			require.NoError(t, later.Check(t.Context(), a))
			_, err = later.Setup(t.Context(), a)
			require.NoError(t, err)
			a.Wait = true
			require.NoError(t, later.Teardown(t.Context(), a))
			requireNothingOwned(t, "spelt")
		})
	}
}
