package configurator

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// foreign puts an interface into a sandbox that is none of ours, with its other
// end on the host.
func (w *world) foreign(netns, hostName string) {
	w.t.Helper()
	f, err := os.Open(netns)
	require.NoError(w.t, err)
	defer f.Close()
	require.NoError(w.t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: hostName}, PeerName: "eth0", PeerNamespace: netlink.NsFd(f.Fd()),
	}))
}

func requireLink(t *testing.T, name string) {
	t.Helper()
	_, err := netlink.LinkByName(name)
	require.NoError(t, err, "what is not ours is left alone")
}

func TestSetupLeavesForeignInterfacesAlone(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	w.foreign(a.Netns, "vforeign1")
	_, err := w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, "eth0")
	require.Empty(t, w.commands())
	w.requireNoRecords()
	requireLink(t, "vforeign1")
}

func TestNetnsOfAnotherAllocation(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.commands()
	_, err = w.Setup(t.Context(), Allocation{ID: "b", Netns: filepath.Dir(a.Netns) + "//a"})
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, `"a"`)
	require.Empty(t, w.commands())
}

// TestUnknownIDsLeaveForeignInterfacesAlone: without a record, only what bears
// the ID says that a namespace is the allocation's.
func TestUnknownIDsLeaveForeignInterfacesAlone(t *testing.T) {
	w := newWorld(t)
	leases := w.bridged("net", adds())
	a := w.alloc("a")
	w.foreign(a.Netns, "vforeign2")
	require.NoError(t, w.Teardown(t.Context(), a))
	requireLink(t, "vforeign2")
	found, err := w.Audit(t.Context(), a)
	require.NoError(t, err)
	require.Empty(t, found)
	removed, err := w.Force(t.Context(), a)
	require.NoError(t, err)
	require.Empty(t, removed)
	requireLink(t, "vforeign2")

	lease(t, leases, "10.9.9.9", "a")
	found, err = w.Audit(t.Context(), a)
	require.NoError(t, err)
	require.Len(t, found, 2, "with a lease of that ID, the link is the allocation's")
	_, err = w.Force(t.Context(), a)
	require.NoError(t, err)
	_, err = netlink.LinkByName("vforeign2")
	require.ErrorAs(t, err, &netlink.LinkNotFoundError{})
}

// TestWhatCannotBeCheckedStays: a CHECK that did not run to its end says nothing
// about the network.
func TestWhatCannotBeCheckedStays(t *testing.T) {
	for name, check := range map[string]behaviours{
		"exits":    {"CHECK": {Exit: 3}},
		"garbage":  {"CHECK": {Stdout: "%%%", Exit: 1}},
		"hangs":    {"CHECK": {Hang: true}},
		"later":    {"CHECK": {Code: 11, Msg: "try again later"}},
		"missing":  {},
		"not ours": {},
		"canceled": {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Timeout = time.Second })
			w.network("net", "1.0.0", adds(check))
			a := w.alloc("a")
			_, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			switch name {
			case "missing":
				require.NoError(t, os.RemoveAll(w.bin))
			case "not ours":
				require.NoError(t, os.Remove(filepath.Join(w.bin, "one")))
				require.NoError(t, os.WriteFile(filepath.Join(w.bin, "one"), nil, 0o644))
			case "canceled":
				cancel()
			}
			for what, err := range map[string]error{"Check": w.Check(ctx, a), "Setup": second(w.Setup(ctx, a))} {
				require.NotErrorIs(t, err, ErrUnhealthy, what)
				if name == "canceled" {
					require.ErrorIs(t, err, context.Canceled, what)
				} else {
					require.ErrorIs(t, err, ErrNotChecked, what)
				}
				if name == "missing" {
					require.ErrorIs(t, err, ErrPluginNotInstalled, what)
				}
			}
			require.NotContains(t, w.commands(), "one DEL")
			r, err := w.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, PhaseReady, r.Phase)
		})
	}
}

func second(_ *Status, err error) error { return err }

// TestCanceledSetupIsRolledBack with DEL, though its caller no longer waits.
func TestCanceledSetupIsRolledBack(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"ADD": {Hang: true}}))
	a := w.alloc("a")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := w.Setup(ctx, a); done <- err }()
	w.waitForCommand("one ADD")
	cancel()
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrIncomplete)
	require.Equal(t, []string{"one ADD", "one DEL"}, w.commands())
	w.requireNoRecords()
}

func TestEndedContextLeavesAllAsItIs(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.commands()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	report, err := w.GC(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, report.Removed)
	require.ErrorIs(t, w.Teardown(ctx, a), context.Canceled)
	require.Empty(t, w.commands())
	require.NoError(t, w.Check(t.Context(), a))
}

// TestCorruptRecordNeedsItsNamespace: without it the allocation's interface
// would stay, with an address that is given to another one.
func TestCorruptRecordNeedsItsNamespace(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	file := filepath.Join(w.cfg.StateDir, "allocs", "a.json")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	w.commands()
	report, err := w.GC(t.Context(), nil)
	require.ErrorContains(t, err, "give the network namespace")
	require.Empty(t, report.Removed)
	require.FileExists(t, file)
	require.Empty(t, w.commands())
	require.NoError(t, w.Teardown(t.Context(), a))
	require.Equal(t, w.calls()[0].Inode, w.calls()[1].Inode)
	require.NotZero(t, w.calls()[1].Inode)
	require.NoFileExists(t, file)
}
