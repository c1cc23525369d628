package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// previousResults are forms of prevResult that the reference plugins accept or
// refuse.
var previousResults = []string{
	`null`, `{}`, `{"ips":[{"address":"10.9.0.2/24"}]}`, `{"ips":[]}`, `{"dns":{"nameservers":["10.9.0.1"]}}`,
	`{"cniVersion":"VERSION","ips":[{"address":"10.9.0.2/24"}]}`, `{"cniVersion":"9.9.9"}`, `{"cniVersion":"0.2.0"}`, `{"ips":[{"address":"x"}]}`,
}

// calledAlone are configurations of plugins that are called without a chain.
var calledAlone = map[string]string{
	"bridge": ipam, "ptp": ipam, "host-local": ipam,
	"static":    `"ipam":{"type":"static","addresses":[{"address":"10.9.0.2/24"}]}`,
	"portmap":   `"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`,
	"bandwidth": `"ingressRate":1000000,"ingressBurst":1000000`,
	"tuning":    `"mtu":1400`,
}

// TestPreviousLikeTheReference: ADD and CHECK accept the same forms of
// prevResult as the reference plugins. DEL accepts all.
func TestPreviousLikeTheReference(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	for name := range builtin.DropIns {
		if name == ownPlugin {
			continue
		}
		t.Run(name, func(t *testing.T) {
			netns := namespace(t, "previous-"+name)
			for _, version := range []string{"0.4.0", "1.0.0"} {
				for i, previous := range previousResults {
					if !skip.Has(t, i, 6) {
						continue
					}
					previous = strings.ReplaceAll(previous, "VERSION", version)
					comparePrevious(t, name, netns, version, previous)
				}
			}
		})
	}
}

func comparePrevious(t *testing.T, name, netns, version, previous string) {
	t.Helper()
	own := calledAlone[name]
	if own == "" {
		own = `"args":{}`
	}
	text := fmt.Sprintf(`{"cniVersion":%q,"name":"n","type":%q,"bridge":"br9","prevResult":%s,%s}`, version, name, previous, own)
	commands := []string{"CHECK", "ADD", "DEL"}
	switch name {
	case "bridge", "ptp": // these come first in a chain
		commands = []string{"CHECK", "DEL"}
	case "flannel": // so does this one, and the reference plugin checks nothing
		commands = []string{"DEL"}
	}
	for _, command := range commands {
		var codes [2]uint
		for i, dir := range []string{reference, links} {
			got := call(t, dir, name, text, changed(command, dir, netns, nil)...)
			if got.exit != 0 {
				var failure struct{ Code uint }
				require.NoError(t, json.Unmarshal([]byte(got.stdout), &failure), got.stdout)
				codes[i] = failure.Code
			}
			if command == "ADD" { // so that both start in the same state
				require.Zero(t, call(t, dir, name, strings.Replace(text, previous, "null", 1), changed("DEL", dir, netns, nil)...).exit)
			}
		}
		at := fmt.Sprintf("%s %s with %s in version %s", command, name, previous, version)
		if command == "DEL" {
			require.Zero(t, codes[1], at)
			continue
		}
		require.Equal(t, codes[0], codes[1], at)
	}
}
