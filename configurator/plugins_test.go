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

// TestPluginsThatKillTheirGroup: a plugin that kills its process group kills no
// other process.
func TestPluginsThatKillTheirGroup(t *testing.T) {
	if unix.Getpgrp() != os.Getpid() { // otherwise it would also kill the process that runs the tests
		require.NoError(t, unix.Setpgid(0, 0))
	}
	kills := fakeplugin.Behaviour{KillGroup: true}
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			h := newTestHost(t, func(c *Config) { c.Engine, c.Retry.Attempts = e, 1 })
			h.network("adds", "1.1.0", adds(behaviours{"ADD": kills}))
			h.network("others", "1.1.0", adds(behaviours{"CHECK": kills, "DEL": kills, "GC": kills, "STATUS": kills}))
			a := h.alloc("a")
			a.Networks = []string{"adds"}
			_, err := h.Setup(t.Context(), a)
			require.ErrorContains(t, err, "signal: killed")
			a.Networks = []string{"others"}
			_, err = h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.ErrorIs(t, h.Check(t.Context(), a), ErrNotChecked)
			require.ErrorContains(t, h.ReadyFor(t.Context(), a), "signal: killed")
			_, err = h.GC(t.Context(), []string{"a"})
			require.ErrorContains(t, err, "signal: killed")
			require.ErrorContains(t, h.Teardown(t.Context(), a), "signal: killed")
			_, err = h.Force(t.Context(), a)
			require.NoError(t, err)
		})
	}
}

// TestSwappedNetns: plugins work in the namespace that the operation opened,
// even if its path leads elsewhere later, and results contain the path.
func TestSwappedNetns(t *testing.T) {
	var host unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/ns/net", &host))
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			h := newTestHost(t, func(c *Config) { c.Engine = e })
			h.network("net", "1.0.0", adds())
			a := h.alloc("a")
			a.Netns = testhost.Swapped(t, a.Netns)
			h.setupOften(a, 12)
			require.NoError(t, h.Teardown(t.Context(), a))
			calls := h.calls()
			require.NotEmpty(t, calls)
			for _, c := range calls {
				require.NotEqual(t, host.Ino, c.Inode, c.Command)
				require.True(t, c.Inode != 0 || c.Command == "DEL", c.Command)
			}
		})
	}
	t.Run("in the process", func(t *testing.T) {
		h, _ := nativeHost(t, "1.0.0")
		a := h.alloc("a")
		a.Netns = testhost.Swapped(t, a.Netns)
		for range 12 {
			h.setupOften(a, 1)
			_, err := netlink.LinkByName("eth0")
			require.ErrorAs(t, err, &netlink.LinkNotFoundError{}, "on the host")
			require.NoError(t, h.Teardown(t.Context(), a))
		}
	})
}

// setupOften sets an allocation up several times and tears it down in between.
// It repeats a Setup that finds the host's namespace at the path.
func (h *testHost) setupOften(a Allocation, times int) {
	t := h.t
	t.Helper()
	for done := 0; done < times; {
		status, err := h.Setup(t.Context(), a)
		if errors.Is(err, sandbox.ErrHostNamespace) {
			continue
		}
		require.NoError(t, err)
		for _, i := range status.Interfaces {
			require.Contains(t, []string{"", "/sandbox", a.Netns}, i.Sandbox)
		}
		if done++; done < times {
			require.NoError(t, h.Teardown(t.Context(), a))
		}
	}
}

// TestPluginsGetTheNamespaceByItsDescriptor: plugins see one path to the
// namespace in all their input.
func TestPluginsGetTheNamespaceByItsDescriptor(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			h := newTestHost(t, func(c *Config) { c.Engine = e })
			script := `#!/bin/sh
prev=$(tr -d ' ' | grep -o '"sandbox":"[^"]*"')
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"lo","sandbox":"'$CNI_NETNS'"}],"ips":[{"address":"127.0.0.1/8","interface":0}]}' ;;
*) test "$prev" = "\"sandbox\":\"$CNI_NETNS\"" || { echo '{"code":100,"msg":"'"$CNI_COMMAND in $CNI_NETNS of ${prev//\"/}"'"}'; exit 1; } ;;
esac
`
			require.NoError(t, os.WriteFile(filepath.Join(h.bin, "script"), []byte(script), 0o755))
			h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"script"}]}`)
			a := h.alloc("a")
			status, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, a.Netns, status.Interfaces[0].Sandbox)
			require.Contains(t, string(status.Results[0]), a.Netns)
			require.NoError(t, h.Check(t.Context(), a))
			require.NoError(t, h.Teardown(t.Context(), a))
		})
	}
}
