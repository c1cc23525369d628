package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

const (
	ipam     = `"ipam":{"type":"host-local","subnet":"10.9.0.0/24"}`
	conf     = `{"cniVersion":"1.0.0","name":"n","type":"bridge","bridge":"br9",` + ipam + `}`
	conf11   = `{"cniVersion":"1.1.0","name":"n","type":"bridge","bridge":"br9",` + ipam + `}`
	bare     = `{"cniVersion":"1.0.0","name":"n","type":"bridge","bridge":"br9"}`
	empty    = `{"cniVersion":"1.0.0","name":"n"}`
	gone     = "CNI_NETNS=/run/netns/gone"
	hostsOwn = "CNI_NETNS=/proc/self/ns/net"
)

// changed returns a complete environment with some variables replaced.
// Variables without a value are omitted.
func changed(command, dir, netns string, changes []string) []string {
	env := []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_NETNS=" + netns, "CNI_IFNAME=eth0", "CNI_PATH=" + dir}
	for _, change := range changes {
		key, _, given := strings.Cut(change, "=")
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, key+"=") })
		if given {
			env = append(env, change)
		}
	}
	return env
}

// failures are calls that fail with the same code as with the reference
// plugins, and with an equivalent text.
var failures = []struct {
	name    string
	command string
	env     []string
	plugin  string
	conf    string
	code    uint
	text    string // regular expression, for both
}{
	{"no ID", "ADD", []string{"CNI_CONTAINERID"}, "bridge", conf, 4, `^required env variables \[CNI_CONTAINERID\] missing$`},
	{"no namespace", "ADD", []string{"CNI_NETNS"}, "bridge", conf, 4, `^required env variables \[CNI_NETNS\] missing$`},
	{"no interface", "ADD", []string{"CNI_IFNAME"}, "bridge", conf, 4, `^required env variables \[CNI_IFNAME\] missing$`},
	{"no path", "ADD", []string{"CNI_PATH"}, "bridge", conf, 4, `^required env variables \[CNI_PATH\] missing$`},
	{"no path for GC", "GC", []string{"CNI_PATH"}, "bridge", conf11, 4, `^required env variables \[CNI_PATH\] missing$`},
	{"several missing", "DEL", []string{"CNI_CONTAINERID", "CNI_IFNAME"}, "loopback", conf, 4, `\[CNI_CONTAINERID,CNI_IFNAME\]`},
	{"unknown command", "JUMP", nil, "bridge", conf, 4, `^unknown CNI_COMMAND: JUMP$`},
	{"bad ID", "ADD", []string{"CNI_CONTAINERID=../x"}, "bridge", conf, 4, `^invalid characters in containerID`},
	{"bad ID at DEL", "DEL", []string{"CNI_CONTAINERID=../x"}, "host-local", conf, 4, `^invalid characters in containerID`},
	{"bad interface", "ADD", []string{"CNI_IFNAME=a/b"}, "bridge", conf, 4, `^interface name contains`},
	{"bad JSON", "ADD", nil, "bridge", `{`, 6, `unexpected end of JSON`},
	{"no configuration", "DEL", nil, "host-local", ``, 6, `unexpected end of JSON`},
	{"no name", "ADD", nil, "bridge", `{"cniVersion":"1.0.0"}`, 7, `^missing network name`},
	{"bad name", "ADD", nil, "bridge", `{"cniVersion":"1.0.0","name":"a/b"}`, 7, `^invalid characters found in network name`},
	{"newer version", "ADD", nil, "bridge", `{"cniVersion":"2.0.0","name":"n"}`, 1, `^incompatible CNI versions`},
	{"too old for CHECK", "CHECK", nil, "bridge", `{"cniVersion":"0.3.1","name":"n"}`, 1, `^config version does not allow CHECK`},
	{"too old for GC", "GC", nil, "bridge", conf, 1, `^config version does not allow GC`},
	{"too old for STATUS", "STATUS", nil, "bridge", conf, 1, `^config version does not allow STATUS`},

	{"the host's namespace", "ADD", []string{hostsOwn}, "bridge", bare, 8, `(?i)CNI_NETNS`},
	{"the host's namespace at DEL", "DEL", []string{hostsOwn}, "bridge", bare, 8, `CNI_NETNS`},

	{"value of a wrong type", "ADD", nil, "bridge", `{"cniVersion":"1.0.0","name":"n","bridge":7}`, 999, `bridge of type string`},
	{"namespace is gone", "ADD", []string{gone}, "bridge", conf, 999, `/run/netns/gone.*no such file`},
	{"namespace is gone, loopback", "ADD", []string{gone, "CNI_IFNAME=lo"}, "loopback", empty, 999, `/run/netns/gone.*no such file`},
	{"bad arguments", "ADD", []string{"CNI_ARGS=FOO"}, "bridge", conf, 999, `invalid pair "FOO"`},
	{"no such IPAM plugin", "ADD", nil, "bridge", `{"cniVersion":"1.0.0","name":"n","bridge":"br9","ipam":{"type":"absent"}}`, 999, `plugin "absent"`},
	{"first in its chain, portmap", "ADD", nil, "portmap", `{"cniVersion":"1.0.0","name":"n","runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}]}}`,
		999, `chained|prevResult`},
	{"first in its chain, firewall", "ADD", nil, "firewall", empty, 999, `prevResult`},
	{"first in its chain, tuning", "ADD", nil, "tuning", empty, 999, `prevResult`},
	{"result of another form", "ADD", nil, "firewall", `{"cniVersion":"1.0.0","name":"n","prevResult":{"cniVersion":"1.0.0","ips":[{"address":"x"}]}}`,
		999, `prevResult.*invalid CIDR address: x`},
}

func TestFailuresLikeTheReference(t *testing.T) {
	privhost.Require(t, "iptables")
	for i, test := range failures {
		t.Run(test.name, func(t *testing.T) {
			for _, dir := range []string{reference, links} {
				netns := namespace(t, fmt.Sprintf("fail-%d-%d", i, len(dir)))
				e, objects := call(t, dir, test.plugin, test.conf, changed(test.command, dir, netns, test.env)...).failure(t)
				require.Equal(t, test.code, e.Code, "%s: %s", dir, e.Msg)
				require.Regexp(t, test.text, strings.TrimSpace(e.Msg+" "+e.Details), dir)
				if dir == links {
					require.Equal(t, 1, objects, "nothing but the error is written")
				}
				removeLinks(t)
			}
		})
	}
}

// TestPatternAsInterface: the kernel would replace %d in the name of a new interface. DEL and GC accept such
// names, as of earlier ADDs.
func TestPatternAsInterface(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	netns, data := namespace(t, "pattern"), t.TempDir()
	for _, plugin := range []string{"bridge", "ptp"} {
		conf := dataDir.ReplaceAllLiteralString(`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"c1","ifname":"a%d"}],`+
			`"ipam":{"type":"host-local","subnet":"10.9.0.0/24","dataDir":"DATA"}}`, data)
		env := func(command string) []string { return changed(command, links, netns, []string{"CNI_IFNAME=a%d"}) }
		failure, _ := call(t, links, plugin, conf, env("ADD")...).failure(t)
		require.EqualValues(t, types.ErrInvalidEnvironmentVariables, failure.Code)
		require.Equal(t, `interface name contains %; "a%d"`, failure.Error())
		for _, command := range []string{"DEL", "GC"} {
			require.Zero(t, call(t, links, plugin, conf, env(command)...).exit, command)
		}
	}
}

// removeLinks removes what the reference plugins leave when they fail, also in
// the host's own namespace, and the bridges of attachments with the record of their switches.
func removeLinks(t testing.TB) {
	t.Helper()
	for _, name := range []string{"eth0", "br9", "br0"} {
		if link, err := netlink.LinkByName(name); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
	}
	require.NoError(t, os.RemoveAll(filepath.Join(configurator.DefaultStateDir, "switches.json"))) // of those links
}

// TestTheHostsNamespaceIsRefusedFirst: the refusal precedes IPAM, whose address
// would otherwise leak, and any output, which would make the error unreadable.
func TestTheHostsNamespaceIsRefusedFirst(t *testing.T) {
	privhost.Require(t)
	dataDir := t.TempDir()
	local := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"n","ipam":{"type":"host-local","subnet":"10.9.0.0/24","dataDir":%q}}`, dataDir)
	e, objects := call(t, links, "host-local", local, changed("ADD", links, "/proc/self/ns/net", nil)...).failure(t)
	require.EqualValues(t, 8, e.Code)
	require.Equal(t, 1, objects)
	require.NoDirExists(t, dataDir+"/n")
	for _, override := range []string{"1", "True"} {
		env := changed("ADD", links, "/proc/self/ns/net", []string{"CNI_NETNS_OVERRIDE=" + override, "CNI_CONTAINERID=c-" + override})
		require.Zero(t, call(t, links, "host-local", local, env...).exit, override)
	}
}

// TestVersion: some reference plugins refuse old versions, because their DEL
// would lack information.
func TestVersion(t *testing.T) {
	supported := func(a answer, newest string) (versions []string) {
		var info struct{ CNIVersion, SupportedVersions any }
		require.Zero(t, a.exit, "%+v", a)
		require.Empty(t, a.stderr)
		require.NoError(t, json.Unmarshal([]byte(a.stdout), &info))
		require.Equal(t, newest, info.CNIVersion)
		for _, v := range info.SupportedVersions.([]any) {
			versions = append(versions, v.(string))
		}
		return versions
	}
	all := []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	for name := range builtin.DropIns {
		for _, stdin := range []string{"", empty} {
			want := all
			if name == "bandwidth" { // it needs results that name interfaces
				want = all[2:]
			}
			require.Equal(t, want, supported(call(t, links, name, stdin, "CNI_COMMAND=VERSION"), "1.1.0"), name)
			newest := "1.1.0"
			if name == "flannel" { // of an older release
				newest = "0.4.0"
			}
			if name != ownPlugin {
				require.Subset(t, all, supported(call(t, reference, name, stdin, "CNI_COMMAND=VERSION"), newest), name)
			}
		}
	}
}

// TestWithoutCommand runs the plugins without CNI variables, as users do, and programs that read the version in what
// they say, by their rules.
func TestWithoutCommand(t *testing.T) {
	pinned, err := os.ReadFile("../../tools/go.mod")
	require.NoError(t, err)
	require.Contains(t, string(pinned), "github.com/containernetworking/plugins "+sdk.ReferenceVersion)
	for name := range builtin.DropIns {
		got := call(t, links, name, "")
		require.Zero(t, got.exit, name)
		require.Empty(t, got.stdout, name)
		first, rest, _ := strings.Cut(got.stderr, "\n")
		require.Equal(t, "CNI "+name+" plugin "+sdk.ReferenceVersion, first, "as a release of the reference plugin")
		require.Contains(t, rest, "of allocnet")
		require.Contains(t, rest, "\nCNI protocol versions supported: ")
		for program, read := range versionReaders {
			version := read(name, got)
			require.Equal(t, sdk.ReferenceVersion, version, program)
		}
	}
}

// semver is a version as those programs accept it.
var semver = regexp.MustCompile(`^v?\d+(\.\d+){0,2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// versionReaders return the version that a program reads in the answer of a plugin; "" if it reads none.
var versionReaders = map[string]func(name string, a answer) string{
	// Nomad reads both streams, and takes the first word that is a version. From 1.3.0 of the plugin bridge on, it runs
	// CHECK, and from 0.4.0 on it places jobs.
	"Nomad": func(_ string, a answer) string {
		words := strings.Fields(a.stdout + a.stderr)
		if i := slices.IndexFunc(words, semver.MatchString); i >= 0 && a.exit == 0 {
			return words[i]
		}
		return ""
	},
	// nerdctl reads stderr, and takes the rest of the first line that begins with the plugin's name, which must be a
	// version and nothing else. From 1.1.0 of the plugin firewall on, it sets ingressPolicy in the networks that it makes.
	"nerdctl": func(name string, a answer) string {
		for line := range strings.SplitSeq(a.stderr, "\n") {
			if version, ok := strings.CutPrefix(line, "CNI "+name+" plugin "); ok && semver.MatchString(version) && a.exit == 0 {
				return version
			} else if ok {
				return ""
			}
		}
		return ""
	},
}

func TestUnknownName(t *testing.T) {
	for _, env := range [][]string{nil, {"CNI_COMMAND=ADD"}, {"CNI_COMMAND=VERSION"}} {
		got := call(t, links, "odd", "", env...)
		require.Equal(t, 2, got.exit)
		require.Empty(t, got.stdout)
		require.Contains(t, got.stderr, "odd selects the CNI plugin by the name under which it is started (argv[0]): bandwidth, bridge, ")
	}
}

// TestNothingToDo: DEL, STATUS and GC succeed if there is nothing to do, also
// when repeated.
func TestNothingToDo(t *testing.T) {
	privhost.Require(t, "iptables")
	subnets := filepath.Join(dataWithSubnets(t, subnetEnv), "subnet.env")
	for name := range builtin.DropIns {
		c := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":%q,%s}`, name, ipam)
		if name == "static" {
			c = `{"cniVersion":"1.1.0","name":"n","type":"static","ipam":{"type":"static","addresses":[{"address":"10.9.0.2/24"}]}}`
		}
		dirs := []string{reference, links}
		switch name {
		case ownPlugin:
			c, dirs = `{"cniVersion":"1.1.0","name":"n","type":"routes","table":100}`, []string{links}
		case "flannel": // the reference plugin knows no such version
			c, dirs = fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":"flannel","subnetFile":%q}`, subnets), []string{links}
		}
		for _, dir := range dirs {
			for _, command := range []string{"DEL", "DEL", "STATUS", "GC"} {
				env := changed(command, dir, "/run/netns/gone", nil)
				require.Equal(t, answer{}, call(t, dir, name, c, env...), "%s %s %s", dir, name, command)
			}
			require.Equal(t, answer{}, call(t, dir, name, c, changed("DEL", dir, "", []string{"CNI_NETNS"})...), "%s %s", dir, name)
			for _, command := range []string{"STATUS", "GC"} { // about no container, whatever a runtime has left there
				for _, left := range [][]string{{"CNI_IFNAME"}, {"CNI_CONTAINERID=../x", "CNI_IFNAME=a/b"}} {
					require.Equal(t, answer{}, call(t, dir, name, c, changed(command, dir, "", left)...), "%s %s %s %s", dir, name, command, left)
				}
			}
		}
	}
}

// subnetEnv is a file of flanneld.
const subnetEnv = "FLANNEL_NETWORK=10.9.0.0/16\nFLANNEL_SUBNET=10.9.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"

// TestUnknownKey: an unknown key is ignored, as by the reference plugins, but
// with a warning.
func TestUnknownKey(t *testing.T) {
	privhost.Require(t, "iptables")
	novel := strings.Replace(bare, `{`, `{"novel":1,`, 1)
	for _, test := range []struct{ dir, said string }{{reference, `^$`}, {links, `(?i)warn.*novel`}} {
		netns := namespace(t, fmt.Sprintf("novel-%d", len(test.dir)))
		for _, command := range []string{"ADD", "DEL"} {
			got := call(t, test.dir, "bridge", novel, changed(command, test.dir, netns, nil)...)
			require.Zero(t, got.exit, got.stdout)
			require.Regexp(t, test.said, got.stderr)
			require.NotContains(t, got.stdout, `"novel"`)
		}
	}
	removeLinks(t)
}
