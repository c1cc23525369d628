package testbed

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
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

// Host is the host of one test: the private host of the test binary, connected
// to an external machine, with a configurator.
type Host struct {
	*configurator.Configurator
	T       testing.TB
	Config  configurator.Config // that of the configurator
	ConfDir string              // directory of the configurations
	Outside *sandbox.Sandbox    // the external machine
	pools   *pools              // nil in a test without pools
	open    map[string]bool     // networks whose plugins are all openPlugins
}

// New returns a host with one engine. At the end of the test, the host must
// be unchanged.
func New(t testing.TB, engine configurator.Engine, change ...func(*configurator.Config)) *Host {
	t.Helper()
	privhost.Require(t, "iptables", "ip6tables")
	h := &Host{T: t, ConfDir: filepath.Join(t.TempDir(), "net.d"), open: map[string]bool{}}
	require.NoError(t, os.Mkdir(h.ConfDir, 0o755))
	Fresh(t)
	h.Outside = testhost.Outside(t)
	libcni.CacheDir = "/var/lib/cni"
	before, err := hostsnap.Take(SnapshotOptions)
	require.NoError(t, err)
	t.Cleanup(func() { h.requireUnchanged(before) })
	h.Config = configurator.Config{
		Engine: engine, ConfDir: h.ConfDir, PluginDirs: []string{PluginDir}, Logger: hclog.New(&hclog.LoggerOptions{Output: testhost.Log{TB: t}, Level: hclog.Info}),
	}
	for _, f := range change {
		f(&h.Config)
	}
	h.Configurator, err = configurator.New(h.Config)
	require.NoError(t, err)
	h.usePools()
	return h
}

// SnapshotOptions ignores what the first use of a network leaves on purpose.
var SnapshotOptions = hostsnap.Options{Persistent: true, Tracked: IsAllocations, Ignore: func(line string) bool {
	return strings.HasPrefix(line, "file "+configurator.DefaultStateDir+"/warm/") ||
		strings.HasPrefix(line, "file "+configurator.DefaultStateDir+"/claims/complete-3 ") ||
		strings.HasPrefix(line, "file "+configurator.DefaultStateDir+"/allocnetd.sock.settings ") // written by the daemon
}}

// requireUnchanged fails a test that changed the host, and then removes the
// bridges that may stay. It cleans up after a failed test, so that the next
// test is not affected.
func (h *Host) requireUnchanged(before hostsnap.Snapshot) {
	h.T.Helper()
	if h.T.Failed() {
		_, err := h.GC(context.Background(), nil)
		require.NoError(h.T, err)
	}
	h.Settle()
	after, err := hostsnap.Take(SnapshotOptions)
	require.NoError(h.T, err)
	require.Empty(h.T, hostsnap.Diff(before, after), "the host is as it was before")
	links, err := retry.List(netlink.LinkList)
	require.NoError(h.T, err)
	for _, l := range links {
		if l.Type() == "bridge" {
			require.NoError(h.T, netlink.LinkDel(l))
		}
	}
}

// Fresh restores the private host to its state before any network was used.
func Fresh(t testing.TB) {
	t.Helper()
	privhost.FlushRuleset(t)
	for _, dir := range []string{configurator.DefaultStateDir, "/var/lib/cni/networks", "/var/lib/cni/results"} {
		require.NoError(t, os.RemoveAll(dir))
	}
}

// Alloc returns an allocation with its own namespace. In a test with pools, the
// namespace exists from Setup to Teardown.
func (h *Host) Alloc(id string) configurator.Allocation {
	h.T.Helper()
	if h.pools != nil {
		return h.pools.alloc(id)
	}
	s, err := sandbox.Create(id)
	require.NoError(h.T, err)
	h.T.Cleanup(func() { require.NoError(h.T, s.Destroy()) })
	return configurator.Allocation{ID: id, Netns: s.Path()}
}

// SetUp sets up an allocation, which must succeed.
func (h *Host) SetUp(a configurator.Allocation) *configurator.Status {
	h.T.Helper()
	s, err := h.Setup(h.Context(), a)
	require.NoError(h.T, err)
	s.Created = false // any of several Setups may have created it
	return s
}

// maxReached bounds the allocations of one TearDown that have to be reached before.
const maxReached = 3

// TearDown tears down allocations, which must succeed. Before that, those that CHECK calls healthy must be reached.
func (h *Host) TearDown(allocs ...configurator.Allocation) {
	h.T.Helper()
	for _, a := range allocs[:min(len(allocs), maxReached)] {
		h.requireReached(a)
	}
	h.TearDownUnreached(allocs...)
}

// TearDownUnreached tears down allocations that need not be reached, which must succeed.
func (h *Host) TearDownUnreached(allocs ...configurator.Allocation) {
	h.T.Helper()
	for _, a := range allocs {
		require.NoError(h.T, h.Teardown(h.Context(), a))
	}
	h.Settle()
	records, err := h.List(h.Context())
	require.NoError(h.T, err)
	for _, r := range records {
		for _, a := range allocs {
			require.NotEqual(h.T, a.ID, r.ID, "its record is gone")
		}
	}
}

// Settle waits until everything is deleted of the allocations that are torn down.
func (h *Host) Settle() {
	h.T.Helper()
	Settle(h.T, h)
}

// Settle waits until everything is deleted of the allocations of a service that
// are torn down.
func Settle(t testing.TB, service allocnet.Service) {
	t.Helper()
	require.Eventually(t, func() bool {
		records, err := service.List(context.Background())
		return err != nil || !slices.ContainsFunc(records, func(r configurator.Record) bool { return r.Acknowledged })
	}, 20*time.Second, 2*time.Millisecond, "an allocation that is torn down is not deleted")
}

// In returns the host for a subtest.
func (h *Host) In(t testing.TB) *Host {
	sub := *h
	sub.T = t
	return &sub
}

// Context bounds one operation of a test.
func (h *Host) Context() context.Context {
	ctx, cancel := context.WithTimeout(h.T.Context(), 2*time.Minute)
	h.T.Cleanup(cancel)
	return ctx
}

// IDs returns n names.
func IDs(prefix string, n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%d", prefix, i))
	}
	return names
}

// SetSysctls sets sysctls of a namespace until the test ends. "" is the host.
func SetSysctls(t testing.TB, netns string, values map[string]string) {
	t.Helper()
	for name, value := range values {
		var before []byte
		Within(t, netns, func() (err error) {
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

// Within runs a function in a namespace. "" is the host.
func Within(t testing.TB, netns string, fn func() error) {
	t.Helper()
	require.NoError(t, within(netns, fn))
}

func within(netns string, fn func() error) error {
	if netns == "" {
		return fn()
	}
	s, err := sandbox.Open(netns)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Do(fn)
}

// HostLink returns the name of an allocation's veth on the host.
func HostLink(t *testing.T, s *configurator.Status) string {
	t.Helper()
	for _, i := range s.Interfaces {
		if l, err := netlink.LinkByName(i.Name); i.Sandbox == "" && err == nil && l.Type() == "veth" {
			return i.Name
		}
	}
	t.Fatalf("no veth among %v", s.Interfaces)
	return ""
}

// Quick contains sysctls that remove delays: the host always reports closed
// ports, and uses its link-local addresses at once.
var Quick = map[string]string{
	"net/ipv4/icmp_ratelimit":          "0",
	"net/ipv6/icmp/ratelimit":          "0",
	"net/ipv6/conf/default/accept_dad": "0",
}

// Entries returns the number of entries of a directory.
func Entries(t testing.TB, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	return len(list)
}

// IsAllocations reports whether an address belongs to a test network and is not
// a gateway's.
func IsAllocations(addr netip.Addr) bool {
	return slices.ContainsFunc([]string{"10.99.0.0/16", Dual.V6}, func(network string) bool {
		subnet, err := addr.Prefix(map[bool]int{true: 24, false: 64}[addr.Is4()])
		return err == nil && netip.MustParsePrefix(network).Contains(addr) && addr != subnet.Addr().Next()
	})
}
