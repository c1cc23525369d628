package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/fakeconmon"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/policy"
)

func TestHealthyHost(t *testing.T) {
	r := newRig(t)
	r.all = true
	report := r.examine()
	require.Empty(t, describe(report.Findings))
	require.Len(t, report.Checks, len(checks))
	r.setup("web")
	r.setup("routed", func(a *configurator.Allocation) { a.Networks, a.Ports = []string{"allocnet"}, nil })
	r.healthy()
}

// TestQuickChecks: they find what the host lacks, and run no plugin.
func TestQuickChecks(t *testing.T) {
	r := newRig(t)
	r.plugin("odd", "touch "+r.path("ran")+`; echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'`)
	r.network("20-odd", `{"cniVersion": "1.0.0", "name": "odd", "plugins": [{"type": "odd"}]}`)
	r.setup("web")
	r.sh("sysctl -qw net.ipv4.ip_forward=0")
	report := r.host().ExamineQuickly(t.Context())
	whole := slices.DeleteFunc(r.examine().Findings, func(f Finding) bool { return f.ID == "drift" }) // of CHECK
	require.Equal(t, describe(whole), describe(report.Findings))
	require.Equal(t, "forwarding-off", report.Findings[0].ID)
	require.Less(t, len(report.Checks), len(checks))
	require.NoError(t, os.Remove(r.path("ran")), "the whole examination runs it")
	r.host().ExamineQuickly(t.Context())
	require.NoFileExists(t, r.path("ran"))
	r.sh("sysctl -qw net.ipv4.ip_forward=1")
}

// TestSubnets: a subnet is compared with addresses of links that are down, with routes,
// with other networks, with its own bridge and with name servers.
func TestSubnets(t *testing.T) {
	for name, c := range map[string]struct {
		breaks, undo string
		id           string
		texts        []string
	}{
		"address of a bridge that is down": {"ip link add other type bridge; ip addr add 10.77.0.200/25 dev other", "ip link del other",
			"subnet-overlap", []string{"subnet 10.77.0.0/24 of network \"web\" overlaps with address 10.77.0.200/25 of other"}},
		"a route": {"ip link add v0 type veth peer v1; ip link set v0 up; ip link set v1 up; ip route add 10.64.0.0/12 dev v0", "ip link del v0",
			"subnet-overlap", []string{"overlaps with route 10.64.0.0/12 through v0"}},
		"a route of another table": {"ip link add v0 type veth peer v1; ip link set v0 up; ip route add 10.77.0.64/26 dev v0 table 99", "ip link del v0",
			"subnet-overlap", []string{"overlaps with route 10.77.0.64/26 through v0"}},
		"a black hole for the routed network": {"ip route add blackhole 10.202.128.0/20", "ip route del blackhole 10.202.128.0/20",
			"subnet-overlap", []string{`network "allocnet"`, "route 10.202.128.0/20 without a link"}},
		"IPv6": {"ip link add other type bridge; ip addr add fd0a:110c:2e7::9/56 dev other", "ip link del other",
			"subnet-overlap", []string{`network "allocnet"`, "fd0a:110c:2e7::9/56"}},
		"the bridge has another subnet": {"ip link add web0 type bridge; ip addr add 10.99.0.1/24 dev web0", "true",
			"bridge-subnet", []string{"bridge web0 has address 10.99.0.1/24, which is not in subnet 10.77.0.0/24"}},
		"the bridge has a larger subnet": {"ip link add web0 type bridge; ip addr add 10.77.0.1/16 dev web0", "true",
			"bridge-subnet", []string{"bridge web0 has 10.77.0.1/16"}},
		"the renamed bridge": {"ip link add brx type bridge; ip addr add 10.77.0.1/24 dev brx", "ip link del brx 2>/dev/null || true",
			"subnet-overlap", []string{"overlaps with address 10.77.0.1/24 of brx"}},
		"a name server": {"echo nameserver 10.77.0.53 >/run/resolv; mount --bind /run/resolv /etc/resolv.conf", "umount /etc/resolv.conf",
			"resolver-in-subnet", []string{"name server 10.77.0.53"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.healthy()
			r.sh(c.breaks)
			r.undo(c.undo)
			f := r.finds(c.id, c.texts)
			if name == "the renamed bridge" {
				r.repairs(f)
			} else {
				require.NotContains(t, f.Repair, "ip link del other")
			}
		})
	}
}

// TestReservedSubnets: no network can use the addresses that the kernel treats specially.
func TestReservedSubnets(t *testing.T) {
	r := newRig(t)
	for _, reserved := range []string{"0.0.0.0/8", "127.5.0.0/16", "169.254.0.0/16", "224.0.0.0/16", "240.0.0.0/8", "fe80::/64", "ff05::/64"} {
		r.network("10-web", r.bridge("web", "web0", reserved))
		r.finds("subnet-reserved", []string{"subnet " + reserved + ` of network "web" overlaps with`})
	}
	for _, usual := range []string{"128.0.0.0/16", "100.64.0.0/16", "198.18.0.0/15", "223.0.0.0/16", "fd00::/64", "2001:db8::/64"} {
		r.network("10-web", r.bridge("web", "web0", usual))
		r.healthy()
	}
}

// TestSubnetOfReferencePlugins: the links of reference plugins name no owner.
func TestSubnetOfReferencePlugins(t *testing.T) {
	r := newRig(t)
	dir := filepath.Dir(refplugins.Path(t, "ptp"))
	r.network("10-web", strings.Replace(r.chain("web", "", subnet, ""), `"type": "bridge", "bridge": "", "isGateway": true`, `"type": "ptp"`, 1))
	reference, err := configurator.New(configurator.Config{
		ConfDir: r.path("conf"), StateDir: r.path("state"), PluginDirs: []string{dir}, Engine: configurator.EngineExec, OneShot: true,
	})
	require.NoError(t, err)
	_, err = reference.Setup(t.Context(), configurator.Allocation{ID: "web", OwnNetns: true, Networks: []string{"web"}})
	require.NoError(t, err)
	require.NotContains(t, describe(r.examine().Findings), "overlaps")
	require.NoError(t, reference.Teardown(t.Context(), configurator.Allocation{ID: "web", OwnNetns: true}))
}

// TestSubnetOfAnotherStateDir: two state directories can share a network. An ADD passes over the
// addresses of the other one, so they are no conflict, but a route to more than one address is.
func TestSubnetOfAnotherStateDir(t *testing.T) {
	r := newRig(t)
	r.sh("mkdir -m 700 " + r.path("other"))
	other, err := configurator.New(configurator.Config{ConfDir: r.path("conf"), StateDir: r.path("other"), OneShot: true})
	require.NoError(t, err)
	a := configurator.Allocation{ID: "other", OwnNetns: true, Networks: []string{"allocnet"}}
	t.Cleanup(func() { require.NoError(t, other.Teardown(context.Background(), a)) })
	status, err := other.Setup(t.Context(), a)
	require.NoError(t, err)
	r.healthy()
	r.setup("web", func(a *configurator.Allocation) { a.Networks, a.Ports = []string{"allocnet"}, nil })
	r.healthy()
	r.sh("ip route add 10.202.128.0/20 dev " + status.Interfaces[0].Name)
	r.finds("subnet-overlap", []string{"route 10.202.128.0/20 through veth"})
}

// TestSubnetsOfRoutingDaemons: what the plugin routes writes is no conflict.
func TestSubnetsOfRoutingDaemons(t *testing.T) {
	r := newRig(t)
	for _, keys := range []string{`"table": 100, "subnets": true`, `"table": 200, "protocol": 200`} {
		r.network("10-web", r.chain("web", "web0", subnet, `, {"type": "routes", `+keys+`}`))
		for _, route := range []string{"10.77.0.0/24 table 100 proto 91", "10.77.0.128/25 table 200 proto 200"} {
			r.sh("ip route add unreachable " + route)
			if found := strings.Contains(keys, strings.Fields(route)[2]); found {
				r.healthy()
			} else {
				r.finds("subnet-overlap", []string{"without a link"})
			}
			r.sh("ip route del unreachable " + route)
		}
	}
}

func TestSubnetsOfTwoNetworks(t *testing.T) {
	r := newRig(t)
	r.network("20-db", r.bridge("db", "db0", "10.77.0.128/25"))
	r.finds("subnet-overlap", []string{"subnet 10.77.0.128/25 of network \"db\" overlaps with 10.77.0.0/24 of network \"web\""})
	r.network("20-db", r.bridge("db", "web0", subnet))
	r.finds("subnet-shared", []string{`"web" and "db"`, "on bridge web0"})
	r.network("20-db", r.bridge("db", "db0", "10.78.0.0/25"))
	r.healthy()
}

// TestSubnetsOfFlannel: the address of flannel's tunnel is no conflict; an address of a subnet
// that the host no longer has is one.
func TestSubnetsOfFlannel(t *testing.T) {
	r := newRig(t)
	leased := func(subnet string) {
		text := "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=" + subnet + "\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
		require.NoError(t, os.WriteFile(r.path("subnet.env"), []byte(text), 0o600))
	}
	leased("10.5.1.1/24")
	r.network("20-cluster", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "cluster", "plugins": [
		{"type": "flannel", "subnetFile": %q, "dataDir": %q, "delegate": {"type": "ptp"}, "ipam": {"type": "host-local", "dataDir": %q}}]}`,
		r.path("subnet.env"), r.path("flannel"), r.path("leases")))
	r.sh("ip link add flannel.1 type bridge; ip link set flannel.1 up; ip addr add 10.5.1.0/32 dev flannel.1; ip route add 10.5.2.0/24 dev flannel.1")
	r.undo("ip link del flannel.1")
	r.setup("far", func(a *configurator.Allocation) { a.Networks, a.Ports = []string{"cluster"}, nil })
	r.healthy()
	leased("10.5.3.1/24")
	f := r.finds("address-outside-subnet", []string{`allocation "far" has address 10.5.1.2`, `network "cluster"`})
	require.Contains(t, f.Repair, "allocnet teardown far")
	leased("10.5.1.1/24")
	r.healthy()
	r.sh("ip addr add 10.5.1.77/32 dev flannel.1")
	r.finds("subnet-overlap", []string{"address 10.5.1.77/32 of flannel.1"})
}

// TestForwarding: it is needed only while allocations are set up.
func TestForwarding(t *testing.T) {
	r := newRig(t)
	r.sh("sysctl -qw net.ipv4.ip_forward=0")
	r.healthy()
	r.setup("web")
	r.healthy()
	r.sh("sysctl -qw net.ipv4.ip_forward=0")
	f := r.finds("forwarding-off", []string{"net/ipv4/ip_forward is 0"}, "drift")
	r.repairs(f)
	r.sh("sysctl -qw net/ipv4/conf/web0/forwarding=0")
	r.finds("forwarding-off", []string{"net/ipv4/conf/web0/forwarding is 0"}, "drift")
	r.fixes("forwarding-off")
	r.sh("ip link add up0 type veth peer name up1; ip link set up1 up; ip link set up0 up; ip addr add 192.0.2.2/24 dev up0; ip route add default via 192.0.2.1 dev up0")
	r.undo("ip link del up0")
	r.healthy()
	r.sh("sysctl -qw net/ipv4/conf/up0/forwarding=0")
	r.finds("forwarding-off", []string{"net/ipv4/conf/up0/forwarding is 0"})
	r.fixes("forwarding-off")
}

// TestRoutersIgnored: a host that forwards keeps its IPv6 default route only from links that go on to accept router
// advertisements, and the repair of forwarding makes them.
func TestRoutersIgnored(t *testing.T) {
	r := newRig(t)
	r.sh(`ip link add up0 type veth peer name up1; ip link set up1 up; ip link set up0 up
		sysctl -qw net/ipv6/conf/all/forwarding=0; sysctl -qw net/ipv6/conf/up0/accept_ra=1; ip -6 route add default via fe80::1 dev up0 proto ra`)
	r.undo("ip link del up0; sysctl -qw net/ipv6/conf/all/forwarding=0")
	r.healthy()
	r.sh("sysctl -qw net/ipv6/conf/up0/forwarding=1")
	r.finds("routers-ignored", []string{"up0 ignores the router from which it has the default route via fe80::1"})
	r.fixes("routers-ignored")
	r.healthy()
	r.sh("sysctl -qw net/ipv6/conf/up0/accept_ra=0") // another program does it
	r.healthy()
}

// TestBridgeOfTheHost: what the host has is not the business of a network without an address of the host, and no advice is
// to delete a bridge that no allocation has created.
func TestBridgeOfTheHost(t *testing.T) {
	r := newRig(t)
	r.sh("ip link add lan0 type bridge; ip link set lan0 up; ip addr add 10.88.0.2/16 dev lan0; sysctl -qw net.ipv4.ip_forward=0")
	r.undo("ip link del lan0")
	const ipam = `"ipam": {"type": "host-local", "subnet": "10.88.7.0/24", "dataDir": "DIR"}}]}`
	r.network("10-web", strings.ReplaceAll(`{"cniVersion": "1.0.0", "name": "web", "plugins": [{"type": "bridge", "bridge": "lan0", `+ipam, "DIR", r.path("leases")))
	r.healthy()
	r.setup("web", func(a *configurator.Allocation) { a.Ports = nil })
	r.healthy() // the host need not forward
	require.NoError(t, r.conf.Teardown(t.Context(), configurator.Allocation{ID: "web", OwnNetns: true}))
	r.network("10-web", strings.ReplaceAll(`{"cniVersion": "1.0.0", "name": "web", "plugins": [{"type": "bridge", "bridge": "lan0", "isGateway": true, `+ipam, "DIR", r.path("leases")))
	f := r.finds("bridge-subnet", []string{"bridge lan0 has 10.88.0.2/16"})
	require.NotContains(t, f.Repair, "ip link del")
	require.Contains(t, f.Repair, "choose another bridge")
}

func TestReversePathFilter(t *testing.T) {
	r := newRig(t)
	r.network("20-db", r.bridge("db", "db0", "10.78.0.0/24"))
	r.undo("ip link del db0")
	r.setup("web", func(a *configurator.Allocation) { a.Networks = []string{"web", "db"} })
	r.healthy()
	r.sh("sysctl -qw net/ipv4/conf/db0/rp_filter=1")
	r.repairs(r.finds("rp-filter", []string{"reverse path filtering of db0 is strict"}))
}

// TestReversePathFilterOfUplinks has two default routes.
func TestReversePathFilterOfUplinks(t *testing.T) {
	r := newRig(t)
	r.sh(`for i in 1 2; do ip link add up$i type veth peer down$i; ip link set up$i up; ip link set down$i up; ip addr add 192.0.2.$i/32 dev up$i
		ip route add default dev up$i metric $i; sysctl -qw net/ipv4/conf/up$i/rp_filter=1; done`)
	r.undo("ip link del up1; ip link del up2")
	r.sh("sysctl -qw net/ipv4/conf/up1/rp_filter=0")
	r.repairs(r.finds("rp-filter", []string{"reverse path filtering of up2 is strict"}))
}

// TestRouteLocalnetOfAnIfb: the ifb of the plugin bandwidth names the same owner as the link of
// the allocation, and needs no route_localnet.
func TestRouteLocalnetOfAnIfb(t *testing.T) {
	r := newRig(t)
	r.network("10-web", r.chain("web", "web0", subnet, `, {"type": "bandwidth", "ingressRate": 1000000, "ingressBurst": 1000000, "egressRate": 1000000, "egressBurst": 1000000},
		{"type": "firewall"}, {"type": "portmap", "capabilities": {"portMappings": true}}`))
	r.setup("web")
	r.sh("ip -br link show type ifb | grep -q bwp")
	r.healthy()
}

func TestRouteLocalnet(t *testing.T) {
	r := newRig(t)
	r.setup("web")
	r.sh("sysctl -qw net/ipv4/conf/web0/route_localnet=0")
	r.finds("route-localnet", []string{"net/ipv4/conf/web0/route_localnet is 0"}, "drift")
	r.fixes("route-localnet")
	r.sh("ip link add up0 type veth peer down0; sysctl -qw net/ipv4/conf/up0/route_localnet=1")
	r.undo("ip link del up0")
	r.healthy() // the guard is there
	require.NoError(t, r.conf.Teardown(t.Context(), configurator.Allocation{ID: "web", OwnNetns: true}))
	r.sh("nft flush ruleset")
	r.repairs(r.finds("route-localnet-open", []string{"net/ipv4/conf/up0/route_localnet is 1"}))
}

// TestIPv6Disabled: plugins switch IPv6 on for their links, so the sysctls are no obstacle.
func TestIPv6Disabled(t *testing.T) {
	r := newRig(t)
	r.network("20-six", r.bridge("six", "six0", "fd00:77::/64"))
	r.undo("ip link del six0")
	r.sh("sysctl -qw net/ipv6/conf/default/disable_ipv6=1")
	r.undo("sysctl -qw net/ipv6/conf/default/disable_ipv6=0")
	r.healthy()
	r.setup("web", func(a *configurator.Allocation) { a.Networks, a.Ports = []string{"six"}, nil })
	r.healthy()

	findings := r.host().withoutIPv6()
	require.Len(t, findings, 1)
	require.Equal(t, "ipv6-disabled", findings[0].ID)
	require.Contains(t, findings[0].What, `network "six"`)
}

func TestForwardPolicy(t *testing.T) {
	r := newRig(t)
	r.setup("web")
	r.sh("iptables -P FORWARD DROP")
	r.healthy()
	r.sh("iptables -F FORWARD")
	f := r.finds("forward-drop", []string{"ALLOCNET-FORWARD"}, "drift")
	require.NotContains(t, f.What, "Docker")
	r.sh("iptables -N DOCKER-USER; iptables -A FORWARD -j DOCKER-USER")
	r.finds("forward-drop", []string{"(Docker sets it)"}, "drift")
	r.fixes("forward-drop")
}

func TestNetworkWithoutFirewallPlugin(t *testing.T) {
	r := newRig(t)
	r.network("20-bare", r.chain("bare", "bare0", "10.78.0.0/24", ""))
	r.healthy()
	r.sh("iptables -P FORWARD DROP")
	r.finds("no-firewall-plugin", []string{`network "bare" has no plugin firewall`})
}

// TestForeignChains: the repair that is named lets the packets of allocations pass.
func TestForeignChains(t *testing.T) {
	for name, rules := range map[string]string{
		"policy":    `table inet hardened { chain forward { type filter hook forward priority 10; policy drop; ct state established accept; meta mark and 0x1000 == 0x1000 accept; }; }`,
		"the mark":  `table inet hardened { chain forward { type filter hook forward priority 0; policy drop; ct state established accept; }; }`,
		"last rule": `table ip hardened { chain forward { type filter hook forward priority 10; tcp dport 22 accept; counter reject; }; }`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.setup("web")
			r.setup("routed", func(a *configurator.Allocation) { a.Networks, a.Ports = []string{"allocnet"}, nil })
			r.listen("web", "10.77.0.2:80")
			require.NoError(t, r.connect("routed", "10.77.0.2:80"))
			r.sh("echo '" + rules + "' | nft -f -")
			require.Error(t, r.connect("routed", "10.77.0.2:80"))
			r.repairs(r.finds("foreign-drop", []string{"hardened forward drops forwarded packets"}))
			require.NoError(t, r.connect("routed", "10.77.0.2:80"))
			r.sh("nft delete table $(nft list tables | grep -o 'i.* hardened')")
		})
	}
	r := newRig(t)
	r.sh(`echo 'table inet hardened { chain forward { type filter hook forward priority 10; tcp dport 22 drop; }; chain input { type filter hook input priority 0; policy drop; }; }' | nft -f -`)
	r.healthy()
}

func TestForeignNAT(t *testing.T) {
	r := newRig(t)
	r.setup("web")
	r.sh("iptables -t nat -A PREROUTING -p tcp --dport 8081 -j DNAT --to 192.0.2.1")
	r.healthy()
	r.sh("iptables -t nat -A PREROUTING -p tcp --dport 8000:8080 -j DNAT --to 192.0.2.1")
	r.repairs(r.finds("foreign-nat", []string{"host port 8080/tcp", "192.0.2.1"}))
}

// TestPortDrops: rules that drop packets to one port or address are named, and the repair
// removes them.
func TestPortDrops(t *testing.T) {
	r := newRig(t)
	r.setup("web")
	const port, address = `host port 8080/tcp of allocation "web"`, `address 10.77.0.2 of allocation "web"`
	for name, c := range map[string]struct {
		hook, rules string // of a table of nftables; without a hook, the commands to run
		texts       []string
	}{
		"a port":              {"forward priority 10", "counter; tcp dport 22 accept; tcp dport 80 log drop", []string{"packets to " + port, "inet strict base, handle"}},
		"ports in a set":      {"output priority 0", "th dport { 22, 80, 8080 } reject", []string{"packets of this host to " + port, "8080/udp"}},
		"an interval":         {"forward priority 0", "tcp dport { 1-22, 79-81 } drop", []string{port}},
		"before its redirect": {"prerouting priority -300", `iifname "eth9" tcp dport 8000-8100 drop`, []string{"packets of other hosts to " + port}},
		"an address":          {"postrouting priority 0", "ip daddr 10.77.0.2 drop", []string{address}},
		"a subnet":            {"forward priority 0", "ip daddr 10.77.0.0/25 reject", []string{address}},
		"a whole byte":        {"forward priority 0", "ip daddr 10.77.0.0/16 reject", []string{address}},
		"the original port":   {"forward priority 0", "meta l4proto tcp ct original proto-dst 8080 drop", []string{port}},
		"new connections":     {"forward priority 0", "ct state new tcp dport 80 reject with tcp reset", []string{port}},
		"a called chain":      {"forward priority 0", `oifname "web0" tcp dport 80 jump called`, []string{port, "inet strict called, handle"}},
		"iptables": {"", `iptables -N DENY; iptables -A FORWARD -o web+ -j DENY
			iptables -A DENY -p tcp -m multiport --dports 22,79:81 -m comment --comment "a b" -j DROP`, []string{port, "ip filter DENY"}},
		"iptables, redirected": {"", "iptables -A FORWARD -p tcp -m conntrack --ctstate NEW --ctorigdstport 8080 -j REJECT", []string{port}},
		"iptables, raw":        {"", "iptables -t raw -A PREROUTING -p tcp --dport 8080 -j DROP", []string{"packets of other hosts to " + port}},
	} {
		t.Run(name, func(t *testing.T) {
			r.T = t
			r.undo("nft 'add table inet strict; delete table inet strict'")
			commands := c.rules
			if c.hook != "" {
				commands = "nft -f - <<E\ntable inet strict { chain called { drop; }; chain base { type filter hook " + c.hook + "; " + c.rules + "; }; }\nE"
			}
			r.sh(commands)
			f := r.finds("port-drop", c.texts)
			require.Equal(t, Warning, f.Severity)
			sentByHost := strings.Contains(f.What, "packets of this host")
			require.Equal(t, strings.Contains(f.What, "host port") && !sentByHost, strings.Contains(f.Repair, "/tcp --from ADDRESS shows"), f.Repair)
			r.repairs(f)
			r.sh("nft 'add table inet strict; delete table inet strict'")
		})
	}
	r.T = t
	r.sh(`nft -f - <<E
table inet strict {
	chain base {
		type filter hook forward priority 10;
		tcp dport 81 drop
		tcp dport != 80 drop
		sctp dport 80 drop
		tcp sport 80 drop
		ip saddr 192.0.2.0/24 tcp dport 80 drop
		oifname "docker0" tcp dport 80 drop
		tcp dport 80 limit rate over 10/second drop
		ct state established tcp dport 80 drop
		ip daddr 10.78.0.0/16 drop
		tcp dport 80 accept
	}
	chain in { type filter hook input priority 0; tcp dport 8080 drop; }
}
E`)
	r.healthy()
}

// TestPortDropsOfLegacyIPTables has a private host of its own, as TestMixedIPTables.
func TestPortDropsOfLegacyIPTables(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRig(t)
	r.setup("web")
	r.sh(`iptables-legacy -N DENY; iptables-legacy -A FORWARD -o web0 -j DENY; iptables-legacy -A DENY -s 192.0.2.1 -p tcp --dport 80 -j DROP`)
	require.NotContains(t, describe(r.examine().Findings), "port-drop")
	r.sh(`iptables-legacy -A DENY -p tcp --dport 79:80 -m comment --comment "a b" -j DROP`)
	f := r.finds("port-drop", []string{`host port 8080/tcp of allocation "web"`, "iptables-legacy -t filter, DENY, -A DENY -p tcp"}, "iptables-mixed")
	command, _, _ := strings.Cut(f.Repair, " (")
	r.sh(command)
	require.NotContains(t, describe(r.examine().Findings), "port-drop")
}

// TestListeners: a process of the host that listens on a published port is named.
func TestListeners(t *testing.T) {
	r := newRig(t)
	r.setup("web")
	l := listen(t)
	f := r.finds("port-listener", []string{fmt.Sprintf(`(process %d) listens on 0.0.0.0:8080, and allocation "web" publishes host port 8080/tcp`, os.Getpid())})
	require.Equal(t, Warning, f.Severity)
	require.NoError(t, l.Close())
	six, err := net.Listen("tcp6", "[::1]:8080")
	require.NoError(t, err)
	r.healthy() // the allocation has no IPv6
	require.NoError(t, six.Close())
}

// TestReservedPorts: the port that conmon reserves for its own container is no finding. For
// another container it is one, without the advice to kill conmon.
func TestReservedPorts(t *testing.T) {
	r := newRig(t)
	r.setup("web.eth0", func(a *configurator.Allocation) { a.ContainerID = "web" })
	_, stop := fakeconmon.Start(t, "conmon", "web", "tcp4", "0.0.0.0:8080")
	r.healthy()
	stop()
	pid, stop := fakeconmon.Start(t, "conmon", "db", "tcp4", "0.0.0.0:8080")
	f := r.finds("port-listener", []string{fmt.Sprintf(`conmon (process %d) of container db listens on 0.0.0.0:8080, and allocation "web.eth0" publishes host port 8080/tcp`, pid)})
	require.NotContains(t, f.Repair, "kill")
	stop()
}

// TestMixedIPTables has a private host of its own: a table of the legacy iptables stays in
// the kernel until the network namespace ends.
func TestMixedIPTables(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRig(t)
	r.sh("iptables-legacy -A FORWARD -j ACCEPT")
	r.healthy()
	r.sh("iptables-nft -A FORWARD -j ACCEPT")
	f := r.finds("iptables-mixed", []string{"iptables has tables of the legacy variant (filter)"})
	require.Contains(t, f.Repair, "for example: iptables-legacy -t filter -F")
	r.sh("iptables-legacy -t filter -F; iptables-legacy -N EMPTY")
	r.healthy()
	r.sh("iptables-legacy -P OUTPUT DROP")
	f = r.finds("iptables-mixed", []string{"(filter)"})
	require.Contains(t, f.Repair, "for example: iptables-legacy -t filter -P OUTPUT ACCEPT")
	r.sh("iptables-legacy -t filter -P OUTPUT ACCEPT")
	r.healthy()
}

// TestLegacyForwardPolicy has a private host of its own, as TestMixedIPTables.
func TestLegacyForwardPolicy(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRig(t)
	r.network("20-bare", r.chain("bare", "bare0", "10.78.0.0/24", ""))
	r.sh("iptables-legacy -P FORWARD DROP")
	r.finds("no-firewall-plugin", []string{`network "bare"`})
	r.sh("iptables-nft -P FORWARD DROP")
	r.setup("web")
	f := r.finds("forward-drop", []string{"of the legacy iptables is to drop", "FORWARD of iptables-legacy"}, "no-firewall-plugin", "iptables-mixed")
	require.Equal(t, "iptables-legacy -P FORWARD ACCEPT", f.Repair)
	r.sh("iptables-legacy -A FORWARD -j ACCEPT")
	r.finds("no-firewall-plugin", []string{`network "bare"`}, "iptables-mixed") // something may be accepted
	r.sh("iptables-legacy -F; ip6tables-legacy -P FORWARD DROP")
	r.finds("forward-drop", []string{"FORWARD of iptables-legacy"}, "no-firewall-plugin", "iptables-mixed")
	r.sh(f.Repair)
	r.finds("no-firewall-plugin", []string{`network "bare"`}, "iptables-mixed") // no allocation has IPv6
}

// TestFirewalldWithoutBus has the file of a firewalld that runs, and no bus.
func TestFirewalldWithoutBus(t *testing.T) {
	if !alone(t) {
		return
	}
	r := newRig(t)
	r.sh("echo 1 >/run/firewalld.pid")
	r.finds("firewalld", []string{"not reachable over D-Bus"})
}

// TestPolicyDrops: what network policies drop is no finding, on bridges and routed networks.
func TestPolicyDrops(t *testing.T) {
	r := newRig(t)
	r.network("10-web", r.chain("web", "web0", subnet, `, {"type": "firewall"}, {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "policy", "capabilities": {"policy": true}}`))
	isolated := func(a *configurator.Allocation) { a.Policy = &policy.Policy{Presets: []policy.Preset{policy.Isolated}} }
	r.setup("web", isolated)
	r.setup("routed", isolated, func(a *configurator.Allocation) { a.Networks, a.Ports = []string{"allocnet"}, nil })
	r.setup("open", func(a *configurator.Allocation) { a.Networks, a.Ports = []string{"allocnet"}, nil })
	r.listen("web", "10.77.0.2:80")
	r.listen("routed", "10.202.0.2:80")
	require.Error(t, r.connect("open", "10.77.0.2:80"))
	require.Error(t, r.connect("open", "10.202.0.2:80"))
	r.healthy()
}

// TestLostGuards: bridge ports of plugin binaries that have lost their rules are named, whether they were released
// or the guard is still missing.
func TestLostGuards(t *testing.T) {
	r := newRig(t)
	for _, group := range []int{names.DropInPortGroup, names.ReleasedPortGroup} {
		r.sh(fmt.Sprintf("ip link add lost type bridge && ip link set lost group %d && ip link set lost alias allocnet:web/c1/eth0", group))
		r.finds("guard-lost", []string{`bridge port lost of container "c1" (network "web")`}, "leftover")
		r.sh("ip link del lost")
		r.healthy()
	}
}
