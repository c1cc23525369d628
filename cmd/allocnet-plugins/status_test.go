package main

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// served are changes that STATUS accepts: the key is ignored, or checked only
// during a call.
var served = []string{
	`{"novel":1}`, `{"args":7}`, `{"dataDir":"/dev/null/x"}`, `{"dataDir":"/proc/self/x"}`,
	`{"args":7,"dns":7,"runtimeConfig":{"ips":7}}`, `{"dns":7}`, `{"ipam":{}}`,
}

// byHost are changes whose support depends on the host, and their plugins.
var byHost = []string{`{"vlan":5}`, `{"vlanTrunk":[{"id":5}]}`, `{"macspoofchk":true}`}

// TestStatusOfTheRefused: if no ADD can succeed with a configuration, STATUS
// returns the corresponding code.
func TestStatusOfTheRefused(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	for name, conf := range good {
		for _, change := range refused[name] {
			at, err := json.Marshal(change)
			require.NoError(t, err)
			if slices.Contains(byHost, string(at)) {
				continue
			}
			conf := merged(merged(conf, change), object{"cniVersion": "1.1.0", "name": "net", "type": name})
			text, err := json.Marshal(conf)
			require.NoError(t, err)
			stdin := dataDir.ReplaceAllLiteralString(string(text), dataWithSubnets(t, subnetEnv))
			got := call(t, links, name, stdin, changed("STATUS", links, "", nil)...)
			if slices.Contains(served, string(at)) || name == "firewall" && change["backend"] == "x" { // an unknown backend counts as none
				require.Zero(t, got.exit, "%s with %s: %s", name, at, got.stdout)
				continue
			}
			var failure struct{ Code uint }
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &failure), "%s with %s", name, at)
			require.EqualValues(t, 50, failure.Code, "%s with %s: %s", name, at, got.stdout)
		}
	}
}

// TestNegativeMTU: a negative MTU counts as none, as for the reference plugins.
func TestNegativeMTU(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	removeLinks(t) // of other tests, in the same subnet
	for _, name := range []string{"bridge", "ptp"} {
		l := &lifeOf{t: t, netns: namespace(t, "mtu-"+name), data: t.TempDir(), at: "mtu -1"}
		conf := merged(good[name], object{"mtu": -1})
		result := l.do("ADD", name, conf, nil)
		l.do("CHECK", name, conf, result)
		l.do("DEL", name, conf, result)
	}
	removeLinks(t)
}
