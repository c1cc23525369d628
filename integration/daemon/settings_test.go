package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

const besideSocket = "/run/allocnet/allocnetd.sock.settings"

// TestDaemonSettingsOfItsOwn runs a daemon with settings from its environment,
// as systemd passes them from /etc/default/allocnetd. The plugin does not have
// that environment, and works on the same records when the daemon is not
// running.
func TestDaemonSettingsOfItsOwn(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	d := h.newDaemon("")
	state := filepath.Join(d.dir, "state")
	t.Setenv("ALLOCNETD_STATE_DIR", state)
	t.Setenv("ALLOCNETD_NETWORKS", "net")
	t.Setenv("ALLOCNETD_SERVICE_HOST", "10.0.0.1") // set by Kubernetes
	d.begin()
	d.told("READY=1")
	for _, name := range []string{"ALLOCNETD_STATE_DIR", "ALLOCNETD_NETWORKS"} {
		require.NoError(t, os.Unsetenv(name))
	}
	t.Setenv("ALLOCNETD_NOPE", "1")
	ids := func() []string {
		ids, err := record.Open(state).IDs()
		require.NoError(t, err)
		return ids
	}
	a, b := h.Alloc("a"), h.Alloc("b")
	config := d.pluginConfig(nil)
	_, err := d.plugin("ADD", a.ID, a.Netns, config)
	require.NoError(t, err)
	d.kill()
	_, err = d.plugin("ADD", b.ID, b.Netns, config)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"a.eth0", "b.eth0"}, ids())
	_, err = d.plugin("DEL", a.ID, a.Netns, config)
	require.NoError(t, err)
	require.Equal(t, []string{"b.eth0"}, ids())

	// Other users could have written the daemon's settings file, so the plugin
	// uses the file that its configuration names.
	d.configure(`state_dir = "` + state + `"`)
	require.NoError(t, os.WriteFile(besideSocket, []byte(`{"state_dir": ["/nowhere"]}`), 0o600))
	require.NoError(t, os.Chmod(besideSocket, 0o666))
	_, err = d.plugin("DEL", b.ID, b.Netns, config)
	require.NoError(t, err)
	require.Empty(t, ids())
	require.NoFileExists(t, "/nowhere")
	require.NoError(t, os.Remove(besideSocket))
	_, err = d.plugin("ADD", a.ID, a.Netns, d.pluginConfig(map[string]any{"delegate": "net"}))
	require.NoError(t, err, "there is none")
	require.Equal(t, []string{"a.eth0"}, ids())
	_, err = d.plugin("DEL", a.ID, a.Netns, config)
	require.NoError(t, err)
	require.Empty(t, ids())

	require.NoError(t, os.Unsetenv("ALLOCNETD_NOPE"))
	d.begin()
	d.told("READY=1")
	d.term() // the daemon removes its socket and leaves its settings
	require.FileExists(t, besideSocket)
}

// TestDaemonAsItsOwnPlugin: a client of the daemon cannot make the daemon run
// allocnet's plugin, under any of its names, with a configuration of the
// client's.
func TestDaemonAsItsOwnPlugin(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	d := h.newDaemon("")
	t.Setenv("ALLOCNETD_PLUGIN_DIRS", d.bin+":"+testbed.PluginDir)
	d.begin()
	d.told("READY=1")
	inner := map[string]any{"type": "allocnet-cni", "delegate": "net", "settings": d.settings, "socket": "/nowhere"}
	hidden := func(plugin string) map[string]any {
		return map[string]any{"type": "ptp", "settings": d.settings, "socket": "/nowhere",
			"ipam": map[string]any{"type": plugin}}
	}
	a := h.Alloc("a")
	for i, plugin := range []map[string]any{inner, hidden("allocnet-cni"), hidden("allocnet")} {
		text, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "x", "plugins": []any{plugin}})
		require.NoError(t, err)
		b := a
		b.Conflists = []json.RawMessage{text}
		_, err = d.client().Setup(t.Context(), b)
		require.ErrorContains(t, err, "was called as a plugin of allocnetd", i)
		require.Empty(t, h.phases(), i)
	}
	inner["type"] = "allocnet"
	text, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "x", "plugins": []any{inner}})
	require.NoError(t, err)
	a.Conflists = []json.RawMessage{text}
	_, err = d.client().Setup(t.Context(), a)
	require.ErrorIs(t, err, configurator.ErrInvalidAllocation)
	require.ErrorContains(t, err, "would call itself")

	inner["type"] = "allocnet-cni"
	d.term()
	_, err = d.plugin("ADD", a.ID, a.Netns, d.pluginConfig(map[string]any{"plugins": []any{inner}}))
	var coded *types.Error
	require.ErrorAs(t, err, &coded)
	require.ErrorContains(t, err, "allocnet-cni was called as a plugin of allocnet-cni")
	require.Empty(t, h.phases())
}
