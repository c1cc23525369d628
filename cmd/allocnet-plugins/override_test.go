package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// TestNetnsOverride: with CNI_NETNS_OVERRIDE, a plugin works in the namespace
// of its process, as the reference plugins do.
func TestNetnsOverride(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	want := map[string]string{}
	names := []string{}
	for i, name := range slices.Sorted(maps.Keys(good)) {
		if skip.Has(t, i, 3) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		want[name] = overridden(t, reference, name)
		removeLinks(t)
	}
	lo, err := netlink.LinkByName("lo") // the DEL of the reference plugin brings it down
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	before, err := hostsnap.Take(hostsnap.Options{})
	require.NoError(t, err)
	for _, name := range names {
		t.Run(name, func(t *testing.T) { require.JSONEq(t, want[name], overridden(t, links, name)) })
		removeLinks(t)
	}
	after, err := hostsnap.Take(hostsnap.Options{Persistent: true})
	require.NoError(t, err)
	require.Empty(t, hostsnap.Diff(before, after))
}

// overridden runs ADD, CHECK and DEL in the namespace of the process, after the
// bridge's ADD if the plugin needs one. It returns the results without random
// parts.
func overridden(t *testing.T, dir, name string) string {
	t.Helper()
	conf, data := good[name], dataWithSubnets(t, strings.ReplaceAll(subnetEnv, "10.9.0.", "10.8.0."))
	version := "1.0.0"
	if name == "flannel" { // the newest that the reference plugin supports
		version = "0.4.0"
	}
	run := func(command, name string, conf object, previous any) string {
		conf = merged(conf, object{"cniVersion": version, "name": "net", "type": name, "prevResult": previous})
		text, err := json.Marshal(conf)
		require.NoError(t, err)
		// No bridge of another test has this network.
		stdin := strings.ReplaceAll(dataDir.ReplaceAllLiteralString(string(text), data), "10.9.0.", "10.8.0.")
		got := call(t, dir, name, stdin, changed(command, dir, "/proc/self/ns/net", []string{"CNI_NETNS_OVERRIDE=1"})...)
		require.Zero(t, got.exit, "%s: %s %s: %+v", dir, command, name, got)
		return got.stdout
	}
	add := func(name string, conf object, previous any) (any, string) {
		out := run("ADD", name, conf, previous)
		var result any
		require.NoError(t, json.Unmarshal([]byte(out), &result))
		return result, out
	}
	var made any
	if chained(name) {
		made, _ = add("bridge", good["bridge"], nil)
	}
	result, out := add(name, conf, made)
	run("CHECK", name, conf, result)
	run("DEL", name, conf, result)
	run("DEL", name, conf, result)
	if made != nil {
		run("DEL", "bridge", good["bridge"], made)
	}
	return random.ReplaceAllString(out, "RANDOM")
}
