package daemon

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// cni is a runtime on the daemon's host with its own directory of
// configurations. It calls cnitool, or libcni for what cnitool does not
// support. Both use the same cache.
type cni struct {
	*daemonProcess
	conf   string
	libcni *libcni.CNIConfig
}

func (d *daemonProcess) runtime() *cni {
	d.h.T.Helper()
	conf := filepath.Join(d.dir, "runtime")
	require.NoError(d.h.T, os.MkdirAll(conf, 0o755))
	return &cni{d, conf, libcni.NewCNIConfig([]string{d.bin, testbed.PluginDir}, nil)}
}

// list writes a conflist of the runtime.
func (r *cni) list(name, version string, plugins ...map[string]any) {
	r.h.T.Helper()
	data, err := json.Marshal(map[string]any{"cniVersion": version, "name": name, "plugins": plugins})
	require.NoError(r.h.T, err)
	require.NoError(r.h.T, os.WriteFile(filepath.Join(r.conf, name+".conflist"), data, 0o600))
}

// ours returns a configuration of allocnet's plugin for a list.
func (r *cni) ours(key string, value any) map[string]any {
	return map[string]any{
		"type": "allocnet", "settings": r.settings, "capabilities": map[string]bool{"portMappings": true}, key: value,
	}
}

// tool runs cnitool with environment variables and returns its output.
func (r *cni) tool(command, network, netns string, variables ...string) (string, error) {
	c := exec.Command(filepath.Join(r.bin, "cnitool"), command, network, netns)
	c.Env = append(os.Environ(), "CNI_PATH="+r.bin+":"+testbed.PluginDir, "NETCONFPATH="+r.conf)
	c.Env = append(c.Env, variables...)
	var out, errOut bytes.Buffer
	c.Stdout, c.Stderr = &out, &errOut
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("cnitool %s: %w: %s%s", command, err, &out, &errOut)
	}
	return out.String(), nil
}

// ok is tool for a command that must succeed.
func (r *cni) ok(command, network, netns string, variables ...string) string {
	r.h.T.Helper()
	out, err := r.tool(command, network, netns, variables...)
	require.NoError(r.h.T, err)
	return out
}

// result is tool for an ADD.
func (r *cni) result(network, netns string, variables ...string) (*types100.Result, string) {
	r.h.T.Helper()
	out := r.ok("add", network, netns, variables...)
	var version struct{ CNIVersion string }
	require.NoError(r.h.T, json.Unmarshal([]byte(out), &version), out)
	old, err := create.CreateFromBytes([]byte(out))
	require.NoError(r.h.T, err, out)
	result, err := types100.NewResultFromResult(old)
	require.NoError(r.h.T, err, out)
	return result, version.CNIVersion
}

// allocation returns the ID of an allocation that cnitool attached: cnitool
// derives the container ID from the namespace.
func (r *cni) allocation(netns string) string { return cnitoolID(netns) + ".eth0" }

func cnitoolID(netns string) string {
	sum := sha512.Sum512([]byte(netns))
	return fmt.Sprintf("cnitool-%x", sum[:10])
}

// load reads a conflist as libcni does.
func (r *cni) load(network string) *libcni.NetworkConfigList {
	r.h.T.Helper()
	list, err := libcni.LoadNetworkConf(r.conf, network)
	require.NoError(r.h.T, err)
	return list
}

// gc runs GC with a list of valid attachments.
func (r *cni) gc(network string, valid ...string) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, id := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: "eth0"})
	}
	return r.libcni.GCNetworkList(r.h.T.Context(), r.load(network), args)
}

// status runs STATUS and returns the error code, 0 for a network that is ready.
func (r *cni) status(network string) (code uint, text string) {
	r.h.T.Helper()
	err := r.libcni.GetStatusNetworkList(r.h.T.Context(), r.load(network))
	if err == nil {
		return 0, ""
	}
	var coded *types.Error
	require.ErrorAs(r.h.T, err, &coded)
	return coded.Code, coded.Error()
}

// portMapping returns a request for a host port in cnitool's format.
func portMapping(host, container int) string {
	return fmt.Sprintf(`CAP_ARGS={"portMappings":[{"hostPort":%d,"containerPort":%d,"protocol":"tcp"}]}`, host, container)
}

// netns creates a network namespace.
func (h *host) netns(name string) string {
	h.T.Helper()
	return h.Alloc(name).Netns
}

// phases lists all allocations with their phases, from the state directory, except those that
// are torn down: it waits for their deletion.
func (h *host) phases() []string {
	h.T.Helper()
	h.Settle()
	records, err := h.List(h.Context())
	require.NoError(h.T, err)
	all := []string{}
	for _, r := range records {
		all = append(all, r.ID+" "+string(r.Phase))
	}
	return all
}

// newCNI returns a host with the network "net", a daemon that is not started
// yet, and a runtime whose network "runtime" delegates to "net".
func newCNI(t *testing.T) *cni {
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	r := h.newDaemon("").runtime()
	r.list("runtime", "1.1.0", r.ours("delegate", "net"))
	return r
}

func (r *cni) running() bool {
	if r.cmd == nil {
		return false
	}
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// mode is a state of the daemon, or a way to restart it, before a step.
type mode struct {
	name string
	turn func(r *cni)
}

// modes are all modes.
var modes = []mode{
	{"up", func(r *cni) { r.turn(false, nil) }},
	{"away", func(r *cni) {
		if r.running() {
			r.kill()
		}
	}},
	{"restarted", func(r *cni) { r.turn(true, r.term) }},
	{"killed and started", func(r *cni) { r.turn(true, r.kill) }},
}

// awayAndUp are two modes in which results must not differ. The daemon runs in
// the last one, and removes its socket when it ends.
var awayAndUp = []mode{modes[1], modes[0]}

// turn ensures that the daemon runs. If another is true and it runs already,
// turn ends it and starts another one.
func (r *cni) turn(another bool, end func()) {
	r.h.T.Helper()
	switch {
	case !r.running():
	case another:
		end()
	default:
		return
	}
	r.begin()
	r.told("READY=1")
}

// TestDaemonTurns runs the life of an attachment while the daemon is stopped,
// started and restarted. For every two steps, all pairs of modes occur.
func TestDaemonTurns(t *testing.T) {
	r := newCNI(t)
	double := [4]int{0, 2, 3, 1} // multiplication by two in the field of four elements
	for a := range modes {
		for b := range modes {
			if !skip.Has(t, b, len(modes)) {
				continue
			}
			r.life(fmt.Sprintf("t%d%d", a, b), [4]int{a, b, a ^ b, a ^ double[b]})
		}
	}
	modes[0].turn(r) // a daemon that runs removes its socket when it ends
}

// life runs ADD, CHECK, GC and DEL, and changes the mode of the daemon before
// each. GC removes a second attachment that its runtime does not list any more.
func (r *cni) life(name string, turns [4]int) {
	r.h.T.Helper()
	netns, stale := r.h.netns(name), name+"s"
	doing := ""
	turn := func(step int, command string) {
		doing = fmt.Sprintf("%s of %v", command, turns)
		modes[turns[step]].turn(r)
	}
	turn(0, "ADD")
	result, _ := r.result("runtime", netns, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web", portMapping(8080, 80))
	require.Equal(r.h.T, "eth0", result.Interfaces[*result.IPs[0].Interface].Name, doing)
	_, err := r.plugin("ADD", stale, r.h.netns(stale), r.pluginConfig(map[string]any{"delegate": "net"}))
	require.NoError(r.h.T, err, doing)
	id := r.allocation(netns)
	require.Equal(r.h.T, []string{id + " ready", stale + ".eth0 ready"}, r.h.phases(), doing)
	turn(1, "CHECK")
	_, err = r.tool("check", "runtime", netns)
	require.NoError(r.h.T, err, doing)
	turn(2, "GC")
	require.NoError(r.h.T, r.gc("runtime", cnitoolID(netns)), doing)
	require.Equal(r.h.T, []string{id + " ready"}, r.h.phases(), doing)
	_, err = r.tool("check", "runtime", netns)
	require.NoError(r.h.T, err, doing)
	turn(3, "DEL")
	for range 2 {
		_, err = r.tool("del", "runtime", netns)
		require.NoError(r.h.T, err, doing)
	}
	require.Empty(r.h.T, r.h.phases(), doing)
}

// TestDaemonCnitool runs each command of cnitool with all its options.
func TestDaemonCnitool(t *testing.T) {
	r := newCNI(t)
	for _, mode := range awayAndUp {
		mode.turn(r)
		netns := r.h.netns("c1" + mode.name)
		testbed.Serve(t, netns, "tcp", 80, "c1")
		r.ok("status", "runtime", netns)
		result, _ := r.result("runtime", netns, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web", portMapping(8080, 80))
		require.Equal(t, "10.99.0", result.IPs[0].Address.IP.String()[:7])
		testbed.RequireAnswer(t, r.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "c1")
		record, err := r.h.Get(t.Context(), r.allocation(netns))
		require.NoError(t, err)
		require.Equal(t, "cni/runtime", record.Scope)
		r.ok("check", "runtime", netns)
		privhost.FlushRuleset(t)
		r.ok("check", "runtime", netns)
		testbed.RequireAnswer(t, r.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "c1")
		r.ok("gc", "runtime", netns)
		require.Empty(t, r.h.phases(), "cnitool knows of nothing that is valid")
		testbed.RequireRefused(t, r.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))
		r.ok("del", "runtime", netns)
		r.ok("status", "runtime", netns)
		_, err = r.tool("check", "runtime", netns)
		require.ErrorContains(t, err, "not found")
	}
}

// TestDaemonSharedPorts: a container on two networks publishes its port on
// both, as Podman and nerdctl request it. After one attachment is removed, the
// port answers on the other one.
func TestDaemonSharedPorts(t *testing.T) {
	r := newCNI(t)
	r.h.Network("back", testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, "")...)
	r.list("second", "1.0.0", r.ours("delegate", "back"))
	networks := []string{"runtime", "second"}
	for _, engine := range []string{"auto", "exec"} {
		r.configure(fmt.Sprintf("engine = %q", engine))
		for _, mode := range awayAndUp {
			mode.turn(r)
			for goes := range networks {
				if (engine == "exec" || testing.Short()) && (goes == 0) != (mode.name == "up") {
					continue // the modes differ only in time
				}
				if engine == "exec" && !skip.Has(t, goes, len(networks)) {
					continue
				}
				netns := r.h.netns(fmt.Sprint("s", goes, engine, mode.name))
				testbed.Serve(t, netns, "tcp", 80, "web")
				for i, network := range networks {
					r.result(network, netns, fmt.Sprint("CNI_IFNAME=eth", i), portMapping(8080, 80))
				}
				testbed.RequireAnswer(t, r.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "web")
				other := r.h.netns(fmt.Sprint("o", goes, engine, mode.name))
				r.ok("add", "runtime", other, portMapping(8080, 80)) // it waits
				testbed.RequireAnswer(t, r.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "web")
				r.ok("del", "runtime", other, portMapping(8080, 80))
				leave := func(i int) { r.ok("del", networks[i], netns, fmt.Sprint("CNI_IFNAME=eth", i)) }
				leave(goes)
				if engine != "exec" { // the DEL of the reference plugin loopback brings lo down
					r.ok("check", networks[1-goes], netns, fmt.Sprint("CNI_IFNAME=eth", 1-goes))
				}
				testbed.RequireAnswer(t, "", "tcp", testbed.HostPort(testhost.Host4, 8080), "web")
				leave(1 - goes)
				require.Empty(t, r.h.phases())
			}
		}
	}
}

// TestDaemonVersions checks that results have the version that the runtime
// requested.
func TestDaemonVersions(t *testing.T) {
	r := newCNI(t)
	for _, mode := range awayAndUp {
		mode.turn(r)
		for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			r.list("old", version, r.ours("delegate", "net"))
			netns := r.h.netns("v" + strings.ReplaceAll(version, ".", "") + mode.name)
			result, got := r.result("old", netns, portMapping(8080, 80))
			require.Equal(t, version, got)
			require.Len(t, result.IPs, 2)
			if version >= "0.4.0" {
				r.ok("check", "old", netns)
			}
			r.ok("del", "old", netns)
			require.Empty(t, r.h.phases())
		}
	}
}

// TestDaemonPicksUp: a restarted daemon knows the changes that were made while
// it was not running.
func TestDaemonPicksUp(t *testing.T) {
	r := newCNI(t)
	up, away := modes[0].turn, modes[1].turn
	a, b := r.h.netns("a"), r.h.netns("b")
	r.result("runtime", a, portMapping(8080, 80))
	r.result("runtime", b)
	up(r)
	records, err := r.client().List(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 2)
	for _, netns := range []string{a, b} {
		require.NoError(t, r.client().Check(t.Context(), configurator.Allocation{ID: r.allocation(netns)}))
	}
	_, err = r.client().GC(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, r.h.phases(), 2, "who does not speak CNI does not know of them")
	require.NoError(t, r.client().Teardown(t.Context(), configurator.Allocation{ID: r.allocation(a)}))
	r.ok("del", "runtime", a)
	away(r)
	r.ok("del", "runtime", b)
	up(r)
	records, err = r.client().List(t.Context())
	require.NoError(t, err)
	require.Empty(t, records)
}

// compositions returns networks that specify the plugin's work in different
// ways.
func compositions(r *cni) map[string][]map[string]any {
	inline := testbed.Chain("bridge", testbed.Dual, "")
	portmap := map[string]any{"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true}}
	reference := testbed.Chain("bridge", testbed.Dual, "iptables")[1]
	return map[string][]map[string]any{
		"delegate":  {r.ours("delegate", "net")},
		"delegates": {r.ours("delegates", []string{"net", "back"})},
		"inline":    {r.ours("plugins", inline)},
		"chain":     {reference, r.ours("plugins", []any{portmap}), {"type": "tuning", "sysctl": map[string]string{"net.ipv4.conf.IFNAME.arp_filter": "1"}}},
		"between":   {{"type": "loopback"}, r.ours("delegate", "net")},
	}
}

// TestDaemonCompositions: networks of a runtime in which allocnet's plugin is
// the only one, or one of several, have the same result.
func TestDaemonCompositions(t *testing.T) {
	r := newCNI(t)
	r.h.Network("back", testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, "")...)
	networks := compositions(r)
	for e, engine := range []string{"auto", "exec"} {
		r.configure(fmt.Sprintf("engine = %q", engine))
		for m, mode := range awayAndUp {
			mode.turn(r)
			for i, name := range slices.Sorted(maps.Keys(networks)) {
				if !skip.Has(t, e+m+i, len(awayAndUp)) {
					continue
				}
				if engine == "exec" && name != "inline" {
					continue // the modes differ only in time
				}
				t.Log(engine, mode.name, name)
				r.list("made", "1.1.0", networks[name]...)
				r.requireComposition(strings.Fields(name)[0] + engine + mode.name)
			}
		}
	}
}

// requireComposition runs the life of a container in the network "made".
func (r *cni) requireComposition(name string) {
	t := r.h.T
	t.Helper()
	netns := r.h.netns(name)
	testbed.Serve(t, netns, "tcp", 80, name)
	result, _ := r.result("made", netns, portMapping(8080, 80))
	testbed.RequireAnswer(t, r.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), name)
	if strings.HasPrefix(name, "delegates") {
		require.Len(t, result.IPs, 4)
	}
	r.ok("check", "made", netns)
	require.NoError(t, r.gc("made", cnitoolID(netns)))
	r.ok("check", "made", netns)
	r.ok("del", "made", netns)
	require.Empty(t, r.h.phases())
	testbed.RequireRefused(t, r.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))
}

// TestDaemonPathOfTheRuntime: a plugin that is only in the runtime's CNI_PATH
// runs for ADD, and for CHECK and DEL without that CNI_PATH, with and without
// the daemon. If its directory is missing, DEL names the missing plugin. After
// the directory is restored, DEL succeeds.
func TestDaemonPathOfTheRuntime(t *testing.T) {
	r := newCNI(t)
	dir := t.TempDir()
	program, err := os.ReadFile(filepath.Join(testbed.PluginDir, "ptp"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), program, 0o755))
	r.h.Network("mine", map[string]any{"type": "mine", "ipam": testbed.V4Only.IPAM()})
	r.list("with-mine", "1.0.0", r.ours("delegate", "mine"))
	path := "CNI_PATH=" + r.bin + ":" + dir
	for _, mode := range awayAndUp {
		mode.turn(r)
		netns := r.h.netns("path-" + mode.name)
		_, err := r.tool("add", "with-mine", netns)
		require.ErrorContains(t, err, `needs plugin "mine"`)
		r.ok("add", "with-mine", netns, path)
		r.ok("check", "with-mine", netns)
		require.NoError(t, os.Rename(dir, dir+"-away"))
		_, err = r.tool("del", "with-mine", netns, path)
		require.ErrorContains(t, err, "mine")
		require.Len(t, r.h.phases(), 1)
		require.NoError(t, os.Rename(dir+"-away", dir))
		r.ok("del", "with-mine", netns)
		require.Empty(t, r.h.phases())
	}
}

// TestDaemonNetnsOverride: the host's own namespace is set up with
// CNI_NETNS_OVERRIDE, as the plugins themselves do, and refused without it.
func TestDaemonNetnsOverride(t *testing.T) {
	r := newCNI(t)
	const own, ifName = "/proc/self/ns/net", "CNI_IFNAME=over0"
	r.h.Network("routeless", map[string]any{"type": "bridge", "bridge": "br-test", "ipam": map[string]any{"type": "host-local", "subnet": "10.98.0.0/24"}})
	r.list("runtime", "1.0.0", r.ours("delegate", "routeless"))
	for _, mode := range awayAndUp {
		mode.turn(r)
		_, err := r.tool("add", "runtime", own, ifName)
		require.ErrorContains(t, err, "network namespace of the host")
		result, _ := r.result("runtime", own, ifName, "CNI_NETNS_OVERRIDE=1")
		link, err := netlink.LinkByName("over0")
		require.NoError(t, err)
		require.Equal(t, link.Attrs().HardwareAddr.String(), result.Interfaces[*result.IPs[0].Interface].Mac)
		r.ok("check", "runtime", own, ifName, "CNI_NETNS_OVERRIDE=1")
		r.ok("del", "runtime", own, ifName, "CNI_NETNS_OVERRIDE=1")
		require.Empty(t, r.h.phases())
	}
}
