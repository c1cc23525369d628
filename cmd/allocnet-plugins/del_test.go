package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// merged returns a configuration with some keys replaced. Objects are merged
// key by key.
func merged(conf, changes object) object {
	all := maps.Clone(conf)
	for key, value := range changes {
		own, isObject := all[key].(object)
		if with, ok := value.(object); ok && isObject && len(with) > 0 {
			value = merged(own, with)
		}
		all[key] = value
	}
	return all
}

var dataDir = regexp.MustCompile("DATA")

// good are valid configurations. DATA is replaced by a directory.
var good = map[string]object{
	"bridge": {"bridge": "br9", "isGateway": true, "ipMasq": true, "ipam": object{"type": "host-local", "dataDir": "DATA", "subnet": "10.9.0.0/24"}},
	"ptp":    {"ipMasq": true, "ipam": object{"type": "host-local", "dataDir": "DATA", "subnet": "10.9.0.0/24"}},
	"flannel": {"subnetFile": "DATA/subnet.env", "dataDir": "DATA/flannel", "delegate": object{"bridge": "br9"},
		"ipam": object{"dataDir": "DATA"}},
	"static":     {"ipam": object{"type": "static", "addresses": []any{object{"address": "10.9.0.2/24"}}}},
	"portmap":    {"runtimeConfig": object{"portMappings": []any{object{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}},
	"firewall":   {},
	"bandwidth":  {"ingressRate": 1000000, "ingressBurst": 1000000, "egressRate": 1000000, "egressBurst": 1000000},
	"tuning":     {"mtu": 1400, "dataDir": "DATA/tuning"},
	"loopback":   {},
	"host-local": {"ipam": object{"type": "host-local", "dataDir": "DATA", "subnet": "10.9.0.0/24"}},
}

// refused are changes with which ADD refuses the configurations, and which no
// later call should depend on.
var refused = map[string][]object{
	"bridge": {
		{"hairpinMode": true, "promiscMode": true},
		{"disableContainerInterface": true},
		{"vlan": 5000}, {"vlan": 5}, {"vlanTrunk": []any{object{"id": 5}}}, {"macspoofchk": true},
		{"mtu": "x"}, {"bridge": "a/b"}, {"ipMasqBackend": "x"}, {"ipMasqBackend": 7}, {"novel": 1},
		{"ipam": object{"routes": []any{object{}}}},
		{"ipam": object{"routes": []any{nil}}},
		{"ipam": object{"routes": []any{object{"dst": "x"}}}},
		{"ipam": object{"aFirst": 1, "dataDir": "DATA", "addresses": 7, "routes": 7}},
		{"ipam": object{"subnet": "10.9.0.0/33"}},
		{"ipam": object{"subnet": "10.9.0.0/31"}},
		{"ipam": object{"subnet": nil}},
		{"ipam": object{"ranges": []any{[]any{}}}},
		{"ipam": object{"gateway": "x"}},
		{"runtimeConfig": object{"ips": 7}, "args": 7, "dns": 7},
	},
	"ptp": {{"mtu": "x"}, {"ipMasqBackend": "x"}, {"novel": 1}, {"runtimeConfig": object{"ipRanges": 7}}},
	"flannel": {
		{"delegate": 7}, {"delegate": object{"type": 7}}, {"delegate": object{"type": "flannel"}}, {"delegate": object{"name": "x"}},
		{"delegate": object{"ipam": object{}}}, {"delegate": object{"vlan": 5000}}, {"delegate": object{"mtu": "x"}},
		{"ipam": object{"routes": []any{object{"dst": "x"}}}}, {"ipam": object{"type": "a/b"}},
		{"subnetFile": 7}, {"subnetFile": "DATA/none"}, {"subnetFile": "relative"},
		{"runtimeConfig": 7}, {"novel": 1},
	},
	"static": {
		{"ipam": nil}, {"ipam": 7}, {"ipam": object{}},
		{"ipam": object{"addresses": []any{object{"address": "10.9.0.2/24", "gateway": "x"}}}},
		{"ipam": object{"addresses": []any{object{"address": "x"}}}},
	},
	"host-local": {{"ipam": object{"routes": []any{object{"dst": "0.0.0.0/0", "gw": "x"}}}}, {"args": 7}},
	"portmap": {
		{"runtimeConfig": object{"portMappings": []any{object{"hostPort": "x"}}}},
		{"runtimeConfig": object{"portMappings": []any{object{"hostPort": 0}}}},
		{"runtimeConfig": 7}, {"backend": "x"}, {"backend": 7}, {"markMasqBit": 99},
	},
	"firewall":  {{"ingressPolicy": "x"}, {"backend": "x"}, {"backend": 7}, {"iptablesAdminChainName": "a b"}},
	"bandwidth": {{"ingressBurst": 0}, {"ingressRate": "x"}, {"runtimeConfig": object{"bandwidth": 7}}},
	"tuning": {
		{"dataDir": "/dev/null/x"}, {"dataDir": "/proc/self/x"}, {"mac": "x"}, {"mtu": -1}, {"mtu": "x"}, {"sysctl": 7},
		{"sysctl": object{"x": 7}}, {"args": object{"cni": 7}},
	},
	"loopback": {{"novel": 1}, {"dns": 7}},
}

// unreadable are values of prevResult that do not tell what ADD has made.
var unreadable = []any{
	object{}, object{"cniVersion": "1.0.0", "dns": object{}}, object{"cniVersion": "1.0.0", "interfaces": []any{object{"name": "br9"}}},
	7, "x", []any{}, object{"cniVersion": "9.9.9"}, object{"cniVersion": 7}, object{"cniVersion": "1.0.0", "ips": []any{object{"address": "x"}}},
	object{"cniVersion": "1.0.0", "interfaces": []any{nil}, "ips": []any{nil}},
}

// unplaced are changes after which a configuration does not say where ADD has left something.
var unplaced = map[string][]object{
	"bridge":  {{"ipam": object{"dataDir": 7}}, {"ipam": 7}, {"ipam": object{}}, {"ipam": nil}, {"ipam": object{"type": 7}}},
	"ptp":     {{"ipam": object{"dataDir": 7}}, {"ipam": nil}},
	"flannel": {{"dataDir": 7}, {"dataDir": "relative"}},
	"tuning":  {{"dataDir": 7}},
}

// TestDelDoesNotKnowThePlace: DEL fails, each time, as long as the configuration does not say where ADD has left
// something, and succeeds if the attachment was never made. With the configuration of ADD, it then removes the rest.
func TestDelDoesNotKnowThePlace(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	removeLinks(t) // of other tests, in the same subnet
	for name, changes := range unplaced {
		t.Run(name, func(t *testing.T) {
			netns := namespace(t, name)
			for _, change := range changes {
				at, err := json.Marshal(change)
				require.NoError(t, err)
				l := &lifeOf{t: t, netns: netns, data: dataWithSubnets(t, subnetEnv), at: string(at)}
				bad := merged(good[name], change)
				l.do("DEL", name, bad, nil)
				chained := chained(name)
				var previous any
				if chained {
					previous = l.do("ADD", "bridge", good["bridge"], nil)
				}
				result := l.do("ADD", name, good[name], previous)
				for range 2 {
					got := l.call("DEL", name, bad, result)
					require.Equal(t, 1, got.exit, "%s: %+v", at, got)
					require.Contains(t, got.stdout, "is not known", string(at))
				}
				l.do("DEL", name, good[name], result)
				require.Empty(t, leasesOf(t, l.data, chained), l.at)
				require.Empty(t, backups(t, l.data, nil), l.at)
				if chained {
					l.do("DEL", "bridge", good["bridge"], previous)
				}
				l.requireNoElements()
			}
		})
	}
	removeLinks(t)
}

// TestDelDoesNotKnowTheBackend: DEL removes the rules of all backends.
func TestDelDoesNotKnowTheBackend(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables", "nft")
	removeLinks(t) // of other tests, in the same subnet
	netns := namespace(t, "backends")
	for name, backends := range map[string][]string{"portmap": {"iptables", "nftables"}, "firewall": {"iptables"}} {
		for _, backend := range backends {
			l := &lifeOf{t: t, netns: netns, data: dataWithSubnets(t, subnetEnv), at: name + " " + backend}
			previous := l.do("ADD", "bridge", good["bridge"], nil)
			result := l.do("ADD", name, merged(good[name], object{"backend": backend}), previous)
			l.do("DEL", name, merged(good[name], object{"backend": 7}), result)
			l.do("DEL", "bridge", good["bridge"], previous)
			after, err := hostsnap.Take(hostsnap.Options{})
			require.NoError(t, err)
			for line := range strings.Lines(after.String()) {
				if !strings.HasPrefix(line, "file ") {
					require.NotRegexp(t, `\bc1\b|10\.9\.0\.2\b`, line, l.at)
				}
			}
		}
	}
	removeLinks(t)
}

// TestDelOfTheReferenceInAnotherNamespace: the path of the namespace, also that in the result, leads to another
// container by now, which has an interface of the same name.
func TestDelOfTheReferenceInAnotherNamespace(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	removeLinks(t)
	past, present := namespace(t, "past"), namespace(t, "present")
	for _, name := range []string{"bridge", "ptp"} {
		data := t.TempDir()
		text := func(previous string) string {
			conf, err := json.Marshal(merged(good[name], object{"cniVersion": "1.0.0", "name": "net", "type": name, "ipMasq": false}))
			require.NoError(t, err)
			conf = dataDir.ReplaceAllLiteral(conf, []byte(data))
			return strings.Replace(string(conf), "{", "{"+previous, 1)
		}
		made := call(t, reference, name, text(""), changed("ADD", reference, past, nil)...)
		require.Zero(t, made.exit, made.stdout)
		other := []string{"CNI_CONTAINERID=c2"}
		result := call(t, links, name, text(""), changed("ADD", links, present, other)...)
		require.Zero(t, result.exit, result.stdout)
		moved := `"prevResult":` + strings.ReplaceAll(made.stdout, past, present) + ","
		got := call(t, links, name, text(moved), changed("DEL", links, present, nil)...)
		require.Zero(t, got.exit, got.stdout)
		got = call(t, links, name, text(`"prevResult":`+result.stdout+","), changed("CHECK", links, present, other)...)
		require.Zero(t, got.exit, "%s: the other container has its interface: %s", name, got.stdout)
		got = call(t, links, name, text(`"prevResult":`+result.stdout+","), changed("DEL", links, present, other)...)
		require.Zero(t, got.exit, got.stdout)
		require.Empty(t, leases(t, data))
	}
	removeLinks(t)
}

// TestDelOfTheRefused: DEL succeeds and removes what ADD made, however the
// configuration was changed since, and also if ADD refused it.
func TestDelOfTheRefused(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	removeLinks(t) // of other tests, in the same subnet
	before, err := hostsnap.Take(hostsnap.Options{})
	require.NoError(t, err)
	for name, conf := range good {
		changes := refused[name]
		for _, previous := range unreadable {
			changes = append(changes, object{"prevResult": previous})
		}
		t.Run(name, func(t *testing.T) {
			netns := namespace(t, name)
			for i, change := range changes {
				if !skip.Has(t, i, 4) {
					continue
				}
				at, err := json.Marshal(change)
				require.NoError(t, err)
				l := &lifeOf{t: t, netns: netns, data: dataWithSubnets(t, subnetEnv), at: string(at)}
				l.addAndDel(name, conf, change)
			}
		})
	}
	removeLinks(t)
	after, err := hostsnap.Take(hostsnap.Options{Persistent: true})
	require.NoError(t, err)
	require.Empty(t, hostsnap.Diff(before, after))
}

// dataWithSubnets returns a new directory with a file of flanneld.
func dataWithSubnets(t *testing.T, env string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "subnet.env"), []byte(env), 0o644))
	return dir
}

// lifeOf is the life of one attachment.
type lifeOf struct {
	t               *testing.T
	netns, data, at string
}

// addAndDel runs ADD with one configuration and DEL with a changed one. Without
// an ADD, DEL runs first.
func (l *lifeOf) addAndDel(name string, conf, change object) {
	bad := merged(conf, change)
	l.do("DEL", name, bad, nil)
	chained := chained(name)
	var previous any
	if chained {
		previous = l.do("ADD", "bridge", good["bridge"], nil)
	}
	result := l.do("ADD", name, conf, previous)
	l.do("DEL", name, bad, result)
	require.Empty(l.t, leasesOf(l.t, l.data, chained), l.at)
	require.Empty(l.t, backups(l.t, l.data, change), l.at)
	if chained {
		l.do("DEL", "bridge", good["bridge"], previous)
	}
	l.requireNoElements()
}

// requireNoElements fails the test if an element of the attachment is left. Another ADD would hide it.
func (l *lifeOf) requireNoElements() {
	l.t.Helper()
	host, err := hostsnap.Take(hostsnap.Options{})
	require.NoError(l.t, err)
	for line := range strings.Lines(host.String()) {
		require.NotContains(l.t, line, names.Owner{Network: "net", ID: "c1", IfName: "eth0"}.String(), l.at)
	}
}

// chained reports whether a plugin follows one that creates an interface.
func chained(name string) bool {
	return slices.Contains([]string{"portmap", "firewall", "bandwidth", "tuning"}, name)
}

// do runs a call that must succeed, and returns the result.
func (l *lifeOf) do(command, name string, conf object, previous any) (result any) {
	l.t.Helper()
	got := l.call(command, name, conf, previous)
	require.Zero(l.t, got.exit, "%s %s with %s: %+v", command, name, l.at, got)
	if command == "ADD" {
		require.NoError(l.t, json.Unmarshal([]byte(got.stdout), &result))
	}
	return result
}

// call runs a call.
func (l *lifeOf) call(command, name string, conf object, previous any) answer {
	l.t.Helper()
	conf = merged(conf, object{"cniVersion": "1.0.0", "name": "net", "type": name})
	if _, own := conf["prevResult"]; !own && previous != nil {
		conf["prevResult"] = previous
	}
	text, err := json.Marshal(conf)
	require.NoError(l.t, err)
	text = []byte(dataDir.ReplaceAllLiteralString(string(text), l.data))
	return call(l.t, links, name, string(text), changed(command, links, l.netns, nil)...)
}

// leasesOf returns the remaining leases, without those of the bridge before the
// plugin.
func leasesOf(t *testing.T, data string, chained bool) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(data, "net")); chained || os.IsNotExist(err) {
		return nil
	}
	return leases(t, data)
}

// backups returns the files that the plugins tuning and flannel left, unless the change
// names another directory.
func backups(t *testing.T, data string, change object) []string {
	t.Helper()
	if change["dataDir"] != nil {
		return nil
	}
	var files []string
	for _, dir := range []string{"tuning", "flannel"} {
		some, err := filepath.Glob(filepath.Join(data, dir, "*"))
		require.NoError(t, err)
		files = append(files, some...)
	}
	return files
}
