package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/features"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

func TestTeardownOfWhatWasNeverSetUp(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "never", Netns: "/run/netns/never"}))
	require.Equal(t, []string{"one DEL"}, h.commands(), "DEL is idempotent, and the record may have been lost")
	require.Empty(t, h.calls()[0].Netns, "nothing says that the namespace is the allocation's")
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "never"}))
	require.ErrorIs(t, h.Check(t.Context(), Allocation{ID: "never"}), ErrNotFound)
	_, err := h.Get(t.Context(), "never")
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorIs(t, h.Teardown(t.Context(), Allocation{ID: "../../x"}), ErrInvalidAllocation)
}

// TestContextEndsDuringAudit: the search for leftovers has some seconds after the end of the context.
func TestContextEndsDuringAudit(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"deadline": 3 * time.Second, "cancel": time.Hour} {
		t.Run(name, func(t *testing.T) {
			o := &atStep{name: StepAudit}
			h := newTestHost(t, func(c *Config) { c.Observer = o })
			h.forceTimeout = time.Minute // the search takes long on a busy machine
			h.network("net", "1.0.0", adds())
			_, err := h.Setup(t.Context(), h.alloc("a"))
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			o.do = func() {
				if name == "cancel" {
					cancel()
				}
				<-ctx.Done()
			}
			require.NoError(t, h.Teardown(ctx, Allocation{ID: "a"}))
			h.requireNoRecords()
		})
	}
}

func TestTeardownWhenThingsAreGone(t *testing.T) {
	for name, c := range map[string]struct {
		remove  func(*testing.T, *testHost, Allocation)
		wantErr string
	}{
		"conflist": {func(t *testing.T, h *testHost, _ Allocation) { require.NoError(t, os.RemoveAll(h.conf)) }, ""},
		"netns":    {func(t *testing.T, _ *testHost, a Allocation) { require.NoError(t, sandbox.Destroy(a.Netns)) }, ""},
		"record": {func(t *testing.T, h *testHost, _ Allocation) {
			require.NoError(t, os.RemoveAll(h.cfg.StateDir+"/allocs/a.json"))
		}, ""},
		"corrupt record": {func(t *testing.T, h *testHost, _ Allocation) {
			require.NoError(t, os.WriteFile(h.cfg.StateDir+"/allocs/a.json", []byte("{"), 0o600))
		}, ""},
		"state directory": {func(t *testing.T, h *testHost, _ Allocation) {
			require.NoError(t, os.RemoveAll(h.cfg.StateDir+"/allocs"))
		}, ""},
		"plugin binary": {func(t *testing.T, h *testHost, _ Allocation) { require.NoError(t, os.RemoveAll(h.bin)) }, "one"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.network("net", "1.0.0", adds())
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			c.remove(t, h, a)
			err = h.Teardown(t.Context(), a)
			if c.wantErr == "" {
				require.NoError(t, err)
				require.Contains(t, h.commands(), "one DEL")
				require.NoFileExists(t, filepath.Join(h.cfg.StateDir, "allocs", "a.json"))
				return
			}
			require.ErrorIs(t, err, ErrIncomplete, "allocnet cannot stand in for a plugin that it does not know")
			require.ErrorContains(t, err, c.wantErr)
			_, err = h.Get(t.Context(), "a")
			require.NoError(t, err, "the record is kept")
			require.NoError(t, fakeplugin.Install(h.bin, "one"))
			require.NoError(t, h.Teardown(t.Context(), a))
			h.requireNoRecords()
		})
	}
}

// TestNetnsOfTheHost: at the time of DEL, the path of a namespace may lead to
// the host's.
func TestNetnsOfTheHost(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, sandbox.Destroy(a.Netns))
	require.NoError(t, os.Symlink("/proc/self/ns/net", a.Netns))
	defer os.Remove(a.Netns)
	require.ErrorIs(t, h.Check(t.Context(), a), ErrUnhealthy)
	require.NoError(t, h.Teardown(t.Context(), a))
	calls := h.calls()
	last := calls[len(calls)-1]
	require.Equal(t, "DEL", last.Command)
	require.Empty(t, last.Netns, "plugins are not let loose on the host")
}

func TestDelErrorIsKept(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 101, Msg: "device is busy", Only: 2}}), behaviours{})
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.commands()
	err = h.Teardown(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	var cniErr *types.Error
	require.ErrorAs(t, err, &cniErr)
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseDeleting, r.Phase)

	require.NoError(t, h.Teardown(t.Context(), a))
	h.requireNoRecords()
}

func TestNewerRecordIsLeftAlone(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	file := filepath.Join(h.cfg.StateDir, "allocs", "a.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"version":99,"id":"a"}`), 0o600))
	_, err := h.Setup(t.Context(), a)
	require.ErrorContains(t, err, "newer version")
	require.ErrorContains(t, h.Teardown(t.Context(), a), "newer version")
	_, err = h.Force(t.Context(), a)
	require.ErrorContains(t, err, "newer version")
	require.FileExists(t, file)
	require.Empty(t, h.commands())
}

func TestSetupOverACorruptRecord(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	require.NoError(t, os.WriteFile(filepath.Join(h.cfg.StateDir, "allocs", "a.json"), []byte("{"), 0o600))
	_, err := h.List(t.Context())
	require.ErrorContains(t, err, "a.json")
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one DEL", "one ADD"}, h.commands())
}

// TestFullStateDirectory: on a full tmpfs, Setup fails with that cause and
// leaves nothing, and Teardown works.
func TestFullStateDirectory(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	state := "/run/full-state"
	require.NoError(t, os.MkdirAll(state, 0o700))
	require.NoError(t, unix.Mount("tmpfs", state, "tmpfs", 0, "size=64k,mode=700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(state, unix.MNT_DETACH)) })
	h.cfg.StateDir = state
	h.Configurator = newConfigurator(t, h.cfg)
	h.sleep = h.recordSleep

	first := h.alloc("first")
	_, err := h.Setup(t.Context(), first)
	require.NoError(t, err)
	h.commands()
	filler, err := os.Create(filepath.Join(state, "filler"))
	require.NoError(t, err)
	for err == nil {
		_, err = filler.Write([]byte(strings.Repeat("x", 4096)))
	}
	require.ErrorIs(t, err, unix.ENOSPC)

	second := h.alloc("second")
	_, err = h.Setup(t.Context(), second)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Empty(t, h.commands(), "no ADD without a record of it")
	records, err := h.List(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.ErrorIs(t, h.Ready(t.Context()), unix.ENOSPC)

	require.NoError(t, h.Teardown(t.Context(), first))
	h.requireNoRecords()
}

// TestFullLeaseDirectory: leases may be on another file system than the records.
func TestFullLeaseDirectory(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	require.NoError(t, os.MkdirAll(leases, 0o700))
	require.NoError(t, unix.Mount("tmpfs", leases, "tmpfs", 0, "size=64k,mode=700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(leases, unix.MNT_DETACH)) })
	first := h.alloc("first")
	_, err := h.Setup(t.Context(), first)
	require.NoError(t, err)
	filler, err := os.Create(filepath.Join(leases, "filler"))
	require.NoError(t, err)
	for err == nil {
		_, err = filler.Write([]byte(strings.Repeat("x", 4096)))
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	_, err = h.Setup(t.Context(), h.alloc("second"))
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorIs(t, err, ErrStateDir)
	require.ErrorContains(t, err, leases+"/net/10.77.0.3")
	first.Wait = true
	require.NoError(t, h.Teardown(t.Context(), first))
	h.requireNoRecords()
	requireNothingOwned(t, "second")
	require.NoError(t, filler.Close())
}

func TestGC(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Networks = []string{"new"} })
	h.network("new", "1.1.0", adds())
	h.file("old.conflist", h.conflist("old", "1.0.0", nil, adds()))
	h.file("quiet.conflist", h.conflist("quiet", "1.1.0", map[string]any{"disableGC": true}, adds()))
	for _, id := range []string{"live", "dead"} {
		for _, network := range []string{"new", "old", "quiet"} {
			a := h.alloc(id + "-" + network)
			a.Networks = []string{network}
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
		}
	}
	before := len(h.calls())

	report, err := h.GC(t.Context(), []string{"live-new", "live-old", "live-quiet", "unheard-of"})
	require.NoError(t, err)
	require.Equal(t, []string{"dead-new", "dead-old", "dead-quiet"}, report.Removed)
	require.Equal(t, []string{"live-new", "live-old", "live-quiet"}, report.Kept)
	calls := h.calls()[before:]
	require.Len(t, calls, 4, "three DELs, and GC of the one network that knows it and does not refuse")
	last := calls[3]
	require.Equal(t, "GC", last.Command)
	require.Contains(t, string(last.Stdin), `"cni.dev/valid-attachments":[{"containerID":"live-new","ifname":"eth0"}]`)
}

func TestGCGoesOnAfterErrors(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.1.0", adds(behaviours{"DEL": {Code: 100, Msg: "never"}, "GC": {Code: 101, Msg: "gc trouble"}}))
	for i := range 3 {
		_, err := h.Setup(t.Context(), h.alloc(fmt.Sprintf("a%d", i)))
		require.NoError(t, err)
	}
	report, err := h.GC(t.Context(), nil)
	require.Empty(t, report.Removed)
	for _, part := range []string{`"a0"`, `"a1"`, `"a2"`, "gc trouble"} {
		require.ErrorContains(t, err, part)
	}
	records, err := h.List(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 3)
}

func TestReady(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.1.0", adds(behaviours{"STATUS": {Code: 50, Msg: "no uplink", Only: 1}}))
	err := h.Ready(t.Context())
	var cniErr *types.Error
	require.ErrorAs(t, err, &cniErr)
	require.EqualValues(t, 50, cniErr.Code)
	require.NoError(t, h.Ready(t.Context()))
	require.NoError(t, os.RemoveAll(h.cfg.StateDir))
	require.NoError(t, h.Ready(t.Context()), "it can be made")
	require.NoDirExists(t, h.cfg.StateDir)
	require.NoError(t, os.RemoveAll(h.cfg.StateDir))
	require.NoError(t, os.WriteFile(h.cfg.StateDir, nil, 0o600))
	require.ErrorContains(t, h.Ready(t.Context()), "state directory")
}

// TestReadyKernel: what the kernel lacks for a network is named.
func TestReadyKernel(t *testing.T) {
	h := newTestHost(t)
	h.file("10-net.conflist", `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "vlan": 7}]}`)
	lacks := exec.Command("sh", "-c", "ip link add x type bridge vlan_filtering 1 && ip link del x").Run() != nil
	var missing *features.Missing
	require.Equal(t, lacks, errors.As(h.Ready(t.Context()), &missing))
	if lacks {
		require.Contains(t, missing.Error(), "the kernel has no bridge VLAN filtering")
		require.Equal(t, []string{"net"}, missing.Networks)
	}
}

func TestNetworks(t *testing.T) {
	h := newTestHost(t)
	h.file("00-broken.conflist", "{")
	h.file("10-net.conflist", h.conflist("net", "1.0.0", nil, adds()))
	networks, broken := h.Networks(t.Context())
	require.Len(t, broken, 1)
	require.Contains(t, broken[0].Error(), "00-broken.conflist")
	require.Equal(t, Network{Name: "net", File: filepath.Join(h.conf, "10-net.conflist"), CNIVersion: "1.0.0",
		Plugins: []string{"one"}, Capabilities: []string{"mac", "portMappings"}, Default: true, Engine: EngineExec}, networks[0])
	require.Equal(t, "allocnet", networks[1].Name)
	require.False(t, networks[1].Default)
}

// TestLastGoodConfigurationStays: an invalid edit does not remove a network.
func TestLastGoodConfigurationStays(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	_, err := h.Setup(t.Context(), h.alloc("before"))
	require.NoError(t, err)
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plug`)
	_, err = h.Setup(t.Context(), h.alloc("after"))
	require.NoError(t, err)
	_, broken := h.Networks(t.Context())
	require.Len(t, broken, 1)
}

func TestForceAndAudit(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 100, Msg: "never"}}))
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = h.Force(t.Context(), a)
	require.ErrorIs(t, err, ErrSetUp, "it is set up, and Teardown was not tried")
	require.ErrorIs(t, h.Teardown(t.Context(), a), ErrIncomplete)
	left, err := h.Audit(t.Context(), a)
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = h.Force(t.Context(), a)
	require.NoError(t, err)
	h.requireNoRecords()
}

// TestGCFindsLeasesWithoutRecord: the leases of the embedded network belong to
// allocnet, so a lease without a record is stale.
func TestGCFindsLeasesWithoutRecord(t *testing.T) {
	h := newTestHost(t)
	embedded, err := h.lookup("allocnet")
	require.NoError(t, err)
	var conf struct{ IPAM struct{ DataDir string } }
	for _, p := range embedded.List.Plugins {
		if p.Network.Type == "ptp" {
			require.NoError(t, json.Unmarshal(p.Bytes, &conf))
		}
	}
	require.NotEmpty(t, conf.IPAM.DataDir)
	dir := filepath.Join(conf.IPAM.DataDir, "allocnet")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for ip, id := range map[string]string{"10.202.0.2": "lost", "10.202.0.3": "live"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, ip), []byte(id+"\r\neth0"), 0o600))
	}
	report, err := h.GC(t.Context(), []string{"live"})
	require.NoError(t, err)
	require.Equal(t, []string{"lost"}, report.Removed)
	require.Equal(t, []string{"live"}, report.Kept)
	require.NoFileExists(t, filepath.Join(dir, "10.202.0.2"))
	require.FileExists(t, filepath.Join(dir, "10.202.0.3"))
}

// TestGCSparesNewcomers: an allocation that is set up after GC began is not in
// its list of live allocations.
func TestGCSparesNewcomers(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	began := time.Now()
	_, err := h.Setup(t.Context(), h.alloc("newcomer"))
	require.NoError(t, err)
	_, removed, err := h.collect(t.Context(), "newcomer", collection{began: began, before: new(summaries)})
	require.NoError(t, err)
	require.False(t, removed)
	_, removed, err = h.collect(t.Context(), "newcomer", collection{began: time.Now(), before: new(summaries)})
	require.NoError(t, err)
	require.True(t, removed)
}

// TestRepeatedTeardown: if the kernel has nothing of an allocation, iptables
// does not run, neither after a Teardown nor for an unknown ID. Objects that
// appear in between are found.
func TestRepeatedTeardown(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0", `{"type":"firewall"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`)
	a := h.alloc("c")
	a.ID, a.ContainerID, a.Interface = "c.eth0", "c", "eth0"
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), a))
	h.settle()

	path, programs := os.Getenv("PATH"), t.TempDir()
	for _, name := range []string{"iptables", "ip6tables", "iptables-save", "nft"} {
		require.NoError(t, os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n: >>"+programs+"/ran\nexit 1\n"), 0o755))
	}
	t.Setenv("PATH", programs)
	unknown := a
	unknown.ID, unknown.ContainerID = "d.eth0", "d"
	for _, c := range []*Configurator{h.Configurator, h.restarted()} {
		for _, asked := range []Allocation{a, unknown, {ID: a.ID}, {ID: "e"}} {
			for range 2 {
				require.NoError(t, c.Teardown(t.Context(), asked))
			}
		}
	}
	require.NoFileExists(t, filepath.Join(programs, "ran"))

	t.Setenv("PATH", path)
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(h.cfg.StateDir))
	require.NoError(t, h.Teardown(t.Context(), a))
	require.Empty(t, leaseHolders(t, filepath.Join(leases, "net")))
	h.requireNoRecords()
}
