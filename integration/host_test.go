package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/nftables"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/sandbox"
)

// The addresses of the link between the host and the external machine.
var (
	host4, host4b      = testhost.Host4, testhost.Host4b
	host6, host6b      = testhost.Host6, testhost.Host6b
	outside4, outside6 = testhost.Outside4, testhost.Outside6
)

// host is the host of one test: the private host of the test binary, connected
// to an external machine, with a configurator.
type host struct {
	*configurator.Configurator
	t       testing.TB
	cfg     configurator.Config
	conf    string
	outside *sandbox.Sandbox
	pools   *pools // nil in a test without pools
}

const wire = testhost.Wire

// newHost returns a host with one engine. At the end of the test, the host must
// be unchanged.
func newHost(t testing.TB, engine configurator.Engine, change ...func(*configurator.Config)) *host {
	t.Helper()
	privhost.Require(t, "iptables", "ip6tables")
	h := &host{t: t, conf: filepath.Join(t.TempDir(), "net.d")}
	require.NoError(t, os.Mkdir(h.conf, 0o755))
	freshHost(t)
	h.outside = testhost.Outside(t)
	libcni.CacheDir = "/var/lib/cni"
	before, err := hostsnap.Take(snapshotOptions)
	require.NoError(t, err)
	t.Cleanup(func() { h.requireUnchanged(before) })
	h.cfg = configurator.Config{
		Engine: engine, ConfDir: h.conf, PluginDirs: []string{pluginDir}, Logger: hclog.New(&hclog.LoggerOptions{Output: testhost.Log{TB: t}, Level: hclog.Info}),
	}
	for _, f := range change {
		f(&h.cfg)
	}
	h.Configurator, err = configurator.New(h.cfg)
	require.NoError(t, err)
	h.usePools()
	return h
}

// snapshotOptions ignores what the first use of a network leaves on purpose.
var snapshotOptions = hostsnap.Options{Persistent: true, Tracked: isAllocations, Ignore: func(line string) bool {
	return strings.HasPrefix(line, "file "+configurator.DefaultStateDir+"/warm/") ||
		strings.HasPrefix(line, "file "+configurator.DefaultStateDir+"/claims/complete-2 ") ||
		strings.HasPrefix(line, "file "+configurator.DefaultStateDir+"/allocnetd.sock.settings ") // written by the daemon
}}

// requireUnchanged fails a test that changed the host, and then removes the
// bridges that may stay. It cleans up after a failed test, so that the next
// test is not affected.
func (h *host) requireUnchanged(before hostsnap.Snapshot) {
	h.t.Helper()
	if h.t.Failed() {
		_, err := h.GC(context.Background(), nil)
		require.NoError(h.t, err)
	}
	h.settle()
	after, err := hostsnap.Take(snapshotOptions)
	require.NoError(h.t, err)
	require.Empty(h.t, hostsnap.Diff(before, after), "the host is as it was before")
	links, err := retry.List(netlink.LinkList)
	require.NoError(h.t, err)
	for _, l := range links {
		if l.Type() == "bridge" {
			require.NoError(h.t, netlink.LinkDel(l))
		}
	}
}

// freshHost restores the private host to its state before any network was used.
func freshHost(t testing.TB) {
	t.Helper()
	flushRuleset(t)
	for _, dir := range []string{configurator.DefaultStateDir, "/var/lib/cni/networks", "/var/lib/cni/results"} {
		require.NoError(t, os.RemoveAll(dir))
	}
}

// flushRuleset runs "nft flush ruleset".
func flushRuleset(t testing.TB) {
	t.Helper()
	c, err := nftables.New()
	require.NoError(t, err)
	c.FlushRuleset()
	require.NoError(t, c.Flush())
}

// network writes a conflist.
func (h *host) network(name string, plugins ...map[string]any) {
	h.t.Helper()
	h.networkOf("1.0.0", name, plugins...)
}

// networkOf writes a conflist with a version of the specification.
func (h *host) networkOf(version, name string, plugins ...map[string]any) {
	h.t.Helper()
	data, err := json.Marshal(map[string]any{"cniVersion": version, "name": name, "plugins": plugins})
	require.NoError(h.t, err)
	require.NoError(h.t, os.WriteFile(filepath.Join(h.conf, name+".conflist"), data, 0o600))
}

// families are the subnets of a test network.
type families struct{ v4, v6 string }

var (
	dual   = families{"10.99.0.0/24", "fd00:99::/64"}
	v4Only = families{v4: "10.99.0.0/24"}
	v6Only = families{v6: "fd00:99::/64"}
)

func (f families) ipam() map[string]any {
	var ranges, routes []any
	if f.v4 != "" {
		ranges = append(ranges, []any{map[string]any{"subnet": f.v4}})
		routes = append(routes, map[string]any{"dst": "0.0.0.0/0"})
	}
	if f.v6 != "" {
		ranges = append(ranges, []any{map[string]any{"subnet": f.v6}})
		routes = append(routes, map[string]any{"dst": "::/0"})
	}
	return map[string]any{"type": "host-local", "ranges": ranges, "routes": routes}
}

// way is an engine and the backend in its networks. Without a backend, the
// native engine uses allocnet's own tables.
type way struct {
	engine  configurator.Engine
	backend string
}

func (w way) String() string { return strings.TrimSpace(string(w.engine) + " " + w.backend) }

var (
	execTables   = way{configurator.EngineExec, "iptables"}
	execNFT      = way{configurator.EngineExec, "nftables"}
	native       = way{configurator.EngineNative, ""}
	nativeTables = way{configurator.EngineNative, "iptables"}
	nativeNFT    = way{configurator.EngineNative, "nftables"}
)

// each runs a test for each engine and backend.
func each(t *testing.T, ways []way, test func(t *testing.T, w way)) {
	t.Helper()
	for _, w := range withPools(t, ways) {
		t.Run(w.String(), func(t *testing.T) {
			if w.backend == "nftables" {
				privhost.Require(t, "nft")
			}
			test(t, w)
		})
	}
}

// eachElsewhere is each for long tests: several run at a time, each on its own
// host, in parallel with later tests.
func eachElsewhere(t *testing.T, ways []way, test func(t *testing.T, w way)) {
	t.Helper()
	byName, order := map[string]way{}, []string{}
	for _, w := range withPools(t, ways) {
		byName[w.String()] = w
		order = append(order, w.String())
	}
	testhost.EachElsewhere(t, order, func(t *testing.T, name string) { each(t, []way{byName[name]}, test) })
}

// engines contains one way for each engine.
var engines = []way{execTables, native}

// chain returns a network of the kind that schedulers generate. backend is ""
// (the plugins choose), "iptables" or "nftables".
func chain(main string, f families, backend string) []map[string]any {
	first := map[string]any{"type": main, "ipMasq": true, "ipam": f.ipam()}
	if main == "bridge" {
		first["bridge"], first["isGateway"], first["hairpinMode"] = "br-test", true, true
	}
	firewall := map[string]any{"type": "firewall"}
	portmap := map[string]any{"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true}}
	if backend != "" {
		first["ipMasqBackend"], portmap["backend"], firewall["backend"] = backend, backend, "iptables"
	}
	return []map[string]any{{"type": "loopback"}, first, firewall, portmap}
}

// alloc returns an allocation with its own namespace. In a test with pools, the
// namespace exists from Setup to Teardown.
func (h *host) alloc(id string) configurator.Allocation {
	h.t.Helper()
	if h.pools != nil {
		return h.pools.alloc(id)
	}
	s, err := sandbox.Create(id)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, s.Destroy()) })
	return configurator.Allocation{ID: id, Netns: s.Path()}
}

// setUp sets up an allocation, which must succeed.
func (h *host) setUp(a configurator.Allocation) *configurator.Status {
	h.t.Helper()
	s, err := h.Setup(h.ctx(), a)
	require.NoError(h.t, err)
	s.Created = false // any of several Setups may have created it
	return s
}

// tearDown tears down allocations, which must succeed.
func (h *host) tearDown(allocs ...configurator.Allocation) {
	h.t.Helper()
	for _, a := range allocs {
		require.NoError(h.t, h.Teardown(h.ctx(), a))
	}
	h.settle()
	records, err := h.List(h.ctx())
	require.NoError(h.t, err)
	for _, r := range records {
		for _, a := range allocs {
			require.NotEqual(h.t, a.ID, r.ID, "its record is gone")
		}
	}
}

// settle waits until everything is deleted of the allocations that are torn down.
func (h *host) settle() {
	h.t.Helper()
	settle(h.t, h)
}

func settle(t testing.TB, service allocnet.Service) {
	t.Helper()
	require.Eventually(t, func() bool {
		records, err := service.List(context.Background())
		return err != nil || !slices.ContainsFunc(records, func(r configurator.Record) bool { return r.Acknowledged })
	}, 20*time.Second, 2*time.Millisecond, "an allocation that is torn down is not deleted")
}

// in returns the host for a subtest.
func (h *host) in(t testing.TB) *host {
	sub := *h
	sub.t = t
	return &sub
}

// ctx bounds one operation of a test.
func (h *host) ctx() context.Context {
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Minute)
	h.t.Cleanup(cancel)
	return ctx
}

// ids returns n names.
func ids(prefix string, n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%d", prefix, i))
	}
	return names
}

// logger returns a logger that writes to w.
func logger(w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: w, Level: hclog.Info})
}

// setSysctls sets sysctls of a namespace until the test ends. "" is the host.
func setSysctls(t testing.TB, netns string, values map[string]string) {
	t.Helper()
	for name, value := range values {
		var before []byte
		within(t, netns, func() (err error) {
			if before, err = os.ReadFile("/proc/sys/" + name); err != nil {
				return err
			}
			return os.WriteFile("/proc/sys/"+name, []byte(value), 0)
		})
		if netns == "" {
			t.Cleanup(func() { require.NoError(t, os.WriteFile("/proc/sys/"+name, before, 0)) })
		}
	}
}

// within runs a function in a namespace. "" is the host.
func within(t testing.TB, netns string, fn func() error) {
	t.Helper()
	if netns == "" {
		require.NoError(t, fn())
		return
	}
	s, err := sandbox.Open(netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(fn))
}

// mtuOf returns the MTU of a link in the namespace of the thread.
func mtuOf(t testing.TB, name string) int {
	t.Helper()
	link, err := netlink.LinkByName(name)
	require.NoError(t, err)
	return link.Attrs().MTU
}
