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

	"github.com/allocnet/allocnet/internal/state/record"
)

// nativeWorld is a host with the native engine and a bridged network, whose
// addresses are leased below the directory that is returned. Behind the bridge
// come the other plugins.
func nativeWorld(t *testing.T, version string, others ...string) (w *world, leases string) {
	t.Helper()
	w = newWorld(t, func(c *Config) { c.Engine, c.Network = EngineNative, "net" })
	leases = filepath.Join(t.TempDir(), "leases")
	bridge := `{"type":"bridge","bridge":"brtest","isGateway":true,"ipam":{"type":"host-local","dataDir":"` + leases + `","subnet":"10.77.0.0/24"}}`
	w.file("net.conflist", `{"cniVersion":"`+version+`","name":"net","plugins":[`+strings.Join(append([]string{bridge}, others...), ",")+`]}`)
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("brtest"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
	})
	return w, leases
}

// restarted is another process on the same state.
func (w *world) restarted() *Configurator {
	cfg := w.cfg
	cfg.Network = "" // Networks has it
	return newConfigurator(w.t, cfg)
}

// TestRollBackLeavesForeignInterfacesAlone, whatever failed before the engine
// looked for them.
func TestRollBackLeavesForeignInterfacesAlone(t *testing.T) {
	w, leases := nativeWorld(t, "1.0.0")
	require.NoError(t, os.WriteFile(leases, nil, 0o600)) // no directory can be made there
	a := w.alloc("a")
	w.foreign(a.Netns, "vforeign3")
	_, err := w.Setup(t.Context(), a)
	require.Error(t, err)
	requireLink(t, "vforeign3")
}

// TestTeardownEndsWhatACrashLeft: a plugin that outlived the process that ran it
// would go on after the DEL.
func TestTeardownEndsWhatACrashLeft(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Engine = e })
			w.network("net", "1.0.0", adds())
			a := w.alloc("a")
			_, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			w.setPhase("a", record.Adding)
			plugin := exec.Command("sleep", "300")
			plugin.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=a", "CNI_PATH=" + w.bin + ":" + w.processTag}
			require.NoError(t, plugin.Start())
			ended := make(chan error, 1)
			go func() { ended <- plugin.Wait() }()
			defer func() { _ = plugin.Process.Kill() }()
			require.Eventually(t, func() bool { // it has begun, but the kernel may not show its variables yet
				environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", plugin.Process.Pid))
				return err == nil && len(environ) > 0
			}, 5*time.Second, time.Millisecond)
			require.NoError(t, w.Teardown(t.Context(), a))
			select {
			case err := <-ended:
				require.EqualError(t, err, "signal: killed")
			case <-time.After(5 * time.Second):
				t.Fatal("it is still at work")
			}
		})
	}
}

// TestHostAtItsLimitsIsNoFinding: that nobody can look says nothing about the
// network.
func TestHostAtItsLimitsIsNoFinding(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.NoError(t, err)
	r, err := w.store.Get("a")
	require.NoError(t, err)
	require.NoError(t, checkInterfaces(r))
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}))
	lookErr, checkErr := checkInterfaces(r), w.checkRecord(t.Context(), w.planOf(r))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.ErrorIs(t, lookErr, unix.EMFILE)
	require.False(t, isFault(lookErr))
	require.ErrorIs(t, checkErr, ErrNotChecked)
	require.NotErrorIs(t, checkErr, ErrUnhealthy)
}

// TestGCSparesAnotherInstance on the same network, with the same leases.
func TestGCSparesAnotherInstance(t *testing.T) {
	w, leases := nativeWorld(t, "1.1.0")
	cfg := w.cfg
	cfg.StateDir, cfg.Network = t.TempDir(), ""
	other := newConfigurator(t, cfg)
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	lease(t, filepath.Join(leases, "net"), "10.77.0.9", "a-container-that-is-gone")
	_, err = other.GC(t.Context(), nil)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(leases, "net", "10.77.0.9"))
	require.FileExists(t, filepath.Join(leases, "net", "10.77.0.2"))
	require.NoError(t, w.Check(t.Context(), a))
	require.NoError(t, w.Teardown(t.Context(), a))
}

// TestDelRunsWhatAddRan, though the native plugins of another version understand
// other configurations.
func TestDelRunsWhatAddRan(t *testing.T) {
	installFirewall := func(w *world) {
		script := "#!/bin/sh\necho $CNI_COMMAND >>" + w.log + "\n[ $CNI_COMMAND != ADD ] || echo '" + result + "'\n"
		require.NoError(w.t, os.WriteFile(filepath.Join(w.bin, "firewall"), []byte(script), 0o755))
	}
	binaries := func(w *world) *[]string {
		r, err := w.store.Get("a")
		require.NoError(w.t, err)
		return &r.Attachments[0].Binaries
	}
	note := func(w *world, types []string) {
		r, err := w.store.Get("a")
		require.NoError(w.t, err)
		r.Attachments[0].Binaries = types
		require.NoError(w.t, w.store.Put(r))
	}
	t.Run("a binary", func(t *testing.T) {
		w, _ := nativeWorld(t, "1.0.0", `{"type":"firewall"}`)
		installFirewall(w)
		_, err := w.Setup(t.Context(), w.alloc("a"))
		require.NoError(t, err)
		require.Equal(t, []string{}, *binaries(w))
		note(w, []string{"firewall"})
		later := w.restarted()
		r, err := later.store.Get("a")
		require.NoError(t, err)
		require.False(t, later.runsInProcess(later.planOf(r)))
		require.NoError(t, later.Teardown(t.Context(), Allocation{ID: "a"}))
		log, err := os.ReadFile(w.log)
		require.NoError(t, err)
		require.Equal(t, "DEL\n", string(log))
	})
	t.Run("inside the process", func(t *testing.T) {
		w, _ := nativeWorld(t, "1.0.0", `{"type":"firewall","color":"red"}`)
		installFirewall(w)
		a := w.alloc("a")
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, []string{"firewall"}, *binaries(w))
		note(w, []string{})
		require.NoError(t, os.Remove(filepath.Join(w.bin, "firewall")))
		later := w.restarted()
		require.NoError(t, later.Teardown(t.Context(), a), "no binary is needed")
		w.requireNoRecords()
	})
	t.Run("set up again", func(t *testing.T) {
		w, _ := nativeWorld(t, "1.0.0", `{"type":"firewall"}`)
		a := w.alloc("a")
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
		note(w, []string{"firewall"})
		bridge, err := netlink.LinkByName("brtest")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(bridge))
		installFirewall(w)
		later := w.restarted()
		_, err = later.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, []string{}, *binaries(w))
		require.NoError(t, later.Teardown(t.Context(), a))
		log, err := os.ReadFile(w.log)
		require.NoError(t, err)
		require.Contains(t, string(log), "DEL\n")
		require.NotContains(t, string(log), "ADD\n")
	})
}
