package builtin_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// refused are configurations of each plugin with which an ADD that is the first of its chain
// fails, and a part of the error.
var refused = []struct {
	conf object
	want string
}{
	{object{"type": "bandwidth", "runtimeConfig": object{"bandwidth": object{"ingressRate": 8}}}, "a rate needs a burst"},
	{object{"type": "bandwidth", "ingressRate": 8000, "ingressBurst": 8000}, "no prevResult"},
	{object{"type": "bridge", "bridge": "a/b"}, `name "a/b" of the bridge`},
	{object{"type": "bridge", "bridge": "br%d"}, "interface name contains %"},
	{object{"type": "bridge", "bridge": "lo", "ipam": hostLocal("10.9.0.0/24")}, "not a bridge"},
	{object{"type": "bridge", "bridge": "br0", "vlan": 5000}, "invalid VLAN ID"},
	{object{"type": "bridge", "bridge": "br0", "ipam": object{"type": "host-local", "subnet": "x"}}, `plugin "host-local"`},
	{object{"type": "firewall"}, "missing prevResult"},
	{object{"type": "flannel", "subnetFile": "/does/not/exist"}, "flannel has no subnet"},
	{object{"type": "host-local", "ipam": object{"type": "host-local", "subnet": "10.9.0.0/31"}}, "too small"},
	{object{"type": "loopback", "prevResult": object{"ips": 7}}, "prevResult"},
	{object{"type": "policy"}, "missing prevResult"},
	{object{"type": "policy", "policy": object{"presets": []string{"no"}}}, "check policy: presets[0]"},
	{object{"type": "policy", "policy": nil}, "check policy: it is null"},
	{object{"type": "portmap", "runtimeConfig": object{"portMappings": []object{{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}}}}, "missing prevResult"},
	{object{"type": "portmap", "backend": "x"}, "unrecognized backend"},
	{object{"type": "ptp"}, "an IPAM plugin is needed"},
	{object{"type": "routes", "table": 254}, "table 254"},
	{object{"type": "routes", "table": 100}, "missing prevResult"},
	{object{"type": "static", "ipam": object{"addresses": []object{{"address": "x"}}}}, "address"},
	{object{"type": "tuning", "mtu": 1400}, "no prevResult"},
}

// TestErrorsNameThePluginOnce: of the layers that an error passes, each adds its own word, and none
// repeats that of another. A runtime names the plugin itself, so the error of a binary does not.
func TestErrorsNameThePluginOnce(t *testing.T) {
	_, native := runners(t)
	tested := map[string]bool{}
	for i, test := range refused {
		test.conf["name"], test.conf["cniVersion"] = "net", "1.0.0"
		text, err := json.Marshal(test.conf)
		require.NoError(t, err)
		plugin := test.conf["type"].(string)
		tested[plugin] = true
		a := sandboxed(t, fmt.Sprintf("refused-%d", i))
		if plugin == "loopback" {
			a.ifName = "lo"
		}
		environ := []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + a.id, "CNI_NETNS=" + a.netns, "CNI_IFNAME=" + a.ifName, "CNI_PATH=" + pluginDir}
		command, args := sdk.CmdArgsOf(environ, text)
		_, err = native.exec.Run(t.Context(), plugin, command, args)
		require.ErrorContains(t, err, test.want, "%s", text)
		first, rest, _ := strings.Cut(err.Error(), ": ")
		require.Equal(t, fmt.Sprintf("plugin %q", plugin), first, err)
		requireNoStutter(t, plugin, rest)

		_, err = native.exec.Answer(t.Context(), plugin, text, environ)
		require.EqualError(t, err, rest)
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(builtin.Plugins)), slices.Collect(maps.Keys(tested)))
}

// requireNoStutter requires that no part of an error names the plugin or repeats another part.
func requireNoStutter(t *testing.T, plugin, text string) {
	t.Helper()
	seen := map[string]bool{}
	for _, part := range strings.Split(text, ": ") {
		part = strings.ReplaceAll(strings.TrimPrefix(part, "plugin "), `"`, "")
		require.NotEqual(t, plugin, part, text)
		require.False(t, seen[part], "%q is repeated in %q", part, text)
		seen[part] = true
	}
}
