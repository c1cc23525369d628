package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/firewalldtest"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestOpeningIsRecognised: only the first process runs iptables to check the
// forward-accept rule. The daemon searches its own PATH for iptables.
func TestOpeningIsRecognised(t *testing.T) {
	privhost.Require(t, "iptables-nft", "ip6tables-nft")
	links, err := linksTo(sdk.Program)
	require.NoError(t, err)
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	for _, suffix := range []string{"", "-restore"} {
		real, err := exec.LookPath("iptables-nft" + suffix)
		require.NoError(t, err)
		script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s\nexec %s \"$@\"\n", log, real)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "iptables"+suffix), []byte(script), 0o755))
	}
	path := "PATH=" + dir + ":" + os.Getenv("PATH")
	runs := func(id string) string {
		require.NoError(t, os.RemoveAll(log))
		conf := `{"cniVersion":"1.0.0","name":"n","prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.2/24"}]}}`
		netns := namespace(t, id)
		call := func(command string) {
			env := append(changed(command, links, netns, []string{"CNI_CONTAINERID=" + id}), path)
			require.Zero(t, call(t, links, "firewall", conf, env...).exit)
		}
		call("ADD")
		defer call("DEL") // removes the element; the log has been read by then
		data, err := os.ReadFile(log)
		if err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
		}
		return string(data)
	}
	require.Contains(t, runs("first"), "-S FORWARD")
	require.Empty(t, runs("second"))
	out, err := exec.Command("iptables-nft", strings.Fields("-F FORWARD")...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, runs("third"), "-S FORWARD")
	require.Empty(t, runs("fourth"))
}

// TestFirewalld: the plugin binaries also add addresses to firewalld's zone,
// and release an address only after it has left the zone.
func TestFirewalld(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	dataDir := t.TempDir()
	list := network(t, "1.0.0", bridged(dataDir), aFirewall, rest[0])
	f := firewalldtest.StartBus(t).Start("nftables")
	cni, web, ctx := runtime(t, links), attachment("web", namespace(t, "web")), t.Context()
	_, err := cni.AddNetworkList(ctx, list, web)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"10.9.0.2/32", "fd00:9::2/128"}, f.Sources("trusted"))
	require.NoError(t, cni.CheckNetworkList(ctx, list, web))

	t.Run("no bus", func(t *testing.T) {
		t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
		require.ErrorContains(t, cni.DelNetworkList(ctx, list, web), "D-Bus")
		require.Len(t, leases(t, dataDir), 2)
	})
	require.NoError(t, cni.DelNetworkList(ctx, list, web))
	require.Empty(t, f.Sources("trusted"))
	require.Empty(t, leases(t, dataDir))
}
