package conflist

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name, in, want string
	}{
		{
			"the version chosen is the only one left",
			`{"name":"n","cniVersion":"0.4.0","cniVersions":["1.0.0","9.0.0","0.3.1"],"plugins":[{"type":"a"}]}`,
			`{"cniVersion":"1.0.0","loadOnlyInlinedPlugins":true,"name":"n","plugins":[{"type":"a"}]}`,
		}, {
			"cniVersions saves a cniVersion that is too new",
			`{"name":"n","cniVersion":"9.0.0","cniVersions":["1.1.0"],"plugins":[{"type":"a"}]}`,
			`{"cniVersion":"1.1.0","loadOnlyInlinedPlugins":true,"name":"n","plugins":[{"type":"a"}]}`,
		}, {
			"a version that does not exist is not chosen",
			`{"name":"n","cniVersions":["0.9.9","0.4.0"],"plugins":[{"type":"a"}]}`,
			`{"cniVersion":"0.4.0","loadOnlyInlinedPlugins":true,"name":"n","plugins":[{"type":"a"}]}`,
		}, {
			"no version is the oldest",
			`{"name":"n","plugins":[{"type":"a"}]}`,
			`{"cniVersion":"0.1.0","loadOnlyInlinedPlugins":true,"name":"n","plugins":[{"type":"a"}]}`,
		}, {
			"unknown keys and exact numbers survive",
			`{"name":"n","cniVersion":"1.0.0","x-owner":{"id":12345678901234567890},"disableCheck":"true",
			  "plugins":[{"type":"a","big":12345678901234567890,"f":1.50}]}`,
			`{"cniVersion":"1.0.0","disableCheck":"true","loadOnlyInlinedPlugins":true,"name":"n",` +
				`"plugins":[{"type":"a","big":12345678901234567890,"f":1.50}],"x-owner":{"id":12345678901234567890}}`,
		}, {
			"a boolean may be a string",
			`{"name":"n","cniVersion":"1.0.0","loadOnlyInlinedPlugins":"False","plugins":[{"type":"a"}]}`,
			`{"cniVersion":"1.0.0","loadOnlyInlinedPlugins":true,"name":"n","plugins":[{"type":"a"}]}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, err := Parse([]byte(tt.in))
			require.NoError(t, err)
			require.Equal(t, tt.want, string(n.Bytes))
			require.Equal(t, "n", n.Name)
			require.Empty(t, n.File)
			requireSelfContained(t, n)
		})
	}
}

// requireSelfContained checks that the network can be parsed from its bytes
// alone.
func requireSelfContained(t *testing.T, n *Network) {
	t.Helper()
	again, err := Parse(n.Bytes)
	require.NoError(t, err)
	require.Equal(t, string(n.Bytes), string(again.Bytes))
	require.Equal(t, n.List, again.List)
	require.Equal(t, n.Name, again.Name)
	require.Equal(t, n.Name, n.List.Name)
	require.True(t, n.List.LoadOnlyInlinedPlugins)
	require.NotEmpty(t, n.List.Plugins)
}

func TestParseRejects(t *testing.T) {
	const plugins = `"plugins":[{"type":"a"}]`
	tests := []struct {
		name, in, want string
	}{
		{"empty", "", "empty: write"},
		{"blank", " \n\t", "empty: write"},
		{"truncated", "{\n \"name\": \"n\",\n", "invalid JSON at 2:14 (line:column): unexpected end of JSON input"},
		{"syntax", "{\n  \"name\": \"n\",\n  \"x\": }\n", "invalid JSON at 3:8 (line:column): invalid character '}'"},
		{"syntax in the first byte", "x", "invalid JSON at 1:1 "},
		{"two values", `{"name":"n"} {}`, "invalid JSON at 1:14 "},
		{"list", `[]`, "not a JSON object"},
		{"null", `null`, "not a JSON object"},
		{"no name", `{` + plugins + `}`, `no network name: set "name"`},
		{"name is a number", `{"name":1,` + plugins + `}`, `"name" is not a string`},
		{"name is null", `{"name":null,` + plugins + `}`, `"name" is not a string`},
		{"name climbs", `{"name":"..",` + plugins + `}`, `network name "..": `},
		{"name is a path", `{"name":"a/b",` + plugins + `}`, `network name "a/b": `},
		{"no plugins", `{"name":"n"}`, `no plugins: list at least one under "plugins"`},
		{"inlined only, no plugins", `{"name":"n","loadOnlyInlinedPlugins":true}`, `no "plugins", and loadOnlyInlinedPlugins is true`},
		{"single plugin", `{"name":"n","type":"bridge"}`, "rename the file so that it ends in .conf"},
		{"empty plugins", `{"name":"n","plugins":[]}`, `"plugins" is an empty list`},
		{"null plugins", `{"name":"n","plugins":null}`, `"plugins" is not a list`},
		{"plugins is an object", `{"name":"n","plugins":{}}`, `"plugins" is not a list`},
		{"plugin without type", `{"name":"n","plugins":[{"type":"a"},{}]}`, `plugin 2 of 2: no "type"`},
		{"plugin with empty type", `{"name":"n","plugins":[{"type":""}]}`, `plugin 1 of 1: no "type"`},
		{"plugin is null", `{"name":"n","plugins":[null]}`, "plugin 1 of 1: not a JSON object"},
		{"plugin type is a number", `{"name":"n","plugins":[{"type":1}]}`, "plugin 1 of 1: error parsing"},
		{"plugin type is a path", `{"name":"n","plugins":[{"type":"../sh"}]}`, `type "../sh" is not a file name`},
		{"plugin type holds a colon", `{"name":"n","plugins":[{"type":"a:b"}]}`, `type "a:b" is not a file name`},
		{"IPAM type is a path", `{"name":"n","plugins":[{"type":"a","ipam":{"type":"../../evil"}}]}`, `plugin 1 of 1: ipam: type "../../evil" is not a file name`},
		{"IPAM type climbs", `{"name":"n","plugins":[{"type":"a","ipam":{"type":".."}}]}`, `ipam: type ".." is not a file name`},
		{"plugin type climbs", `{"name":"n","plugins":[{"type":".."}]}`, `type ".." is not a file name`},
		{"capabilities", `{"name":"n","plugins":[{"type":"a","capabilities":{"x":1}}]}`, "plugin 1 of 1: error parsing"},
		{"too new", `{"name":"n","cniVersion":"9.0.0",` + plugins + `}`, "cniVersion 9.0.0 is not supported: use one of 0.1.0, "},
		{"all too new", `{"name":"n","cniVersion":"9.0.0","cniVersions":["8.0.0"],` + plugins + `}`, "cniVersion 8.0.0, 9.0.0 is not supported"},
		{"no version at all", `{"name":"n","cniVersion":"v1",` + plugins + `}`, "cniVersion v1 is not supported"},
		{"cniVersion is a number", `{"name":"n","cniVersion":1,` + plugins + `}`, `"cniVersion" is not a string`},
		{"cniVersions is a string", `{"name":"n","cniVersions":"1.0.0",` + plugins + `}`, `"cniVersions" is not a list`},
		{"loadOnlyInlinedPlugins", `{"name":"n","loadOnlyInlinedPlugins":1,` + plugins + `}`, `"loadOnlyInlinedPlugins" is neither`},
		{"disableCheck", `{"name":"n","disableCheck":1,` + plugins + `}`, `parse network "n": `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.in))
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestParseKeepsCNIError(t *testing.T) {
	_, err := Parse([]byte(`{"name":"a b","plugins":[{"type":"a"}]}`))
	var cni *types.Error
	require.ErrorAs(t, err, &cni)
	require.Equal(t, types.ErrInvalidNetworkConfig, cni.Code)
}

func TestParsePlugin(t *testing.T) {
	d, err := parsePlugin([]byte(`{ "name": "n", "cniVersion": "1.0.0", "type": "bridge", "mtu": 9000 }` + "\n"))
	require.NoError(t, err)
	n, err := d.network()
	require.NoError(t, err)
	require.Equal(t, `{"cniVersion":"1.0.0","loadOnlyInlinedPlugins":true,"name":"n","plugins":`+
		`[{"name":"n","cniVersion":"1.0.0","type":"bridge","mtu":9000}]}`, string(n.Bytes))
	requireSelfContained(t, n)
}

func TestParsePluginRejects(t *testing.T) {
	tests := []struct {
		name, in, want string
	}{
		{"a list", `{"name":"n","plugins":[{"type":"a"}]}`, "rename the file so that it ends in .conflist"},
		{"no type", `{"name":"n"}`, `no "type": name the plugin's program`},
		{"no name", `{"type":"a"}`, `no network name: set "name"`},
		{"bad name", `{"type":"a","name":"../x"}`, `network name "../x": `},
		{"too new", `{"type":"a","name":"n","cniVersion":"9.0.0"}`, "cniVersion 9.0.0 is not supported"},
		{"empty", ``, "empty: write"},
		{"syntax", `{"type":}`, "invalid JSON at 1:9 "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parsePlugin([]byte(tt.in))
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestNetworkAccessors(t *testing.T) {
	n, err := Parse([]byte(`{"name":"n","cniVersion":"1.0.0","plugins":[
		{"type":"loopback"},
		{"type":"bridge","ipam":{"type":"host-local"},"capabilities":{"mac":true,"ips":true,"off":false}},
		{"type":"portmap","capabilities":{"portMappings":true,"ips":true}}]}`))
	require.NoError(t, err)
	require.Equal(t, []string{"loopback", "bridge", "portmap"}, n.PluginTypes())
	require.Equal(t, []string{"host-local"}, n.IPAMTypes())
	require.Equal(t, []string{"ips", "mac", "portMappings"}, n.Capabilities())
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"a","x":[1e3,"<&>\u2028"]}]}`,
		`{"name":"n","cniVersions":["1.1.0"],"loadOnlyInlinedPlugins":"true","plugins":[{"Type":"a","type":"b"}]}`,
		`{"name":"n","name":"m","type":"bridge","plugins":[{"type":"a","type":"b"}]}`,
		"{\"name\":\"n\",\"\xff\":\"\xff\",\"type\":\"a\"}",
		`{"name":"..","type":"/"}`, `[]`, `null`, ``, "{\n\"name\":",
		strings.Repeat(`{"a":`, 50) + `1` + strings.Repeat(`}`, 50),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, err := Parse(data); err == nil {
			require.True(t, json.Valid(n.Bytes))
			requireSelfContained(t, n)
		}
		d, err := parsePlugin(data)
		if err != nil {
			return
		}
		if n, err := d.network(); err == nil {
			require.Len(t, n.List.Plugins, 1)
			requireSelfContained(t, n)
		}
	})
}

func TestOpensPublished(t *testing.T) {
	for text, want := range map[string]string{
		`{"type":"bridge","bridge":"br9"},{"type":"firewall","iptablesAdminChainName":"ALLOCNET-ADMIN"}`: "br9 true",
		`{"type":"bridge","bridge":"br9"},{"type":"firewall","iptablesAdminChainName":"CNI-ADMIN"}`:      "br9 false",
		`{"type":"bridge","bridge":"br9"},{"type":"firewall"}`:                                           "br9 false",
		`{"type":"ptp"},{"type":"firewall","iptablesAdminChainName":"ALLOCNET-ADMIN"}`:                   " true",
		`{"type":"bridge","bridge":7},{"type":"firewall","iptablesAdminChainName":"ALLOCNET-ADMIN"}`:     " false",
	} {
		n, err := Parse([]byte(`{"cniVersion":"1.0.0","name":"n","plugins":[` + text + `]}`))
		require.NoError(t, err)
		bridge, ok := n.OpensPublished()
		require.Equal(t, want, fmt.Sprint(bridge, " ", ok), text)
	}
	embedded, err := Embedded(EmbeddedOptions{StateDir: "/run/x", ForBinaries: true})
	require.NoError(t, err)
	bridge, ok := embedded.OpensPublished()
	require.Empty(t, bridge)
	require.True(t, ok)
}
