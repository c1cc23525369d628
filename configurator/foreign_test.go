package configurator

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// foreign adds a foreign interface to a sandbox, with its other end on the
// host.
func (h *testHost) foreign(netns, hostName string) {
	h.t.Helper()
	f, err := os.Open(netns)
	require.NoError(h.t, err)
	defer f.Close()
	require.NoError(h.t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: hostName}, PeerName: "eth0", PeerNamespace: netlink.NsFd(f.Fd()),
	}))
}

func requireLink(t *testing.T, name string) {
	t.Helper()
	_, err := netlink.LinkByName(name)
	require.NoError(t, err, "what is not ours is left alone")
}

func TestSetupLeavesForeignInterfacesAlone(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	h.foreign(a.Netns, "vforeign1")
	_, err := h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, "eth0")
	require.Empty(t, h.commands())
	h.requireNoRecords()
	requireLink(t, "vforeign1")
}

func TestNetnsOfAnotherAllocation(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.commands()
	_, err = h.Setup(t.Context(), Allocation{ID: "b", Netns: filepath.Dir(a.Netns) + "//a"})
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, `"a"`)
	require.Empty(t, h.commands())
}

// TestUnknownIDsLeaveForeignInterfacesAlone: without a record, only objects
// with the ID show that a namespace belongs to the allocation.
func TestUnknownIDsLeaveForeignInterfacesAlone(t *testing.T) {
	h := newTestHost(t)
	leases := h.bridged("net", adds())
	a := h.alloc("a")
	h.foreign(a.Netns, "vforeign2")
	require.NoError(t, h.Teardown(t.Context(), a))
	requireLink(t, "vforeign2")
	found, err := h.Audit(t.Context(), a)
	require.NoError(t, err)
	require.Empty(t, found)
	removed, err := h.Force(t.Context(), a)
	require.NoError(t, err)
	require.Empty(t, removed)
	requireLink(t, "vforeign2")

	writeLease(t, leases, "10.9.9.9", "a")
	found, err = h.Audit(t.Context(), a)
	require.NoError(t, err)
	require.Len(t, found, 2, "with a lease of that ID, the link is the allocation's")
	_, err = h.Force(t.Context(), a)
	require.NoError(t, err)
	_, err = netlink.LinkByName("vforeign2")
	require.ErrorAs(t, err, &netlink.LinkNotFoundError{})
}

// TestWhatCannotBeCheckedStays: an incomplete CHECK says nothing about the
// network.
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
			h := newTestHost(t)
			h.network("net", "1.0.0", adds(check))
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			switch name {
			case "hangs":
				h.Configurator.cfg.Timeout = enough(t)
			case "missing":
				require.NoError(t, os.RemoveAll(h.bin))
			case "not ours":
				require.NoError(t, os.Remove(filepath.Join(h.bin, "one")))
				require.NoError(t, os.WriteFile(filepath.Join(h.bin, "one"), nil, 0o644))
			case "canceled":
				cancel()
			}
			for what, err := range map[string]error{"Check": h.Check(ctx, a), "Setup": second(h.Setup(ctx, a))} {
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
			require.NotContains(t, h.commands(), "one DEL")
			r, err := h.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, PhaseReady, r.Phase)
		})
	}
}

func second(_ *Status, err error) error { return err }

// TestCanceledSetupIsRolledBack: DEL runs although the caller has cancelled the
// Setup.
func TestCanceledSetupIsRolledBack(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Hang: true}}))
	a := h.alloc("a")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := h.Setup(ctx, a); done <- err }()
	h.waitForCommand("one ADD")
	cancel()
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrIncomplete)
	require.Equal(t, []string{"one ADD", "one DEL"}, h.commands())
	h.requireNoRecords()
}

func TestEndedContextLeavesAllAsItIs(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.commands()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	report, err := h.GC(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, report.Removed)
	require.ErrorIs(t, h.Teardown(ctx, a), context.Canceled)
	require.Empty(t, h.commands())
	require.NoError(t, h.Check(t.Context(), a))
}

// TestCorruptRecordNeedsItsNamespace: without the namespace the allocation's
// interface would stay, with an address that could be assigned again.
func TestCorruptRecordNeedsItsNamespace(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	file := filepath.Join(h.cfg.StateDir, "allocs", "a.json")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	h.commands()
	report, err := h.GC(t.Context(), nil)
	require.ErrorContains(t, err, "give the network namespace")
	require.Empty(t, report.Removed)
	require.FileExists(t, file)
	require.Empty(t, h.commands())
	require.NoError(t, h.Teardown(t.Context(), a))
	require.Equal(t, h.calls()[0].Inode, h.calls()[1].Inode)
	require.NotZero(t, h.calls()[1].Inode)
	require.NoFileExists(t, file)
}
