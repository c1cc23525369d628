package configurator

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/testing/firewalldtest"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// hostKind is a host as allocnet finds it. The addresses of its uplink are 192.0.2.7 and fd00:66::7, those of its router
// 192.0.2.1 and fd00:66::1.
type hostKind struct {
	name    string
	prepare func(t *testing.T, r *router)
	v4      bool // without IPv6
	// forwards reports that the host goes on to forward, because another program may need it. The uplink of the test
	// is a veth: without a default route in the table main, it may lead to the container of another program.
	forwards bool
	flush    func(t *testing.T) // what removes the rules; nil for "nft flush ruleset"
}

func commands(lines ...string) func(*testing.T, *router) {
	return func(t *testing.T, _ *router) {
		for _, line := range lines {
			ip(t, line)
		}
	}
}

// setSwitches sets switches of the host until the test ends.
func setSwitches(t *testing.T, value string, names ...string) {
	t.Helper()
	for _, name := range names {
		was, err := rtnl.Sysctl(name)
		require.NoError(t, err)
		require.NoError(t, rtnl.SetSysctl(name, value))
		t.Cleanup(func() { require.NoError(t, rtnl.SetSysctl(name, was)) })
	}
}

// restoreRules loads rules as iptables-restore and ip6tables-restore read them.
func restoreRules(t *testing.T, rules string) {
	t.Helper()
	for _, program := range []string{"iptables-restore", "ip6tables-restore"} {
		cmd := exec.Command(program)
		cmd.Stdin = strings.NewReader(rules)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", program, out)
	}
}

var hostKinds = []hostKind{
	{name: "one default route", prepare: commands()},
	{name: "no default route", forwards: true, prepare: commands("route del default", "-6 route del default")},
	{name: "two default routes", prepare: commands("route add default via 192.0.2.2 dev uplink metric 200", "-6 route add default via fd00:66::2 dev uplink metric 2000")},
	{name: "a default route over two next hops", prepare: commands("route replace default nexthop via 192.0.2.1 dev uplink nexthop via 192.0.2.2 dev uplink", "-6 route del default")},
	{name: "a default route of router advertisements", prepare: func(t *testing.T, r *router) {
		ip(t, "-6 route del default")
		r.requireRoute()
	}},
	{name: "a default route of DHCP", prepare: commands("route del default", "addr change 192.0.2.7/24 dev uplink valid_lft 86400 preferred_lft 86400",
		"route add default via 192.0.2.1 dev uplink proto dhcp src 192.0.2.7 metric 100")},
	{name: "policy routing", forwards: true, prepare: func(t *testing.T, _ *router) {
		for _, family := range []string{"-4", "-6"} {
			ip(t, family+" rule add pref 100 from "+map[string]string{"-4": "192.0.2.7", "-6": "fd00:66::7"}[family]+" lookup 100")
			t.Cleanup(func() { ip(t, family+" rule del pref 100") })
			ip(t, family+" route del default")
		}
		ip(t, "route add default via 192.0.2.1 dev uplink table 100")
		ip(t, "-6 route add default via fd00:66::1 dev uplink table 100")
	}},
	{name: "a bridge with the uplink", prepare: func(t *testing.T, _ *router) { moveTo(t, "link add br0 type bridge", "br0") }},
	{name: "a bridge of another program", forwards: true, prepare: func(t *testing.T, _ *router) { // as of kube-router
		ip(t, "link add brother type bridge")
		t.Cleanup(func() { ip(t, "link del brother") })
		ip(t, "link set brother up")
		ip(t, "route add default dev brother table 77")
	}},
	{name: "a bond with the uplink", prepare: func(t *testing.T, _ *router) {
		err := netlink.LinkAdd(netlink.NewLinkBond(netlink.LinkAttrs{Name: "bond0"}))
		skip.UnlessKernel(t, err == nil, "no bonds: %v", err)
		ip(t, "link set uplink down")
		moveTo(t, "", "bond0")
	}},
	{name: "forwards already", prepare: func(t *testing.T, _ *router) {
		setSwitches(t, "1", "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
	}},
	{name: "IPv6 is off for all", v4: true, prepare: func(t *testing.T, _ *router) { setSwitches(t, "1", "net/ipv6/conf/all/disable_ipv6") }},
	{name: "IPv6 is off by default", v4: true, prepare: func(t *testing.T, _ *router) { setSwitches(t, "1", "net/ipv6/conf/default/disable_ipv6") }},
	{name: "IPv6 is off for the uplink", v4: true, prepare: func(t *testing.T, _ *router) { setSwitches(t, "1", "net/ipv6/conf/uplink/disable_ipv6") }},
	{name: "strict reverse path filter", prepare: func(t *testing.T, _ *router) {
		setSwitches(t, "1", "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter")
	}},
	// The policy and the first chains of Docker 28.
	{name: "Docker's rules", prepare: func(t *testing.T, _ *router) {
		restoreRules(t, "*filter\n:FORWARD DROP\n:DOCKER-USER -\n:DOCKER-FORWARD -\n-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\n"+
			"-A DOCKER-FORWARD -i docker0 -j ACCEPT\nCOMMIT\n*nat\n:DOCKER -\n-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\nCOMMIT\n")
	}},
	{name: "ufw", prepare: func(t *testing.T, _ *router) { startUFW(t) }},
}

// startUFW starts ufw with its settings as they are installed, which deny what is not allowed, to the host and through it. Only ssh is
// allowed.
func startUFW(t *testing.T) {
	privhost.Require(t, "ufw")
	for _, path := range []string{"/etc/ufw", "/etc/default/ufw"} { // which it changes
		own := filepath.Join(t.TempDir(), filepath.Base(path))
		do(t, "cp -a "+path+" "+own)
		require.NoError(t, unix.Mount(own, path, "", unix.MS_BIND, ""))
		t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	}
	settings, err := os.ReadFile("/etc/ufw/sysctl.conf")
	require.NoError(t, err)
	for line := range strings.Lines(string(settings)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			setSwitches(t, value, name)
		}
	}
	do(t, "ufw allow 22/tcp")
	do(t, "ufw --force enable")
	t.Cleanup(func() { do(t, "ufw disable") })
	require.Contains(t, output(t, "ufw status verbose"), "deny (incoming)")
}

// besideFirewalld returns a host with firewalld. It cannot accept addresses after a flush, before it is restarted.
func besideFirewalld() hostKind {
	var f *firewalldtest.Firewalld
	return hostKind{
		name:    "firewalld",
		prepare: func(t *testing.T, _ *router) { f = firewalldtest.StartBus(t).Start("nftables") },
		flush:   func(*testing.T) { f.Reload() },
	}
}

// moveTo makes the uplink a port of another link, which gets its addresses and routes.
func moveTo(t *testing.T, add, name string) {
	t.Helper()
	if add != "" {
		ip(t, add)
	}
	t.Cleanup(func() { ip(t, "link del "+name) })
	ip(t, "link set uplink master "+name)
	ip(t, "link set uplink up")
	ip(t, "addr flush dev uplink scope global")
	ip(t, "link set "+name+" up")
	addUplink(t, name)
}

// addUplink gives a link the addresses and default routes of the host's uplink.
func addUplink(t *testing.T, name string) {
	t.Helper()
	ip(t, "addr replace 192.0.2.7/24 dev "+name)
	ip(t, "addr replace fd00:66::7/64 dev "+name+" nodad")
	ip(t, "route replace default via 192.0.2.1 dev "+name)
	ip(t, "-6 route replace default via fd00:66::1 dev "+name)
}

// TestHostMatrix: whatever the host is like, it keeps its routes and is reached as before, from its first allocation until
// its last one is gone, also when all rules are flushed and restored. Then its switches are as they were, too.
func TestHostMatrix(t *testing.T) {
	for i, kind := range append(hostKinds, besideFirewalld()) {
		for j, network := range []string{"embedded", "bridge"} {
			t.Run(kind.name+"/"+network, func(t *testing.T) {
				skip.InTurn(t, i+j, 4)
				testHostKind(t, kind, network)
			})
		}
	}
}

func testHostKind(t *testing.T, kind hostKind, network string) {
	h := matrixHost(t, network, kind.v4)
	r := newRouter(t)
	r.inside("ip", "addr", "add", "192.0.2.1/24", "dev", "lan")
	r.inside("ip", "addr", "add", "fd00:66::1/64", "dev", "lan", "nodad")
	addUplink(t, "uplink")
	kind.prepare(t, r)
	m := &matrix{testHost: h, router: r, families: []matrixFamily{{"192.0.2.7", "192.0.2.1"}}}
	if !kind.v4 {
		m.families = append(m.families, matrixFamily{"fd00:66::7", "fd00:66::1"})
	}
	answerOn(t, nil, 22)
	answerOn(t, r.ns, 7000)
	m.requireHost("at first")
	switches := switchesOf(t, "brtest")
	m.routes = m.hostRoutes()

	a := h.alloc("a")
	a.Wait, a.Ports = true, []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp"}}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	inside, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	t.Cleanup(func() { _ = inside.Close() })
	answerOn(t, inside, 80)
	m.requireHost("after Setup")
	m.requireAllocation(inside, "after Setup")

	if kind.flush == nil {
		privhost.FlushRuleset(t)
	} else {
		kind.flush(t)
	}
	m.requireHost("after a flush")
	_, err = h.Repair(t.Context())
	require.NoError(t, err)
	m.requireHost("after Repair")
	m.requireAllocation(inside, "after Repair")
	require.NoError(t, h.Check(t.Context(), a))

	require.NoError(t, h.Teardown(t.Context(), a))
	require.NoError(t, h.Close())
	m.requireHost("after Teardown")
	if kind.forwards {
		value, err := rtnl.Sysctl("net/ipv4/ip_forward")
		require.NoError(t, err)
		require.Equal(t, "1", value)
		return
	}
	requireSwitches(t, switches)
}

// matrixHost returns the host of a test of the matrix, with one network.
func matrixHost(t *testing.T, network string, v4 bool) *testHost {
	h := newTestHost(t, func(c *Config) {
		c.Engine, c.Networks = EngineNative, []string{"net"}
		if network == "embedded" {
			c.Networks = []string{conflist.EmbeddedName}
		}
	})
	ranges := `[{"subnet":"10.77.0.0/24"}]`
	routes := `{"dst":"0.0.0.0/0"}`
	if !v4 {
		ranges += `,[{"subnet":"fd00:77::/64"}]`
		routes += `,{"dst":"::/0"}`
	}
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,"ipMasq":true,"hairpinMode":true,`+
		`"ipam":{"type":"host-local","dataDir":"`+t.TempDir()+`","ranges":[`+ranges+`],"routes":[`+routes+`]}},{"type":"firewall"},`+
		`{"type":"portmap","snat":true,"capabilities":{"portMappings":true}}]}`)
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("brtest"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
		privhost.FlushRuleset(t)
	})
	return h
}

type matrixFamily struct{ host, router string }

// matrix is the host of one test of the matrix.
type matrix struct {
	*testHost
	router   *router
	families []matrixFamily
	routes   []string // of the host, before
}

// hostRoutes returns the host's routes without those of allocnet's links, and without those to the anycast addresses that
// routers have (RFC 4291, section 2.6.1): the kernel makes them for a host that forwards.
func (m *matrix) hostRoutes() []string {
	m.t.Helper()
	var list []string
	for line := range strings.Lines(routesOf(m.t)) {
		if !strings.Contains(line, "dev brtest") && !strings.Contains(line, "dev "+names.VethPrefix) && !strings.HasPrefix(line, "anycast ") {
			list = append(list, strings.TrimSpace(line))
		}
	}
	slices.Sort(list)
	return list
}

// requireHost requires the host's routes, and that it reaches the router and is reached.
func (m *matrix) requireHost(when string) {
	m.t.Helper()
	if m.routes != nil {
		require.Equal(m.t, m.routes, m.hostRoutes(), when)
	}
	for _, f := range m.families {
		m.requireAnswer(nil, f.router, 7000, when)
		m.requireAnswer(m.router.ns, f.host, 22, when)
	}
}

// requireAllocation requires that the allocation reaches the router, and that its host port leads to it.
func (m *matrix) requireAllocation(inside *sandbox.Sandbox, when string) {
	m.t.Helper()
	for _, f := range m.families {
		if has6 := strings.Contains(m.addresses(inside), "inet6 fd"); has6 || !strings.Contains(f.host, ":") {
			m.requireAnswer(inside, f.router, 7000, when)
			m.requireAnswer(m.router.ns, f.host, 8080, when)
		}
	}
}

func (m *matrix) addresses(inside *sandbox.Sandbox) (text string) {
	m.t.Helper()
	require.NoError(m.t, inside.Do(func() error {
		out, err := exec.Command("ip", "addr").CombinedOutput()
		text = string(out)
		return err
	}))
	return text
}

func (m *matrix) requireAnswer(from *sandbox.Sandbox, to string, port int, when string) {
	m.t.Helper()
	addr := net.JoinHostPort(to, fmt.Sprint(port))
	require.NoError(m.t, inNetns(from, func() error {
		c, err := net.DialTimeout("tcp", addr, 3*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 2))
		return err
	}), "%s to %s", when, addr)
}

// answerOn answers connections to a port inside a network namespace, nil being that of the host.
func answerOn(t *testing.T, ns *sandbox.Sandbox, port int) {
	t.Helper()
	require.NoError(t, inNetns(ns, func() error {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("ok"))
				c.Close()
			}
		}()
		return nil
	}))
}

func inNetns(ns *sandbox.Sandbox, fn func() error) error {
	if ns == nil {
		return fn()
	}
	return ns.Do(fn)
}
