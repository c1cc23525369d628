package hostlocal

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/plugintest"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// conf returns a configuration as bridge passes it. rest follows the key ipam.
func conf(ipam string, rest ...string) string {
	return confOf("1.0.0", ipam, rest...)
}

func confOf(version, ipam string, rest ...string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": "blue", "type": "bridge", "bridge": "br0", "isGateway": true,
		"ipam": {"type": "host-local", "dataDir": "DATA", %s}%s}`, version, ipam, strings.Join(append([]string{""}, rest...), ", "))
}

const (
	subnet = `"subnet": "10.1.0.0/24"`
	dual   = `"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]`
)

// A step is a call and its expected outcome. text is a part of both error
// messages, or "" for success. code is the native plugin's code if it is not
// the reference's 999.
type step struct {
	call
	text string
	code uint
}

func ok(command, id, conf string, args ...string) step {
	return step{call: call{command: command, id: id, conf: conf, args: strings.Join(args, ";")}}
}

func fails(command, id, conf, text string, args ...string) step {
	s := ok(command, id, conf, args...)
	s.text, s.code = text, 999
	return s
}

func (s step) with(code uint) step {
	s.code = code
	return s
}

func add(id, ipam string, args ...string) step { return ok("ADD", id, conf(ipam), args...) }

// conformance are sequences of calls on a network.
var conformance = map[string][]step{
	"plain": {
		add("one", subnet), add("two", subnet), ok("DEL", "one", conf(subnet)), add("three", subnet),
		ok("DEL", "one", conf(subnet)), ok("DEL", "nobody", conf(subnet)),
	},
	"routes, DNS and all": {add("one", dual+`, "resolvConf": "DATA/resolv.conf", "routes": [{"dst": "0.0.0.0/0"},
		{"dst": "10.9.0.0/16", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1300, "priority": 7, "table": 50, "scope": 0},
		{"dst": "::/0", "gw": ""}]`)},
	"a range": {
		add("one", subnet+`, "rangeStart": "10.1.0.7", "rangeEnd": "10.1.0.8", "gateway": "10.1.0.254"`),
		add("two", subnet+`, "rangeStart": "10.1.0.7", "rangeEnd": "10.1.0.8", "gateway": "10.1.0.254"`),
		fails("ADD", "three", conf(subnet+`, "rangeStart": "10.1.0.7", "rangeEnd": "10.1.0.8"`),
			"no IP addresses available in range set: 10.1.0.7-10.1.0.8"),
	},
	"all of a small subnet": {
		add("one", `"subnet": "10.1.0.0/30"`), fails("ADD", "two", conf(`"subnet": "10.1.0.0/30"`), "no IP addresses available"),
		ok("DEL", "one", conf(`"subnet": "10.1.0.0/30"`)), add("two", `"subnet": "10.1.0.0/30"`),
	},
	"a set of several ranges": {
		add("one", `"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/30", "gateway": "10.2.0.2"}]]`),
		add("two", `"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/30", "gateway": "10.2.0.2"}]]`),
	},
	"single and ranges": {add("one", subnet+`, "ranges": [[{"subnet": "fd00::/120"}], [{"subnet": "10.4.0.0/16"}]]`)},
	"the network's own address and the broadcast": {
		add("one", subnet+`, "rangeStart": "10.1.0.0", "rangeEnd": "10.1.0.255"`),
		add("two", subnet+`, "rangeStart": "10.1.0.255", "rangeEnd": "10.1.0.255"`),
	},
	"ipRanges": {ok("ADD", "one", conf(subnet,
		`"runtimeConfig": {"ipRanges": [[{"subnet": "10.7.0.0/16", "rangeStart": "10.7.3.1"}], [{"subnet": "fd00::/112"}]]}`))},
	"only ipRanges": {ok("ADD", "one", conf(`"routes": []`, `"runtimeConfig": {"ipRanges": [[{"subnet": "10.7.0.0/16"}]]}`))},
	"twice": {
		add("one", subnet), fails("ADD", "one", conf(subnet), "10.1.0.2 has been allocated to one, duplicate allocation is not allowed"),
	},
	"dual stack": {
		add("one", dual), add("two", dual), ok("CHECK", "one", conf(dual)), ok("DEL", "one", conf(dual)),
		fails("CHECK", "one", conf(dual), "add"),
	},
	"the second range is full": {
		add("one", `"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/30"}]]`),
		fails("ADD", "two", conf(`"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/30"}]]`), "no IP addresses available"),
		add("three", subnet),
	},
	"CNI_ARGS": {
		add("one", dual, "IP=10.1.0.77"), add("two", dual), add("three", dual, "IgnoreUnknown=1", "FOO=bar", "IP=fd00:1::7/64"),
		fails("ADD", "four", conf(dual), "FOO=bar", "FOO=bar").with(4),
		fails("ADD", "four", conf(dual), "nonsense", "IP=nonsense").with(7),
		fails("ADD", "four", conf(dual), "10.1.0.9,10.1.0.10", "IP=10.1.0.9,10.1.0.10").with(7),
		fails("ADD", "four", conf(dual), "invalid pair", "IP").with(4),
		add("four", dual, "IP="),
	},
	"args": {
		ok("ADD", "one", conf(dual, `"args": {"cni": {"ips": ["fd00:1::99", "10.1.0.5/24"], "mac": "x"}, "other": 1}`)),
		fails("ADD", "two", conf(dual, `"args": {"cni": {"ips": ["nonsense"]}}`), "nonsense").with(7),
	},
	"runtimeConfig": {
		ok("ADD", "one", conf(dual, `"runtimeConfig": {"ips": ["fd00:1::99/64"], "mac": "x", "portMappings": []}`)),
		ok("ADD", "two", conf(dual, `"runtimeConfig": {"ips": ["::ffff:10.1.0.7"]}`), "IP=fd00:1::55"),
	},
	"requests from everywhere": {ok("ADD", "one", conf(dual,
		`"args": {"cni": {"ips": ["fd00:1::99"]}}`, `"runtimeConfig": {"ips": ["10.1.0.9"]}`), "IP=10.1.0.9")},
	"requests that cannot be met": {
		add("one", subnet),
		fails("ADD", "two", conf(subnet), "requested IP address 10.1.0.2 is not available in range set 10.1.0.1-10.1.0.254", "IP=10.1.0.2"),
		fails("ADD", "two", conf(subnet), "requested ip 10.1.0.1 is subnet's gateway", "IP=10.1.0.1"),
		fails("ADD", "two", conf(subnet), "allocate all requested IPs:", "IP=10.1.1.1"),
		fails("ADD", "two", conf(subnet), "allocate all requested IPs:", "IP=10.1.0.255"),
	},
	"a second address of the same container": {add("one", subnet), add("one", subnet, "IP=10.1.0.9"), ok("DEL", "one", conf(subnet))},
	"old versions": {
		ok("ADD", "one", confOf("0.2.0", dual)),
		ok("ADD", "two", confOf("0.3.1", `"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]`)),
		fails("ADD", "three", confOf("0.2.0", `"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]`),
			"CNI version 0.2.0 does not support more than 1 address per family").with(7),
	},
	"version 1.1.0":     {ok("STATUS", "", confOf("1.1.0", subnet)), ok("ADD", "one", confOf("1.1.0", subnet))},
	"what is not ours":  {ok("ADD", "one", conf(subnet, `"dns": 5`, `"vlan": {"what": "ever"}`))},
	"keys of no effect": {add("one", subnet+`, "name": "x", "RangeStart": "10.1.0.50"`)},

	"no ipam":        {fails("ADD", "one", `{"cniVersion": "1.0.0", "name": "blue"}`, "ipam").with(7)},
	"no ranges":      {fails("ADD", "one", conf(`"ranges": []`), "no IP ranges specified").with(7)},
	"an empty set":   {fails("ADD", "one", conf(`"ranges": [[]]`), "invalid range set 0: empty range set").with(7)},
	"not an address": {fails("ADD", "one", conf(`"subnet": "10.1.0.0"`), "invalid CIDR address").with(6)},
	"not a subnet":   {fails("ADD", "one", conf(`"subnet": "10.1.0.1/24"`), "etwork").with(7)},
	"too small":      {fails("ADD", "one", conf(`"subnet": "10.1.0.0/31"`), "too small to allocate from").with(7)},
	"mapped subnet":  {fails("ADD", "one", conf(`"subnet": "::ffff:10.1.0.0/120"`), "invalid range set 0:").with(7)},
	"start outside":  {fails("ADD", "one", conf(subnet+`, "rangeStart": "10.2.0.1"`), "angeStart 10.2.0.1 not in network 10.1.0.0/24").with(7)},
	"end outside":    {fails("ADD", "one", conf(subnet+`, "rangeEnd": "fd00::1"`), "angeEnd fd00::1 not in network 10.1.0.0/24").with(7)},
	"end before":     {fails("ADD", "one", conf(subnet+`, "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8"`), "10.1.0.9").with(7)},
	"overlap": {fails("ADD", "one", conf(subnet+`, "ranges": [[{"subnet": "10.0.0.0/8", "rangeEnd": "10.1.0.9"}]]`),
		"range set 0 overlaps with 1").with(7)},
	"overlap in a set": {fails("ADD", "one", conf(`"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.0/25"}]]`), "overlap").with(7)},
	"mixed families":   {fails("ADD", "one", conf(`"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]]`), "mixed address families").with(7)},
	"no resolvConf":    {fails("ADD", "one", conf(subnet+`, "resolvConf": "DATA/none"`), "no such file")},
	"CHECK of nothing": {fails("CHECK", "one", conf(subnet), "add")},
}

const resolvConf = "# generated\n; too\n\nnameserver 10.0.0.53\nnameserver fd00::53 # x\n domain example.org\n" +
	"search a.example b.example\nsearch c.example\noptions ndots:2 rotate\nnameserver\nsortlist 10.0.0.0\n"

// TestConformance: the reference plugin and the native one return the same
// results, and leave the same files.
func TestConformance(t *testing.T) {
	refplugins.Path(t, "host-local")
	for name, steps := range conformance {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			theirs, ours := t.TempDir(), t.TempDir()
			for _, dir := range []string{theirs, ours} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte(resolvConf), 0o600))
			}
			for i, step := range steps {
				at := fmt.Sprintf("step %d: %s %s", i, step.command, step.id)
				want, wantErr := binary(t, step.call, theirs)
				got, gotErr := native(t, step.call, ours)
				compare(t, step, wantErr, gotErr, at)
				if want != "" || got != "" {
					require.JSONEq(t, want, got, at)
				}
				// If the native plugin refuses a configuration, it creates no
				// files.
				if step.code == 999 || step.text == "" {
					require.Equal(t, leasesOnly(leases(t, theirs)), leasesOnly(leases(t, ours)), at)
				}
			}
		})
	}
}

func compare(t *testing.T, s step, wantErr, gotErr error, at string) {
	t.Helper()
	if s.text == "" {
		require.NoError(t, wantErr, "reference, "+at)
		require.NoError(t, gotErr, at)
		return
	}
	require.ErrorContains(t, wantErr, s.text, "reference, "+at)
	require.ErrorContains(t, gotErr, s.text, at)
	require.EqualValues(t, 999, plugintest.Code(wantErr), "reference, "+at)
	require.Equal(t, s.code, plugintest.Code(gotErr), at)
}

// leasesOnly returns the files without the lock and the last
// reserved addresses.
func leasesOnly(files map[string]string) map[string]string {
	for name := range files {
		if strings.HasSuffix(name, "/lock") || strings.Contains(name, "/last_reserved_ip.") {
			delete(files, name)
		}
	}
	return files
}

// TestTakingTurns: each implementation continues from the state of the other.
func TestTakingTurns(t *testing.T) {
	dir := t.TempDir()
	run := func(theirs bool, command, id string) []string {
		c := call{command: command, id: id, conf: conf(dual)}
		var out string
		var err error
		if theirs {
			out, err = binary(t, c, dir)
		} else {
			out, err = native(t, c, dir)
		}
		require.NoError(t, err)
		if command != "ADD" {
			return nil
		}
		var result struct{ IPs []struct{ Address string } }
		require.NoError(t, json.Unmarshal([]byte(out), &result))
		var got []string
		for _, ip := range result.IPs {
			got = append(got, ip.Address)
		}
		return got
	}
	require.Equal(t, []string{"10.1.0.2/24", "fd00:1::2/64"}, run(true, "ADD", "one"))
	require.Equal(t, []string{"10.1.0.3/24", "fd00:1::3/64"}, run(false, "ADD", "two"))
	run(false, "CHECK", "one")
	run(true, "CHECK", "two")
	run(false, "DEL", "one")
	run(true, "DEL", "two")
	require.Equal(t, []string{"10.1.0.4/24", "fd00:1::4/64"}, run(false, "ADD", "one"))
	require.Equal(t, []string{"10.1.0.5/24", "fd00:1::5/64"}, run(true, "ADD", "two"))
}
