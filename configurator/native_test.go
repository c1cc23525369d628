package configurator

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// nativeHost returns a host with the native engine and a bridged network with
// other plugins after the bridge. The leases are in the returned directory. The
// host has no rules at the end, so that later tests can use the same host ports.
func nativeHost(t *testing.T, version string, others ...string) (h *testHost, leases string) {
	t.Helper()
	h = newTestHost(t, func(c *Config) { c.Engine, c.Network = EngineNative, "net" })
	leases = filepath.Join(t.TempDir(), "leases")
	bridge := `{"type":"bridge","bridge":"brtest","isGateway":true,"ipam":{"type":"host-local","dataDir":"` + leases + `","subnet":"10.77.0.0/24"}}`
	h.file("net.conflist", `{"cniVersion":"`+version+`","name":"net","plugins":[`+strings.Join(append([]string{bridge}, others...), ",")+`]}`)
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("brtest"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
		privhost.FlushRuleset(t)
	})
	return h, leases
}

// restarted returns the configurator of another process with the same state.
func (h *testHost) restarted() *Configurator {
	cfg := h.cfg
	cfg.Network = "" // Networks contains it
	return newConfigurator(h.t, cfg)
}

// TestChangedSubnet: a bridge that has the gateway's address of another subnet is a permanent error.
func TestChangedSubnet(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,
		"ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.78.0.0/24"}}]}`)
	_, err = h.Setup(t.Context(), h.alloc("b"))
	require.ErrorContains(t, err, `bridge "brtest" already has the address 10.77.0.1/24, which is not the gateway 10.78.0.1/24`)
	require.Empty(t, h.slept)
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestRollBackLeavesForeignInterfacesAlone: also if the ADD fails before the
// engine has searched for such interfaces.
func TestRollBackLeavesForeignInterfacesAlone(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	require.NoError(t, os.WriteFile(leases, nil, 0o600)) // so that the directory cannot be created
	a := h.alloc("a")
	h.foreign(a.Netns, "vforeign3")
	_, err := h.Setup(t.Context(), a)
	require.Error(t, err)
	requireLink(t, "vforeign3")
}

// TestTeardownEndsWhatACrashLeft: a plugin whose caller has died would
// otherwise continue after the DEL.
func TestTeardownEndsWhatACrashLeft(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			h := newTestHost(t, func(c *Config) { c.Engine = e })
			h.network("net", "1.0.0", adds())
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			h.setPhase("a", record.Adding)
			plugin := exec.Command("sleep", "300")
			plugin.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=a", "CNI_IFNAME=eth0", "CNI_PATH=" + h.bin + ":" + h.processTag}
			require.NoError(t, plugin.Start())
			ended := make(chan error, 1)
			go func() { ended <- plugin.Wait() }()
			defer func() { _ = plugin.Process.Kill() }()
			require.Eventually(t, func() bool { // it runs, but the kernel may not show its variables yet
				environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", plugin.Process.Pid))
				return err == nil && len(environ) > 0
			}, 5*time.Second, time.Millisecond)
			require.NoError(t, h.Teardown(t.Context(), a))
			select {
			case err := <-ended:
				require.EqualError(t, err, "signal: killed")
			case <-time.After(5 * time.Second):
				t.Fatal("it is still at work")
			}
		})
	}
}

// TestHostAtItsLimitsIsNoFinding: if resources for a check are missing, the
// check says nothing about the network.
func TestHostAtItsLimitsIsNoFinding(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	r, err := h.store.Get("a")
	require.NoError(t, err)
	require.NoError(t, checkInterfaces(r))
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}))
	lookErr, checkErr := checkInterfaces(r), h.checkRecord(t.Context(), h.planOf(r))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.ErrorIs(t, lookErr, unix.EMFILE)
	require.False(t, isFault(lookErr))
	require.ErrorIs(t, checkErr, ErrNotChecked)
	require.NotErrorIs(t, checkErr, ErrUnhealthy)
}

// TestGCSparesAnotherInstance: GC keeps the allocations of another instance
// with the same network and leases.
func TestGCSparesAnotherInstance(t *testing.T) {
	h, leases := nativeHost(t, "1.1.0")
	cfg := h.cfg
	cfg.StateDir, cfg.Network = t.TempDir(), ""
	other := newConfigurator(t, cfg)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	writeLease(t, filepath.Join(leases, "net"), "10.77.0.9", "a-container-that-is-gone")
	_, err = other.GC(t.Context(), nil)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(leases, "net", "10.77.0.9"))
	require.FileExists(t, filepath.Join(leases, "net", "10.77.0.2"))
	require.NoError(t, h.Check(t.Context(), a))
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestDelRunsWhatAddRan: DEL runs the same kind of plugins as ADD, although the
// native plugins of another version support other configurations.
func TestDelRunsWhatAddRan(t *testing.T) {
	installFirewall := func(h *testHost) {
		script := "#!/bin/sh\necho $CNI_COMMAND >>" + h.log + "\n[ $CNI_COMMAND != ADD ] || echo '" + result + "'\n"
		require.NoError(h.t, os.WriteFile(filepath.Join(h.bin, "firewall"), []byte(script), 0o755))
	}
	binaries := func(h *testHost) *[]string {
		r, err := h.store.Get("a")
		require.NoError(h.t, err)
		return &r.Attachments[0].Binaries
	}
	note := func(h *testHost, types []string) {
		r, err := h.store.Get("a")
		require.NoError(h.t, err)
		r.Attachments[0].Binaries = types
		require.NoError(h.t, h.store.Put(r))
	}
	t.Run("a binary", func(t *testing.T) {
		h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`)
		installFirewall(h)
		_, err := h.Setup(t.Context(), h.alloc("a"))
		require.NoError(t, err)
		require.Equal(t, []string{}, *binaries(h))
		note(h, []string{"firewall"})
		later := h.restarted()
		r, err := later.store.Get("a")
		require.NoError(t, err)
		require.False(t, later.runsInProcess(later.planOf(r)))
		require.NoError(t, later.Teardown(t.Context(), Allocation{ID: "a"}))
		log, err := os.ReadFile(h.log)
		require.NoError(t, err)
		require.Equal(t, "DEL\n", string(log))
	})
	t.Run("inside the process", func(t *testing.T) {
		h, _ := nativeHost(t, "1.0.0", `{"type":"firewall","color":"red"}`)
		installFirewall(h)
		a := h.alloc("a")
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, []string{"firewall"}, *binaries(h))
		note(h, []string{})
		require.NoError(t, os.Remove(filepath.Join(h.bin, "firewall")))
		later := h.restarted()
		require.NoError(t, later.Teardown(t.Context(), a), "no binary is needed")
		h.requireNoRecords()
	})
	t.Run("set up again", func(t *testing.T) {
		h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`)
		a := h.alloc("a")
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		note(h, []string{"firewall"})
		h.deleteVeth(a.ID)
		installFirewall(h)
		later := h.restarted()
		status, err := later.Setup(t.Context(), a)
		require.NoError(t, err)
		require.True(t, status.SetUpAgain)
		require.False(t, status.Created)
		require.Len(t, status.Warnings, 1)
		require.Regexp(t, `^the network was set up again, .*; its addresses are now 10\S+ \(before: 10\S+\); .*: .*no such device`, status.Warnings[0])
		status, err = later.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Empty(t, status.Warnings, "it was healthy")
		require.False(t, status.SetUpAgain)
		require.Equal(t, []string{}, *binaries(h))
		require.NoError(t, later.Teardown(t.Context(), a))
		log, err := os.ReadFile(h.log)
		require.NoError(t, err)
		require.Contains(t, string(log), "DEL\n")
		require.NotContains(t, string(log), "ADD\n")
	})
}

// deleteVeth deletes the veth of an allocation in network "net", which cannot be repaired.
func (h *testHost) deleteVeth(id string) {
	h.t.Helper()
	name := names.Owner{Network: "net", ID: id, IfName: "eth0", Instance: h.instance}.Veth()
	link, err := netlink.LinkByName(name)
	require.NoError(h.t, err)
	require.NoError(h.t, netlink.LinkDel(link))
}
