package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

type object = map[string]any

// network returns a list of plugins as a runtime parses it.
func network(t testing.TB, cniVersion string, plugins ...object) *libcni.NetworkConfigList {
	t.Helper()
	data, err := json.Marshal(object{"cniVersion": cniVersion, "name": "net", "plugins": plugins})
	require.NoError(t, err)
	list, err := libcni.NetworkConfFromBytes(data)
	require.NoError(t, err)
	return list
}

func bridged(dataDir string) object {
	return object{"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "capabilities": object{"mac": true}, "ipam": object{
		"type": "host-local", "dataDir": dataDir, "ranges": []any{[]any{object{"subnet": "10.9.0.0/24"}}, []any{object{"subnet": "fd00:9::/64"}}},
		"routes": []any{object{"dst": "0.0.0.0/0"}},
	}}
}

var (
	aFirewall = object{"type": "firewall"}
	// The remaining plugins of a chain, after the bridge and the firewall.
	rest = []object{
		{"type": "portmap", "snat": true, "capabilities": object{"portMappings": true}},
		{"type": "bandwidth", "capabilities": object{"bandwidth": true}},
		{"type": "tuning", "sysctl": object{"net.ipv4.conf.IFNAME.arp_filter": "1"}, "mtu": 1400},
	}
)

// runtime returns a libcni, as runtimes use it.
func runtime(t testing.TB, dirs ...string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(dirs, t.TempDir(), &pluginexec.Exec{})
}

// runtimeOn returns a runtime whose results are cached in a directory.
func runtimeOn(cacheDir string, dirs ...string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(dirs, cacheDir, &pluginexec.Exec{})
}

func attachment(id, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: netns, IfName: "eth0", CapabilityArgs: object{
		"portMappings": []object{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    object{"ingressRate": 1000000, "ingressBurst": 1000000},
		"mac":          askedMAC,
	}}
}

const askedMAC = "02:aa:00:00:00:01"

var random = regexp.MustCompile(`(?:veth|bwp)[0-9a-z]+|(?:[0-9a-f]{2}:){5}[0-9a-f]{2}`)

// text returns a result without random parts and the namespace.
func text(t testing.TB, r types.Result, a *libcni.RuntimeConf) string {
	t.Helper()
	data, err := json.MarshalIndent(r, "", " ")
	require.NoError(t, err)
	return strings.ReplaceAll(random.ReplaceAllStringFunc(string(data), func(s string) string {
		switch {
		case s == askedMAC:
			return s
		case s[2] == ':':
			return "MAC"
		}
		return s[:3] + "RANDOM"
	}), a.NetNS, "NETNS")
}

// TestChain runs the life of an allocation in every version, with the links and
// with the reference plugins. The results are the same, each CHECK accepts
// them, and nothing is left.
func TestChain(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	for i, v := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(v, func(t *testing.T) {
			skip.InTurn(t, i, 3)
			plugins := func(dir string) []object {
				list := []object{{"type": "loopback"}, bridged(t.TempDir())}
				if since(t, v, "0.4.0") || dir == links { // the reference firewall does not support earlier versions
					list = append(list, aFirewall)
				}
				list = append(list, rest...)
				if dir == links {
					list = append(list, object{"type": ownPlugin, "table": 100})
				}
				return list
			}
			want := life(t, reference, network(t, v, plugins(reference)...))
			require.Equal(t, want, life(t, links, network(t, v, plugins(links)...)))
			require.Contains(t, want, fmt.Sprintf(`"cniVersion": %q`, v))
		})
	}
}

func since(t testing.TB, v, other string) bool {
	t.Helper()
	is, err := version.GreaterThanOrEqualTo(v, other)
	require.NoError(t, err)
	return is
}

// life runs ADD, CHECK, STATUS, DEL twice, and GC.
func life(t *testing.T, dir string, list *libcni.NetworkConfigList) string {
	t.Helper()
	cni, ctx := runtime(t, dir), t.Context()
	before, err := hostsnap.Take(hostsnap.Options{})
	require.NoError(t, err)
	s, err := sandbox.Create("web")
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Destroy() }) // needed only after a failure
	a := attachment("web", s.Path())

	result, err := cni.AddNetworkList(ctx, list, a)
	require.NoError(t, err)
	requireAddress(t, s, result)
	if since(t, list.CNIVersion, "0.4.0") {
		require.NoError(t, cni.CheckNetworkList(ctx, list, a))
	}
	require.NoError(t, cni.GetStatusNetworkList(ctx, list))
	require.NoError(t, cni.DelNetworkList(ctx, list, a))
	require.NoError(t, cni.DelNetworkList(ctx, list, a), "again")
	require.NoError(t, cni.GCNetworkList(ctx, list, &libcni.GCArgs{}))
	require.NoError(t, s.Destroy())
	require.NoError(t, cni.DelNetworkList(ctx, list, a), "without the namespace")

	after, err := hostsnap.Take(hostsnap.Options{Persistent: true})
	require.NoError(t, err)
	require.Empty(t, hostsnap.Diff(before, after), dir)
	return text(t, result, a)
}

// requireAddress checks that the sandbox has the result's first address.
func requireAddress(t *testing.T, s *sandbox.Sandbox, result types.Result) {
	t.Helper()
	r, err := types100.NewResultFromResult(result)
	require.NoError(t, err)
	address, ok := netip.AddrFromSlice(r.IPs[0].Address.IP)
	require.True(t, ok)
	require.Contains(t, addresses(t, s), address.Unmap())
}

// TestDelWithoutNamespace: the namespace is destroyed before DEL.
func TestDelWithoutNamespace(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	list := network(t, "1.0.0", append([]object{{"type": "loopback"}, bridged(t.TempDir()), aFirewall}, rest...)...)
	before, err := hostsnap.Take(hostsnap.Options{})
	require.NoError(t, err)
	s, err := sandbox.Create("web")
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Destroy() }) // needed only after a failure
	cni, a := runtime(t, links), attachment("web", s.Path())
	_, err = cni.AddNetworkList(t.Context(), list, a)
	require.NoError(t, err)
	require.NoError(t, s.Destroy())
	require.NoError(t, cni.DelNetworkList(t.Context(), list, a))
	after, err := hostsnap.Take(hostsnap.Options{Persistent: true})
	require.NoError(t, err)
	require.Empty(t, hostsnap.Diff(before, after))
}

// TestGC: GC removes everything of a network that belongs to no valid
// attachment, and nothing else; nothing at all without a list of these.
func TestGC(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	dataDir := t.TempDir()
	first := bridged(dataDir)
	first["macspoofchk"] = true
	list := network(t, "1.1.0", append([]object{first, aFirewall}, rest...)...)
	cni := runtime(t, links)
	for _, id := range []string{"kept", "stale"} {
		a := attachment(id, namespace(t, id))
		if a.CapabilityArgs = nil; id == "stale" {
			a = attachment(id, a.NetNS)
		}
		_, err := cni.AddNetworkList(t.Context(), list, a)
		require.NoError(t, err)
	}
	options := hostsnap.Options{Dirs: []string{dataDir, "/var/lib/cni"}, Persistent: true}
	before, err := hostsnap.Take(options)
	require.NoError(t, err)
	require.NoError(t, runtime(t, links).GCNetworkList(t.Context(), list, nil))
	after, err := hostsnap.Take(options)
	require.NoError(t, err)
	require.Empty(t, hostsnap.Diff(before, after))
	require.NoError(t, runtime(t, links).GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "kept", IfName: "eth0"}}}))
	require.Equal(t, []string{"10.9.0.2", "fd00:9::2"}, leases(t, dataDir))
	require.NoError(t, runtime(t, links).GCNetworkList(t.Context(), list, &libcni.GCArgs{})) // which sends null
	require.Empty(t, leases(t, dataDir))
}

// TestPortOfOneAddress: a host port of one address takes precedence over that of every address,
// whichever container has come first, and also after each of them is set up again.
func TestPortOfOneAddress(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	list := network(t, "1.0.0", bridged(t.TempDir()), rest[0])
	cni := runtime(t, links)
	attachments := map[string]*libcni.RuntimeConf{}
	for id, mapping := range map[string]object{"one": {"hostIP": "127.0.0.1"}, "every": {}} {
		a := attachment(id, namespace(t, id))
		mapping["hostPort"], mapping["containerPort"], mapping["protocol"] = 8080, 80, "tcp"
		a.CapabilityArgs = object{"portMappings": []object{mapping}}
		attachments[id] = a
		serveName(t, a)
	}
	add := func(id string) {
		_, err := cni.AddNetworkList(t.Context(), list, attachments[id])
		require.NoError(t, err, id)
	}
	del := func(id string) { require.NoError(t, cni.DelNetworkList(t.Context(), list, attachments[id]), id) }
	both := func() {
		t.Helper()
		require.Equal(t, "one", nameAt(t, "127.0.0.1:8080"))
		require.Equal(t, "every", nameAt(t, "10.9.0.1:8080"))
		for id, a := range attachments {
			require.NoError(t, cni.CheckNetworkList(t.Context(), list, a), id)
		}
	}
	add("one")
	add("every")
	both()
	del("one")
	require.Equal(t, "every", nameAt(t, "127.0.0.1:8080"))
	add("one")
	both()
	del("every")
	require.Equal(t, "one", nameAt(t, "127.0.0.1:8080"))
	add("every")
	both()
	del("one")
	del("every")
}

// TestSuccessor: a container with a host port that others have waits for it, in every order in which they go.
func TestSuccessor(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	list := network(t, "1.0.0", bridged(t.TempDir()), rest[0])
	cni := runtime(t, links)
	ids := []string{"a", "b", "c"}
	attachments := map[string]*libcni.RuntimeConf{}
	for _, id := range ids {
		a := attachment(id, namespace(t, id))
		a.CapabilityArgs = object{"portMappings": []object{
			{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"},
		}}
		attachments[id] = a
		serveName(t, a)
	}
	for _, order := range [][]string{{"a", "b", "c"}, {"b", "a", "c"}, {"c", "b", "a"}, {"a", "c", "b"}} {
		for _, id := range ids {
			_, err := cni.AddNetworkList(t.Context(), list, attachments[id])
			require.NoError(t, err, id)
		}
		there := slices.Clone(ids)
		for _, goes := range order {
			for _, at := range []string{"127.0.0.1:8080", "10.9.0.1:8080", "127.0.0.1:8081"} {
				require.Equal(t, there[0], nameAt(t, at))
			}
			for _, id := range there {
				require.NoError(t, cni.CheckNetworkList(t.Context(), list, attachments[id]), id)
			}
			require.NoError(t, cni.DelNetworkList(t.Context(), list, attachments[goes]))
			there = slices.DeleteFunc(there, func(id string) bool { return id == goes })
		}
	}
}

// serveName answers each connection to port 80 of an attachment with its ID.
func serveName(t *testing.T, a *libcni.RuntimeConf) {
	t.Helper()
	s, err := sandbox.Open(a.NetNS)
	require.NoError(t, err)
	defer s.Close()
	var l net.Listener
	require.NoError(t, s.Do(func() (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	}))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, a.ContainerID)
			conn.Close()
		}
	}()
}

// nameAt returns what a server that the host reaches at an address answers.
func nameAt(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	name, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(name)
}

// leases returns the leased addresses.
func leases(t testing.TB, dataDir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dataDir, "net"))
	require.NoError(t, err)
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err == nil {
			list = append(list, e.Name())
		}
	}
	return list
}

// TestForeignIPAM: allocnet's bridge plugin calls an IPAM plugin of another
// program.
func TestForeignIPAM(t *testing.T) {
	privhost.Require(t)
	var texts []string
	for _, dir := range []string{reference, links} {
		mixed := t.TempDir()
		require.NoError(t, os.Symlink(filepath.Join(dir, "bridge"), filepath.Join(mixed, "bridge")))
		require.NoError(t, fakeplugin.Install(mixed, "leaser"))
		log := filepath.Join(mixed, "log")
		list := network(t, "1.0.0", object{"type": "bridge", "bridge": "br0", "ipam": object{"type": "leaser"}, "fake": fakeplugin.Config{
			Log: log, On: map[string]fakeplugin.Behaviour{
				"ADD": {Result: json.RawMessage(`{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.7/24"}],"dns":{}}`)},
			},
		}})
		a := attachment("web", namespace(t, fmt.Sprintf("foreign-%d", len(texts))))
		a.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S", "x"}}
		cni := runtime(t, mixed)
		result, err := cni.AddNetworkList(t.Context(), list, a)
		require.NoError(t, err)
		require.NoError(t, cni.CheckNetworkList(t.Context(), list, a))
		require.NoError(t, cni.DelNetworkList(t.Context(), list, a))

		calls, err := fakeplugin.Calls(log)
		require.NoError(t, err)
		var commands []string
		for _, c := range calls {
			commands = append(commands, c.Command)
			require.Equal(t, []string{"web", a.NetNS, "eth0", "IgnoreUnknown=1;K8S=x"}, []string{c.ID, c.Netns, c.IfName, c.Args}, c.Command)
			require.Contains(t, string(c.Stdin), `"leaser"`)
		}
		require.Equal(t, []string{"ADD", "CHECK", "DEL"}, commands, dir)
		texts = append(texts, text(t, result, a))
	}
	require.Equal(t, texts[0], texts[1])
	require.Contains(t, texts[0], "10.9.0.7/24")
}

// TestVMBehindATap: CHECK and DEL get a result to which a later plugin has added the interface of a virtual machine
// with the container's addresses.
func TestVMBehindATap(t *testing.T) {
	privhost.Require(t)
	dir := t.TempDir()
	require.NoError(t, fakeplugin.Install(dir, "tap"))
	for _, name := range []string{"bridge", "ptp"} {
		first := bridged(t.TempDir())
		first["type"] = name
		tap := object{"type": "tap", "fake": fakeplugin.Config{Log: filepath.Join(dir, "log"), VM: "tap0", Inside: map[string]string{
			"ADD": "ip tuntap add dev tap0 mode tap || ip link add tap0 type veth peer name tap0-peer",
		}}}
		list := network(t, "1.0.0", slices.Concat([]object{first, aFirewall}, rest, []object{tap})...)
		cni, a := runtime(t, links, dir), attachment("web", namespace(t, "vm-"+name))
		result, err := cni.AddNetworkList(t.Context(), list, a)
		require.NoError(t, err)
		require.Contains(t, text(t, result, a), `"sandbox": "web"`)
		require.NoError(t, cni.CheckNetworkList(t.Context(), list, a))
		require.NoError(t, cni.DelNetworkList(t.Context(), list, a))
	}
	removeLinks(t)
}

// TestIPAMWithoutGC: GC succeeds with an IPAM plugin that does not have it, and reports all other
// errors of the plugin. An error that the plugin did not report has a code nevertheless.
func TestIPAMWithoutGC(t *testing.T) {
	privhost.Require(t)
	dir, netns := t.TempDir(), namespace(t, "without-gc")
	require.NoError(t, fakeplugin.Install(dir, "leaser"))
	run := func(name, command string, b fakeplugin.Behaviour) answer {
		conf, err := json.Marshal(object{
			"cniVersion": "1.1.0", "name": "net", "type": name, "ipam": object{"type": "leaser"}, "cni.dev/valid-attachments": nil,
			"fake": fakeplugin.Config{Log: filepath.Join(dir, "log"), On: map[string]fakeplugin.Behaviour{command: b}},
		})
		require.NoError(t, err)
		return call(t, links, name, string(conf), "CNI_COMMAND="+command, "CNI_PATH="+dir, "CNI_CONTAINERID=web", "CNI_IFNAME=eth0", "CNI_NETNS="+netns)
	}
	for _, name := range []string{"bridge", "ptp"} {
		for _, lacks := range []fakeplugin.Behaviour{
			{Code: 4, Msg: "unknown CNI_COMMAND: GC"}, {Code: 100, Msg: "unknown CNI_COMMAND: GC"}, {Exit: 1}, {Code: 1, Msg: "plugin version does not allow GC"},
		} {
			got := run(name, "GC", lacks)
			require.Zero(t, got.exit, "%+v: %s", lacks, got.stdout)
			require.Contains(t, got.stderr, "the plugin has no GC", "%+v", lacks)
		}
		for _, c := range []struct {
			fails fakeplugin.Behaviour
			code  uint
		}{
			{fakeplugin.Behaviour{Code: 11, Msg: "later"}, 11}, {fakeplugin.Behaviour{KillGroup: true}, types.ErrInternal},
			{fakeplugin.Behaviour{Exit: 2}, types.ErrInternal}, {fakeplugin.Behaviour{Code: 4, Msg: "invalid container ID"}, types.ErrInternal},
		} {
			require.Equal(t, c.code, codeOf(t, run(name, "GC", c.fails)), "%+v", c.fails)
		}
		for _, command := range []string{"ADD", "CHECK", "DEL", "STATUS"} {
			require.NotZero(t, codeOf(t, run(name, command, fakeplugin.Behaviour{Exit: 1})), command)
		}
	}
	removeLinks(t)
}

// codeOf returns the code of the error that a plugin reports.
func codeOf(t *testing.T, a answer) uint {
	t.Helper()
	var failure types.Error
	require.Equal(t, 1, a.exit)
	require.NoError(t, json.Unmarshal([]byte(a.stdout), &failure), a.stdout)
	return failure.Code
}

// TestIPAMOfTheReferenceBridge: the reference bridge plugin calls allocnet's
// host-local.
func TestIPAMOfTheReferenceBridge(t *testing.T) {
	privhost.Require(t, "iptables", "ip6tables")
	mixed, dataDir := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(reference, "bridge"), filepath.Join(mixed, "bridge")))
	require.NoError(t, os.Symlink(filepath.Join(links, "host-local"), filepath.Join(mixed, "host-local")))
	var texts []string
	for i, dir := range []string{reference, mixed} {
		list := network(t, "1.0.0", bridged(dataDir))
		a := attachment("web", namespace(t, fmt.Sprintf("ipam-%d", i)))
		cni := runtime(t, dir)
		result, err := cni.AddNetworkList(t.Context(), list, a)
		require.NoError(t, err)
		require.Len(t, leases(t, dataDir), 2)
		require.NoError(t, cni.CheckNetworkList(t.Context(), list, a))
		require.NoError(t, cni.DelNetworkList(t.Context(), list, a))
		require.Empty(t, leases(t, dataDir))
		texts = append(texts, text(t, result, a))
		require.NoError(t, os.RemoveAll(filepath.Join(dataDir, "net")))
	}
	require.Equal(t, texts[0], texts[1])
}
