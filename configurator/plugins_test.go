package configurator

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/sandbox"
)

// TestPluginsThatKillTheirGroup end nobody but themselves.
func TestPluginsThatKillTheirGroup(t *testing.T) {
	if unix.Getpgrp() != os.Getpid() { // else it would end who runs the tests, too
		require.NoError(t, unix.Setpgid(0, 0))
	}
	kills := fakeplugin.Behaviour{KillGroup: true}
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Engine, c.Retry.Attempts = e, 1 })
			w.network("adds", "1.1.0", adds(behaviours{"ADD": kills}))
			w.network("others", "1.1.0", adds(behaviours{"CHECK": kills, "DEL": kills, "GC": kills, "STATUS": kills}))
			a := w.alloc("a")
			a.Networks = []string{"adds"}
			_, err := w.Setup(t.Context(), a)
			require.ErrorContains(t, err, "signal: killed")
			a.Networks = []string{"others"}
			_, err = w.Setup(t.Context(), a)
			require.NoError(t, err)
			require.ErrorIs(t, w.Check(t.Context(), a), ErrNotChecked)
			require.ErrorContains(t, w.ReadyFor(t.Context(), a), "signal: killed")
			_, err = w.GC(t.Context(), []string{"a"})
			require.ErrorContains(t, err, "signal: killed")
			require.ErrorContains(t, w.Teardown(t.Context(), a), "signal: killed")
			_, err = w.Force(t.Context(), a)
			require.NoError(t, err)
		})
	}
}

// TestSwappedNetns: plugins work in the namespace that the operation opened, even if its
// path leads elsewhere by then, and results name the path.
func TestSwappedNetns(t *testing.T) {
	var host unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/ns/net", &host))
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Engine = e })
			w.network("net", "1.0.0", adds())
			a := w.alloc("a")
			a.Netns = testhost.Swapped(t, a.Netns)
			w.setupOften(a, 12)
			require.NoError(t, w.Teardown(t.Context(), a))
			calls := w.calls()
			require.NotEmpty(t, calls)
			for _, c := range calls {
				require.NotEqual(t, host.Ino, c.Inode, c.Command)
				require.True(t, c.Inode != 0 || c.Command == "DEL", c.Command)
			}
		})
	}
	t.Run("in the process", func(t *testing.T) {
		w, _ := nativeWorld(t, "1.0.0")
		a := w.alloc("a")
		a.Netns = testhost.Swapped(t, a.Netns)
		for range 12 {
			w.setupOften(a, 1)
			_, err := netlink.LinkByName("eth0")
			require.ErrorAs(t, err, &netlink.LinkNotFoundError{}, "on the host")
			require.NoError(t, w.Teardown(t.Context(), a))
		}
	})
}

// setupOften sets an allocation up and takes it down, as often as its path leads to
// it when it is looked at, and sets it up in the end.
func (w *world) setupOften(a Allocation, times int) {
	t := w.t
	t.Helper()
	for done := 0; done < times; {
		status, err := w.Setup(t.Context(), a)
		if errors.Is(err, sandbox.ErrHostNamespace) {
			continue
		}
		require.NoError(t, err)
		for _, i := range status.Interfaces {
			require.Contains(t, []string{"", "/sandbox", a.Netns}, i.Sandbox)
		}
		if done++; done < times {
			require.NoError(t, w.Teardown(t.Context(), a))
		}
	}
}

// TestPluginsGetTheNamespaceByItsDescriptor, and see one path in it everywhere.
func TestPluginsGetTheNamespaceByItsDescriptor(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Engine = e })
			script := `#!/bin/sh
prev=$(tr -d ' ' | grep -o '"sandbox":"[^"]*"')
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"lo","sandbox":"'$CNI_NETNS'"}],"ips":[{"address":"127.0.0.1/8","interface":0}]}' ;;
*) test "$prev" = "\"sandbox\":\"$CNI_NETNS\"" || { echo '{"code":100,"msg":"'"$CNI_COMMAND in $CNI_NETNS of ${prev//\"/}"'"}'; exit 1; } ;;
esac
`
			require.NoError(t, os.WriteFile(filepath.Join(w.bin, "script"), []byte(script), 0o755))
			w.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"script"}]}`)
			a := w.alloc("a")
			status, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, a.Netns, status.Interfaces[0].Sandbox)
			require.Contains(t, string(status.Results[0]), a.Netns)
			require.NoError(t, w.Check(t.Context(), a))
			require.NoError(t, w.Teardown(t.Context(), a))
		})
	}
}
