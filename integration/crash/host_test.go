package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// cell is a kind of network and the engine that sets it up.
type cell struct {
	engine  configurator.Engine
	main    string // bridge or ptp
	backend string // backend in the configuration of its plugins, if any
	mixed   bool   // with a plugin configuration that only a binary supports
	family  family // 0 for both
}

// family restricts a network to addresses of one family.
type family int

const (
	ipv4 family = 4
	ipv6 family = 6
)

// of returns the elements for the families of a cell.
func of[T any](c cell, four, six T) []T {
	switch c.family {
	case ipv4:
		return []T{four}
	case ipv6:
		return []T{six}
	}
	return []T{four, six}
}

func (c cell) String() string {
	words := []string{string(c.engine), c.backend, c.main}
	if c.mixed {
		words[0] = "mixed"
	}
	if c.family != 0 {
		words = append(words, fmt.Sprintf("IPv%d", c.family))
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// plugins returns a chain of the kind that schedulers generate.
func (c cell) plugins() []map[string]any {
	ipam := map[string]any{
		"type": "host-local", "reclaimOnBoot": true,
		"ranges": of(c, []any{map[string]any{"subnet": "10.99.0.0/16"}}, []any{map[string]any{"subnet": "fd00:99::/64"}}),
		"routes": of(c, map[string]any{"dst": "0.0.0.0/0"}, map[string]any{"dst": "::/0"}),
	}
	first := map[string]any{"type": c.main, "ipMasq": true, "ipam": ipam, "capabilities": map[string]bool{"ips": true}}
	if c.main == "bridge" {
		first["bridge"], first["isGateway"], first["hairpinMode"] = "br-test", true, true
	}
	firewall := map[string]any{"type": "firewall"}
	ports := map[string]any{"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true}}
	if c.backend != "" {
		first["ipMasqBackend"], ports["backend"], firewall["backend"] = c.backend, c.backend, "iptables"
	}
	chain := []map[string]any{first}
	if c.mixed {
		chain = append(chain, map[string]any{"type": "tuning", "mtu": 1400, "aKeyOfTomorrow": true})
	}
	chain = append(chain, firewall, ports)
	if c.disconnects() {
		// The subject and the bystander of a ptp network share the route.
		chain = append(chain, map[string]any{"type": "routes", "table": 100, "subnets": c.main == "ptp"},
			map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}},
			map[string]any{"type": "policy", "capabilities": map[string]bool{"policy": true}, "policy": map[string]any{"presets": []string{"no-metadata"}}})
	}
	return chain
}

// bystanderID is the ID of an allocation that no operation may change.
const bystanderID = "bystander"

// host is the private host of the test binary with one network. On it there are
// two allocations: a bystander, and the subject of the operations.
type host struct {
	*configurator.Configurator
	t         *testing.T
	cell      cell
	conf      string
	outside   *sandbox.Sandbox
	bystander configurator.Allocation
	a         configurator.Allocation
	successor configurator.Allocation // requests the addresses of a
	sharer    configurator.Allocation // requests the host port of a
	before    hostsnap.Snapshot
	updates   int // that requireEitherPort or another of its kind has looked at
}

// moreNetwork is the network of attach and detach.
const moreNetwork = "second"

// updatedPort is the host port of the subject after an update.
const updatedPort = 8083

func newHost(t *testing.T, c cell) *host {
	t.Helper()
	privhost.Require(t, "iptables", "ip6tables")
	if c.backend == "nftables" {
		privhost.Require(t, "nft")
	}
	h := &host{t: t, cell: c, conf: filepath.Join(t.TempDir(), "net.d")}
	h.reset()
	require.NoError(t, os.Mkdir(h.conf, 0o755))
	data, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "net", "plugins": c.plugins()})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(h.conf, "net.conflist"), data, 0o600))
	more := `{"cniVersion": "1.1.0", "name": "` + moreNetwork + `", "plugins": [
		{"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.96.0.0/24"}], [{"subnet": "fd00:96::/64"}]],
			"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
		{"type": "firewall"}, {"type": "policy", "capabilities": {"policy": true}}]}`
	require.NoError(t, os.WriteFile(filepath.Join(h.conf, moreNetwork+".conflist"), []byte(more), 0o600))
	h.restart()
	h.outside = testhost.Outside(h.t)
	h.bystander, h.a = h.allocation(bystanderID, 8081), h.allocation("a", 8080)
	h.successor, h.sharer = h.allocation("successor", 8082), h.allocation("sharer", 8080)
	h.a.WaitForPorts, h.sharer.WaitForPorts = true, true
	if c.disconnects() {
		h.bystander.Policy, h.a.Policy, h.successor.Policy = servesOutside("shared"), servesOutside("shared"), servesOutside("successor")
		h.sharer.Policy = servesOutside("shared")
		h.bystander.Labels, h.a.Labels = map[string]string{"app": "shared"}, map[string]string{"app": "shared"}
	}
	h.a.IPs = of(c, "10.99.0.77/16", "fd00:99::77/64")
	h.successor.IPs = h.a.IPs
	h.mustSetUp(h.bystander)
	h.mustSetUp(h.a) // creates what the first use of a network leaves
	require.NoError(t, h.Teardown(h.ctx(), h.a))
	h.before = h.snapshot()
	t.Cleanup(func() {
		require.NoError(t, h.Check(h.ctx(), h.bystander))
		h.requireReachable(h.bystander)
		require.NoError(t, h.Teardown(h.ctx(), h.bystander))
		if link, err := netlink.LinkByName("br-test"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
	})
	return h
}

// reset restores the private host to its state before any network was used.
func (h *host) reset() {
	h.t.Helper()
	h.flushRules()
	for _, dir := range []string{configurator.DefaultStateDir, "/var/lib/cni/networks", "/var/lib/cni/results"} {
		require.NoError(h.t, os.RemoveAll(dir))
	}
}

func (h *host) flushRules() {
	h.t.Helper()
	c, err := nftables.New()
	require.NoError(h.t, err)
	c.FlushRuleset()
	require.NoError(h.t, c.Flush())
}

// restart replaces the configurator, like a new process on the same host.
func (h *host) restart() {
	h.t.Helper()
	var err error
	h.Configurator, err = configuratorOf(h.request(""), hclog.New(&hclog.LoggerOptions{Output: testhost.Log{TB: h.t}, Level: hclog.Warn}))
	require.NoError(h.t, err)
}

// request returns a request for an operation on the subject.
func (h *host) request(operation string) *request {
	return &request{
		Operation: operation, Engine: h.cell.engine, Conf: h.conf, Plugins: []string{pluginDir},
		Allocation: h.a, Live: []string{h.bystander.ID},
	}
}

// ctx bounds one operation of a test.
func (h *host) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	h.t.Cleanup(cancel)
	return ctx
}

func (h *host) netns(name string) *sandbox.Sandbox {
	h.t.Helper()
	s, err := sandbox.Create(name)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, s.Destroy()) })
	return s
}

// allocation returns an allocation with its own namespace, in which a server
// responds with its ID, and with a host port.
func (h *host) allocation(id string, port int) configurator.Allocation {
	h.t.Helper()
	s := h.netns(id)
	require.NoError(h.t, s.Do(func() error {
		l, err := net.Listen("tcp", ":80")
		if err != nil {
			return err
		}
		h.t.Cleanup(func() { l.Close() })
		go serve(l, id)
		return nil
	}))
	return configurator.Allocation{ID: id, Netns: s.Path(), Ports: []portmap.Port{{Value: port, To: 80, Protocols: []string{"tcp"}}}}
}

// servesOutside returns a policy that permits what the tests need, and allocations with a label. Its
// name makes it a policy of its own.
func servesOutside(name string) *policy.Policy {
	return &policy.Policy{
		Egress: &policy.Direction{Default: policy.Deny},
		Ingress: &policy.Direction{Default: policy.Deny, Rules: []policy.Rule{
			{Name: name, Peers: []policy.Peer{{Selector: &policy.Selector{Labels: map[string]string{"app": name}}}}},
			{Peers: []policy.Peer{{Name: "world"}}, Services: []policy.Service{{Protocol: "tcp", Ports: "80"}}},
		}},
	}
}

const (
	dialTime = 5 * time.Second
	dials    = 4
)

func serve(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, name)
		c.Close()
	}
}

// mustSetUp sets up an allocation.
func (h *host) mustSetUp(a configurator.Allocation) {
	h.t.Helper()
	_, err := h.Setup(h.ctx(), a)
	require.NoError(h.t, err)
}

// requireReachable connects to an allocation from outside, through its host
// port, over its families. It repeats failed connects: a kernel under load
// drops packets of all namespaces (the backlog of a CPU is full), and stops
// resolving a MAC after three attempts.
func (h *host) requireReachable(a configurator.Allocation) {
	h.t.Helper()
	if h.cell.engine == configurator.EngineExec {
		h.forgetNeighbours()
	}
	for _, p := range of(h.cell, testhost.Host4, testhost.Host6) {
		require.NoError(h.t, h.reach(a, p))
	}
}

// answers reports whether an allocation is reached through its host port.
func (h *host) answers(a configurator.Allocation) bool {
	h.t.Helper()
	var reached []bool
	for _, p := range of(h.cell, testhost.Host4, testhost.Host6) {
		err := h.reach(a, p)
		if err != nil {
			require.ErrorIs(h.t, err, unix.ECONNREFUSED)
		}
		reached = append(reached, err == nil)
	}
	require.Len(h.t, slices.Compact(reached), 1, "all families are alike")
	return reached[0]
}

// reach connects to an allocation from outside through its host port.
func (h *host) reach(a configurator.Allocation, p netip.Prefix) error {
	address := netip.AddrPortFrom(p.Addr(), uint16(a.Ports[0].Value)).String()
	return h.outside.Do(func() error {
		c, err := net.DialTimeout("tcp", address, dialTime)
		for tries := 1; err != nil && !errors.Is(err, unix.ECONNREFUSED) && tries < dials; tries++ {
			h.t.Logf("%s does not answer: %v", address, err)
			c, err = net.DialTimeout("tcp", address, dialTime)
		}
		if err != nil {
			return err
		}
		defer c.Close()
		said, err := io.ReadAll(c)
		if err == nil && string(said) != a.ID {
			err = fmt.Errorf("%q answers at %s, not %q", said, address, a.ID)
		}
		return err
	})
}

// forgetNeighbours removes the neighbours of a bridge. With the reference
// plugin, their MACs may belong to former holders of the addresses.
func (h *host) forgetNeighbours() {
	h.t.Helper()
	link, err := netlink.LinkByName("br-test")
	if err != nil {
		return // with ptp, each link has its own neighbours
	}
	neighbours, err := retry.List(func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL) })
	require.NoError(h.t, err)
	for _, n := range neighbours {
		if err := netlink.NeighDel(&n); err != nil {
			require.ErrorIs(h.t, err, unix.ENOENT)
		}
	}
}

// snapshotOptions ignores what the first use of a network leaves on purpose.
var snapshotOptions = hostsnap.Options{Persistent: true}

func (h *host) snapshot() hostsnap.Snapshot {
	h.t.Helper()
	s, err := hostsnap.Take(snapshotOptions)
	require.NoError(h.t, err)
	return s
}

// settle waits until the daemon has deleted everything of allocations that are torn down.
func (h *host) settle() {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		records, err := h.List(h.ctx())
		return err != nil || !slices.ContainsFunc(records, func(r configurator.Record) bool { return r.Acknowledged })
	}, 20*time.Second, 2*time.Millisecond, "an allocation that is torn down is not deleted")
}

// requireNothing checks that nothing of the allocation is left: on the host, in
// its namespace, or in the records.
func (h *host) requireNothing() {
	h.t.Helper()
	h.settle()
	require.Empty(h.t, hostsnap.Diff(h.before, h.snapshot()), "the host is as it was before")
	records, err := h.List(h.ctx())
	require.NoError(h.t, err)
	require.Len(h.t, records, 1)
	h.requireNoConnections()
	s := h.open()
	defer s.Close()
	require.NoError(h.t, s.Do(func() error {
		links, err := retry.List(netlink.LinkList)
		if err == nil && len(links) != 1 {
			err = fmt.Errorf("%d links in the namespace, the second is %q", len(links), links[1].Attrs().Name)
		}
		return err
	}))
}

// requireNoConnections checks that no connection of an allocation is tracked.
// It flushes the connections of the host itself, because a search takes the
// kernel long if any exist.
func (h *host) requireNoConnections() {
	h.t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/nf_conntrack")
	require.NoError(h.t, err)
	if len(text) == 0 {
		return
	}
	for line := range strings.Lines(string(text)) {
		require.Regexp(h.t, `dst=(224\.0\.0|ff02:|ff02::)`, line, "no connection of an allocation is tracked")
	}
	require.NoError(h.t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
}

// open opens the allocation's namespace.
func (h *host) open() *sandbox.Sandbox {
	h.t.Helper()
	s, err := sandbox.Open(h.a.Netns)
	require.NoError(h.t, err)
	return s
}

// in returns the host for a subtest.
func (h *host) in(t *testing.T) *host {
	sub := *h
	sub.t = t
	return &sub
}
