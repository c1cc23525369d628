package main

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// served are changes with which an ADD may be served: the key is ignored, or looked
// at when there is a call.
var served = []string{
	`{"novel":1}`, `{"args":7}`, `{"dataDir":"/dev/null/x"}`, `{"dataDir":"/proc/self/x"}`,
	`{"args":7,"dns":7,"runtimeConfig":{"ips":7}}`, `{"dns":7}`, `{"ipam":{}}`,
}

// byHost are changes of which the host decides, and the plugins that it has.
var byHost = []string{`{"vlan":5}`, `{"vlanTrunk":[{"id":5}]}`, `{"macspoofchk":true}`}

// TestStatusOfTheRefused: what no ADD can be served with, STATUS answers with the
// code that says so.
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
			stdin := dataDir.ReplaceAllLiteralString(string(text), t.TempDir())
			got := call(t, links, name, stdin, changed("STATUS", links, "", nil)...)
			if slices.Contains(served, string(at)) || name == "firewall" && change["backend"] == "x" { // which is none
				require.Zero(t, got.exit, "%s with %s: %s", name, at, got.stdout)
				continue
			}
			var failure struct{ Code uint }
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &failure), "%s with %s", name, at)
			require.EqualValues(t, 50, failure.Code, "%s with %s: %s", name, at, got.stdout)
		}
	}
}

// TestNegativeMTU is none, as for the reference plugins.
func TestNegativeMTU(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	for _, name := range []string{"bridge", "ptp"} {
		l := &lifeOf{t: t, netns: namespace(t, "mtu-"+name), data: t.TempDir(), at: "mtu -1"}
		conf := merged(good[name], object{"mtu": -1})
		result := l.do("ADD", name, conf, nil)
		l.do("CHECK", name, conf, result)
		l.do("DEL", name, conf, result)
	}
	removeLinks(t)
}
