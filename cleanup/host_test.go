package cleanup

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/internal/testing/shard"
	"github.com/allocnet/allocnet/portmap"
)

func TestMain(m *testing.M) {
	os.Exit(shard.Main(m, 2, func() int { return privhost.Main(m) }))
}

// network describes a conflist of reference plugins.
type network struct {
	name    string
	kind    string // bridge or ptp
	backend string // iptables or nftables
	subnets []string
	ipam    string // instead of host-local with the subnets
	extra   string // further plugins
}

// conflist is the network's configuration with leases below dataDir.
func (n network) conflist(dataDir string) []byte {
	ipam := n.ipam
	if ipam == "" {
		var sets []string
		for _, subnet := range n.subnets {
			sets = append(sets, fmt.Sprintf(`[{"subnet": %q}]`, subnet))
		}
		ipam = fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "ranges": [%s]}`, dataDir, strings.Join(sets, ","))
	}
	return fmt.Appendf(nil, `{
		"cniVersion": "1.0.0", "name": %q, "plugins": [
			{"type": %q, "bridge": "cni-test", "ipMasq": true, "ipMasqBackend": %q, "isGateway": true, "ipam": %s},
			{"type": "portmap", "backend": %q, "snat": true, "capabilities": {"portMappings": true}},
			{"type": "firewall", "backend": "iptables"} %s
		]}`, n.name, n.kind, n.backend, ipam, n.backend, n.extra)
}

// testHost is the state of the private host that one test has to itself.
type testHost struct {
	t                 *testing.T
	dataDir, cacheDir string
}

func newTestHost(t *testing.T) *testHost {
	privhost.Require(t, "iptables", "ip6tables", "nft")
	h := &testHost{t: t, dataDir: t.TempDir(), cacheDir: t.TempDir()}
	t.Cleanup(h.clear)
	h.clear()
	return h
}

// clear restores the private host to its initial state.
func (h *testHost) clear() {
	privhost.FlushRuleset(h.t)
	require.NoError(h.t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	links, err := retry.List(netlink.LinkList)
	require.NoError(h.t, err)
	for _, link := range links {
		if link.Type() == "bridge" || link.Type() == "ifb" || link.Type() == "veth" {
			_ = netlink.LinkDel(link) // the peer of a deleted veth is gone already
		}
	}
}

func (h *testHost) run(command string, args ...string) string {
	h.t.Helper()
	out, err := exec.Command(command, args...).CombinedOutput()
	require.NoError(h.t, err, "%s %s: %s", command, args, out)
	return string(out)
}

// netns creates a network namespace that exists until the test ends or removes
// it.
func (h *testHost) netns(name string) string {
	h.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	require.NoError(h.t, err)
	defer own.Close()
	handle, err := netns.NewNamed(name)
	require.NoError(h.t, err)
	require.NoError(h.t, handle.Close())
	// Duplicate address detection would take seconds.
	require.NoError(h.t, os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
	require.NoError(h.t, netns.Set(own))
	h.t.Cleanup(func() { _ = netns.DeleteNamed(name) }) // the test may have done so
	return "/run/netns/" + name
}

var testPorts = []portmap.Mapping{
	{HostPort: 18080, ContainerPort: 80, Protocol: "tcp"},
	{HostPort: 18080, ContainerPort: 80, Protocol: "udp"},
	{HostPort: 18443, ContainerPort: 443, Protocol: "tcp", HostIP: "127.0.0.1"},
}

// add attaches a new sandbox to a network, and returns the target with all that
// is known about it.
func (h *testHost) add(n network, id string, ports []portmap.Mapping) Target {
	h.t.Helper()
	return h.attach(n, Target{ID: id, Netns: h.netns("sandbox-" + id), Ports: ports, CacheDirs: []string{h.cacheDir}})
}

// attach attaches a sandbox to another network.
func (h *testHost) attach(n network, t Target) Target {
	h.t.Helper()
	plugins, err := refplugins.Dir()
	require.NoError(h.t, err)
	conf := n.conflist(h.dataDir)
	list, err := libcni.ConfListFromBytes(conf)
	require.NoError(h.t, err)
	ifName := fmt.Sprintf("eth%d", len(t.Attachments))
	cni := libcni.NewCNIConfigWithCacheDir([]string{plugins}, h.cacheDir, nil)
	runtime := &libcni.RuntimeConf{
		ContainerID: t.ID, NetNS: t.Netns, IfName: ifName,
		CapabilityArgs: map[string]any{
			"portMappings": t.Ports,
			"bandwidth":    map[string]any{"ingressRate": 8e6, "ingressBurst": 8e6, "egressRate": 8e6, "egressBurst": 8e6},
		},
	}
	result, err := cni.AddNetworkList(context.Background(), list, runtime)
	for err != nil && strings.Contains(err.Error(), "still has tentative addresses") {
		// The reference plugin waits for 5 s, which is not enough for the kernel while other tests change many links.
		require.NoError(h.t, cni.DelNetworkList(context.Background(), list, runtime))
		result, err = cni.AddNetworkList(context.Background(), list, runtime)
	}
	require.NoError(h.t, err)
	data, err := json.Marshal(result)
	require.NoError(h.t, err)
	t.Attachments = append(t.Attachments, Attachment{Network: n.name, IfName: ifName, Config: conf, Result: data})
	return t
}

// snapshot returns the state of the host that allocations change and that must
// not stay.
func (h *testHost) snapshot() string {
	h.t.Helper()
	var b strings.Builder
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"nat", "filter"} {
			fmt.Fprintf(&b, "# %s %s\n%s", command, table, h.run(command, "-t", table, "-S"))
		}
	}
	for _, table := range strings.Split(strings.TrimSpace(h.run("nft", "list", "tables")), "\n") {
		if strings.Contains(table, "cni_") {
			b.WriteString(h.run("nft", append([]string{"list"}, strings.Fields(table)...)...))
		}
	}
	links, err := retry.List(netlink.LinkList)
	require.NoError(h.t, err)
	for _, link := range links {
		fmt.Fprintf(&b, "# link %s\n", link.Attrs().Name)
	}
	for _, dir := range []string{h.dataDir, h.cacheDir} {
		for path, content := range h.files(dir) {
			fmt.Fprintf(&b, "# file %s: %q\n", path, content)
		}
	}
	return sortedLines(b.String())
}

// files returns the leases and cached results below a directory, without
// host-local's shared files.
func (h *testHost) files(dir string) map[string]string {
	files := make(map[string]string)
	require.NoError(h.t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() || info.Name() == "lock" || strings.HasPrefix(info.Name(), "last_reserved_ip.") {
			return err
		}
		data, err := os.ReadFile(path)
		files[path] = string(data)
		return err
	}))
	return files
}

// sortedLines sorts the lines about files, and keeps the order of rules.
func sortedLines(text string) string {
	var rules, files []string
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "# file") {
			files = append(files, line)
		} else {
			rules = append(rules, line)
		}
	}
	return strings.Join(append(rules, sortedCopy(files)...), "\n")
}

// audit runs Audit, which must succeed.
func (h *testHost) audit(t Target) []string {
	h.t.Helper()
	return h.texts(Audit(context.Background(), t))
}

// force runs Force, which must succeed.
func (h *testHost) force(t Target) []string {
	h.t.Helper()
	return h.texts(Force(context.Background(), t))
}

func (h *testHost) texts(list []Leftover, err error) []string {
	h.t.Helper()
	require.NoError(h.t, err)
	texts := make([]string, 0, len(list))
	for _, l := range list {
		texts = append(texts, l.String())
	}
	return texts
}

// counts returns the number of leftovers of each kind in each place.
func counts(t *testing.T, target Target) map[string]int {
	t.Helper()
	list, err := Audit(context.Background(), target)
	require.NoError(t, err)
	n := make(map[string]int)
	for _, l := range list {
		where := l.Where
		if l.Kind == KindLease || l.Kind == KindCache {
			where = ""
		}
		n[strings.TrimSpace(string(l.Kind)+" "+where)]++
	}
	return n
}

// acceptsIn returns the firewall plugin's rules for an address in a snapshot.
func acceptsIn(snapshot, addr string) []string {
	var list []string
	for _, line := range strings.Split(snapshot, "\n") {
		if strings.HasPrefix(line, "-A CNI-FORWARD") && strings.Contains(line, addr+"/") {
			list = append(list, line)
		}
	}
	return list
}

// awaitNoLink waits until the kernel has deleted the target's link after its
// namespace.
func awaitNoLink(t *testing.T, target Target) {
	t.Helper()
	require.Eventually(t, func() bool { return counts(t, target)["link"] == 0 }, 10*time.Second, 5*time.Millisecond)
}
