package builtin_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

type object = map[string]any

func hostLocal(subnets ...string) object {
	ranges, routes := []any{}, []any{}
	for _, s := range subnets {
		ranges = append(ranges, []any{object{"subnet": s}})
		all := "0.0.0.0/0"
		if strings.Contains(s, ":") {
			all = "::/0"
		}
		routes = append(routes, object{"dst": all})
	}
	return object{"type": "host-local", "ranges": ranges, "routes": routes}
}

// configurations are run with both implementations. Those that fail must fail
// with both, with the same code.
var configurations = []struct {
	name string
	args string
	conf object
}{
	{"loopback", "", object{"type": "loopback"}},
	{"bridge v4", "", object{"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "ipam": hostLocal("10.9.0.0/24")}},
	{"bridge dual", "", object{"type": "bridge", "bridge": "br0", "isGateway": true, "hairpinMode": true, "ipam": hostLocal("10.9.0.0/24", "fd00:9::/64")}},
	{"bridge v6", "", object{"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipam": hostLocal("fd00:9::/64")}},
	{"bridge default gateway", "", object{"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipam": object{"type": "host-local", "subnet": "10.9.0.0/24"}}},
	{"bridge without gateway", "", object{"type": "bridge", "bridge": "br0", "ipam": object{"type": "host-local", "subnet": "10.9.0.0/24"}}},
	{"bridge without ipam", "", object{"type": "bridge", "bridge": "br0"}},
	{"bridge without container interface", "", object{"type": "bridge", "bridge": "br0", "disableContainerInterface": true}},
	{"bridge mtu", "", object{"type": "bridge", "bridge": "br0", "mtu": 1400, "ipam": hostLocal("10.9.0.0/24")}},
	{"bridge promisc", "", object{"type": "bridge", "bridge": "br0", "promiscMode": true, "ipam": hostLocal("10.9.0.0/24")}},
	{"bridge mac by runtimeConfig", "MAC=02:aa:00:00:00:01", object{"type": "bridge", "bridge": "br0", "ipam": hostLocal("10.9.0.0/24"),
		"args": object{"cni": object{"mac": "02:aa:00:00:00:02"}}, "runtimeConfig": object{"mac": "02:aa:00:00:00:03"}}},
	{"bridge mac by args", "MAC=02:aa:00:00:00:01", object{"type": "bridge", "bridge": "br0", "ipam": hostLocal("10.9.0.0/24"),
		"args": object{"cni": object{"mac": "02:aa:00:00:00:02"}}}},
	{"bridge mac by environment", "IgnoreUnknown=1;MAC=02:aa:00:00:00:01", object{"type": "bridge", "bridge": "br0", "ipam": hostLocal("10.9.0.0/24")}},
	{"bridge ip by environment", "IgnoreUnknown=1;IP=10.9.0.77", object{"type": "bridge", "bridge": "br0", "ipam": hostLocal("10.9.0.0/24")}},
	{"bridge dns of the configuration", "", object{"type": "bridge", "bridge": "br0", "ipam": hostLocal("10.9.0.0/24"), "dns": object{"nameservers": []string{"10.0.0.1"}}}},
	{"bridge version 0.3.1", "", object{"cniVersion": "0.3.1", "type": "bridge", "bridge": "br0", "isGateway": true, "ipam": hostLocal("10.9.0.0/24")}},
	{"bridge version 0.4.0", "", object{"cniVersion": "0.4.0", "type": "bridge", "bridge": "br0", "isGateway": true, "ipam": hostLocal("10.9.0.0/24")}},
	{"bridge version 1.1.0", "", object{"cniVersion": "1.1.0", "type": "bridge", "bridge": "br0", "isGateway": true, "ipam": hostLocal("10.9.0.0/24")}},
	{"ptp v4", "", object{"type": "ptp", "ipMasq": true, "ipam": hostLocal("10.9.0.0/24")}},
	{"ptp dual", "", object{"type": "ptp", "mtu": 1450, "ipam": hostLocal("10.9.0.0/24", "fd00:9::/64")}},
	{"ptp v6 and dns", "", object{"type": "ptp", "ipam": hostLocal("fd00:9::/64"), "dns": object{"search": []string{"a.example"}}}},

	{"bridge macspoofchk", "", object{"type": "bridge", "bridge": "br0", "isGateway": true, "macspoofchk": true, "ipam": hostLocal("10.9.0.0/24", "fd00:9::/64")}},
	{"bridge macspoofchk without ipam", "", object{"type": "bridge", "bridge": "br0", "macspoofchk": true}},

	{"bad: trunk id", "", object{"type": "bridge", "bridge": "br0", "vlanTrunk": []object{{"id": 4095}}}},
	{"bad: trunk range", "", object{"type": "bridge", "bridge": "br0", "vlanTrunk": []object{{"minID": 9, "maxID": 7}}}},
	{"bad: half a trunk range", "", object{"type": "bridge", "bridge": "br0", "vlan": 7, "vlanTrunk": []object{{"minID": 9}}}},
	{"bad: vlan", "", object{"type": "bridge", "bridge": "br0", "vlan": 5000}},
	{"bad: hairpin and promisc", "", object{"type": "bridge", "bridge": "br0", "hairpinMode": true, "promiscMode": true}},
	{"bad: ipam without container interface", "", object{"type": "bridge", "disableContainerInterface": true, "ipam": hostLocal("10.9.0.0/24")}},
	{"bad: ptp without ipam", "", object{"type": "ptp"}},
	{"bad: not a bridge", "", object{"type": "bridge", "bridge": "lo", "ipam": hostLocal("10.9.0.0/24")}},
	{"bad: mac", "MAC=zz", object{"type": "bridge", "bridge": "br0", "ipam": hostLocal("10.9.0.0/24")}},
	{"bad: unknown argument", "FOO=1", object{"type": "bridge", "bridge": "br0", "ipam": hostLocal("10.9.0.0/24")}},
}

// TestLikeTheReference runs configurations with the reference plugins and with
// the native ones. The results and the states of sandbox and bridge are the
// same. Each implementation's CHECK accepts, and its DEL removes, what the
// other made.
func TestLikeTheReference(t *testing.T) {
	reference, native := runners(t)
	for i, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			skip.InTurn(t, i, 6)
			conf := with(with(with(c.conf, "name", "net"), "dataDir", nil), "cniVersion", version(c.conf))
			delete(conf, "dataDir")
			want := lifecycle(t, reference, native, fmt.Sprintf("r-%d", i), c.args, conf)
			got := lifecycle(t, native, reference, fmt.Sprintf("n-%d", i), c.args, conf)
			require.Equal(t, want, got)
		})
	}
}

func version(conf object) any {
	if v, ok := conf["cniVersion"]; ok {
		return v
	}
	return "1.0.0"
}

// lifecycle runs ADD with one runner, CHECK with both and DEL with the other,
// and repeats that.
func lifecycle(t *testing.T, one, other *runner, id, args string, conf object) (seen string) {
	t.Helper()
	one.t, other.t = t, t
	require.NoError(t, os.RemoveAll("/var/lib/cni/networks"))
	removeBridge(t)
	a := sandboxed(t, id)
	a.args = args
	if _, err := one.run("ADD", a, conf); err != nil {
		return fmt.Sprintf("error %d", code(err))
	}
	// The first ADD made the bridge; the second ADD finds it.
	_, err := one.run("DEL", a, conf)
	require.NoError(t, err)
	result := one.add(a, conf)
	withResult := with(conf, "prevResult", clone(t, result))
	awaitCarrier(t, a, conf)
	for _, r := range []*runner{one, other} {
		if !checks(r, conf) {
			continue
		}
		_, err := r.run("CHECK", a, withResult)
		require.NoError(t, err, "%s CHECK of what %s made", r.name, one.name)
	}
	seen = normal(t, result, a) + state(t, a)
	for _, r := range []*runner{other, other, one} { // only the native DEL removes nftables elements
		_, err = r.run("DEL", a, withResult)
		require.NoError(t, err, "%s DEL of what %s made", r.name, one.name)
	}
	requireGone(t, a)
	return seen
}

// checks reports whether a runner supports CHECK for a configuration. The CHECK
// of the reference bridge plugin fails without ipam.
func checks(r *runner, conf object) bool {
	return conf["cniVersion"] != "0.3.1" && (r.name == "native" || conf["ipam"] != nil || conf["type"] == "loopback")
}

// state describes the sandbox and the bridge.
func state(t *testing.T, a attachment) string {
	t.Helper()
	var text strings.Builder
	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		for _, args := range []string{"-br link", "-br -4 addr", "-br -6 addr show scope global", "-4 route", "-6 route show proto boot", "-6 route show proto static"} {
			fmt.Fprintf(&text, "\nip %s\n%s", args, sorted(output(t, "ip", strings.Fields(args)...)))
		}
		return nil
	}))
	text.WriteString("\nhost\n" + sorted(withAddress(output(t, "ip", "-br", "addr", "show", "type", "bridge", "scope", "global"))))
	text.WriteString(sorted(output(t, "ip", "-4", "route")))
	return scrub(text.String())
}

// withAddress removes links without an address from the text.
func withAddress(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "/") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func output(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}
