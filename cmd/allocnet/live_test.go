package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

// attachment sets up an allocation as the CNI plugin does.
func (w *workspace) attachment(container, ifName string) {
	w.Helper()
	c, err := configurator.New(configurator.Config{ConfDir: w.path("conf"), StateDir: w.path("state"), PluginDirs: []string{w.path("plugins")}})
	require.NoError(w, err)
	id := container + "." + ifName
	_, err = c.Setup(w.Context(), configurator.Allocation{
		ID: id, ContainerID: container, Interface: ifName, Netns: w.sandbox(strings.ReplaceAll(id, ".", "-")).Path(), Scope: "cni/front"})
	require.NoError(w, err)
}

// TestGCKeepsContainers: gc takes the IDs that runtimes pass to CNI, and refuses those that may
// be another form of an allocation that it would remove.
func TestGCKeepsContainers(t *testing.T) {
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	const uuid = "a1b2c3d4-0000-4000-8000-fedcba987654"
	nerdctl := "default-" + longID
	for _, c := range []string{"default-web-1", "default-web-2", uuid, nerdctl} {
		w.attachment(c, "eth0")
	}
	w.attachment("default-web-1", "eth1")
	all := strings.Fields(w.run("ls", "-q").ok(t))
	require.Len(t, all, 5)
	for name, run := range map[string]func(...string) outcome{"alone": w.run, "daemon": ask} {
		t.Run(name, func(t *testing.T) {
			for live, want := range map[string]string{
				"web-1":      "default-web-1.eth0, default-web-1.eth1",
				"web-2.eth0": "default-web-2.eth0",
				"a1b2c3d4":   uuid + ".eth0",
				longID[:12]:  nerdctl + ".eth0",
			} {
				for _, how := range []string{"--dry-run", "--destroy"} {
					refused := run("gc", "--scope", "cni/front", how, "--json", "--live", "host-net", "--live", live).failure(t, exitUsage)
					require.Equal(t, "invalid", refused.Kind)
					require.Contains(t, refused.Error, `live ID "`+live+`"`)
					require.Contains(t, refused.Error, "it may mean "+want+", which would be removed")
					require.Regexp(t, "type (one of )?"+want+";", refused.Hint)
				}
			}
			got := run("gc", "--scope", "cni/front", "--dry-run", "--json", "--live", "default-web-2,host-net")
			require.Equal(t, []string{"default-web-2.eth0"}, decode[gcReport](t, got.ok(t)).Kept)
			require.JSONEq(t, `{"warning": "live allocation \"host-net\" is not set up"}`, got.errOut)
			none := run("gc", "--scope", "cni/front", "--json", "--live", "blue,green").failure(t, exitUsage)
			require.Contains(t, none.Error, "no allocation has any of the IDs blue, green, and 5 allocations would be removed")
			require.Contains(t, none.Hint, "--none")
			require.ElementsMatch(t, all, strings.Fields(run("ls", "-q").ok(t)), "nothing was removed")
			require.Contains(t, run("gc", "--json", "--live", "blue").ok(t), `"removed": []`, "nothing to remove")
			kept := decode[gcReport](t, run("gc", "--scope", "cni/front", "--dry-run", "--json", "--live", "default-web-1").ok(t)).Kept
			require.Equal(t, []string{"default-web-1.eth0", "default-web-1.eth1"}, kept)
		})
	}
	args := append([]string{"gc", "--scope", "cni/front", "--live-from", "-", "--json"}, w.flags()...)
	report := decode[gcReport](t, runWith("default-web-1\n"+uuid+"\ndefault-web-2\n", args...).ok(t))
	require.Equal(t, []string{nerdctl + ".eth0"}, report.Removed)
	require.Len(t, report.Kept, 4)
	w.run("gc", "--scope", "cni/front", "--none").ok(t)
}

// TestMeaningOfHashes: the ID of an allocation can be a hash, but the container's is known.
func TestMeaningOfHashes(t *testing.T) {
	plan := &configurator.GCReport{Removed: []string{"db", "f00d"}, Records: []configurator.Record{{ID: "db"}, {ID: "f00d", ContainerID: "default-web"}}}
	require.ErrorContains(t, meaningRemoved([]string{"other", "web"}, plan), `live ID "web": no allocation has this ID, but it may mean f00d, which would be removed`)
	require.NoError(t, meaningRemoved([]string{"default", "other"}, plan))
}

func TestMayMean(t *testing.T) {
	for live, want := range map[string]bool{
		"web-1": true, "1": true, "web-1.eth0": true, "default-web-1": true,
		"web": false, "eb-1": false, "default-web": false, "": false, "default": false, "web-1.eth1": false, "default-": false,
	} {
		require.Equal(t, want, mayMean(live, "default-web-1.eth0"), live)
	}
	for live, want := range map[string]bool{"0123": true, longID: true, "012": false, "123456": false, "default-0123": false} {
		require.Equal(t, want, mayMean(live, "default-"+longID+".eth0"), live)
	}
}
