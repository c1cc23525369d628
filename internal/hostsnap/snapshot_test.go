package hostsnap

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

func TestNothingChanges(t *testing.T) {
	privhost.Require(t)
	before := take(t, Options{})
	require.Empty(t, Diff(before, take(t, Options{})))
	require.Contains(t, before.String(), "link lo device mtu 65536 up\n")
	require.Contains(t, before.String(), "address lo 127.0.0.1/8\n")
	require.Contains(t, before.String(), "rule ip 32766 from all lookup main\n")
	require.Contains(t, before.String(), "mount /run tmpfs\n")
}

// A change is a change of a host and the difference that it makes.
type change struct {
	name       string
	make       func(t *testing.T)
	undo       func(t *testing.T)
	want       string // with Options{}
	persistent string // with Options{Persistent: true}
}

func TestChanges(t *testing.T) {
	privhost.Require(t)
	for _, changes := range [][]change{linkChanges, ruleChanges, nftChanges, fileChanges} {
		for _, change := range changes {
			t.Run(change.name, func(t *testing.T) {
				require.NoError(t, os.RemoveAll("/run/xtables.lock")) // of another test
				before := take(t, Options{})
				t.Cleanup(func() {
					change.undo(t)
					require.Empty(t, Diff(before, take(t, Options{})))
				})
				change.make(t)
				require.Equal(t, change.want, Diff(before, take(t, Options{})))
				require.Equal(t, change.persistent, Diff(before, take(t, Options{Persistent: true})))
			})
		}
	}
}

var linkChanges = []change{
	{
		name: "veth in bridge",
		make: func(t *testing.T) {
			addLink(t, &netlink.Bridge{LinkAttrs: linkAttrs("cni0", "0a:00:00:00:00:01")}, "10.1.0.1/24", "fd00:1::1/64")
			addLink(t, &netlink.Veth{LinkAttrs: linkAttrs("veth0", "0a:00:00:00:00:02"), PeerName: "veth1",
				PeerHardwareAddr: mac("0a:00:00:00:00:03")})
			veth := linkByName(t, "veth0")
			require.NoError(t, netlink.LinkSetMaster(veth, linkByName(t, "cni0")))
			require.NoError(t, netlink.LinkSetAlias(veth, "allocation 1"))
		},
		undo: func(t *testing.T) {
			require.NoError(t, netlink.LinkDel(linkByName(t, "veth0")))
			require.NoError(t, netlink.LinkDel(linkByName(t, "cni0")))
		},
		want: lines(
			"+address cni0 10.1.0.1/24",
			"+address cni0 fd00:1::1/64",
			"+link cni0 bridge 0a:00:00:00:00:01 mtu 1500 up",
			"+link veth0 veth 0a:00:00:00:00:02 mtu 1500 up master cni0 alias \"allocation 1\"",
			"+link veth1 veth 0a:00:00:00:00:03 mtu 1500",
			"+route main 10.1.0.0/24 dev cni0 src 10.1.0.1 proto kernel scope link",
			"+route main fd00:1::/64 dev cni0 proto kernel scope universe metric 256",
		),
		persistent: lines(
			"+address cni0 10.1.0.1/24",
			"+address cni0 fd00:1::1/64",
			"+link cni0 bridge 0a:00:00:00:00:01 mtu 1500 up",
			"+link veth0 veth 0a:00:00:00:00:02 mtu 1500 up master cni0 alias \"allocation 1\"",
			"+link veth1 veth 0a:00:00:00:00:03 mtu 1500",
			"+route main 10.1.0.0/24 dev cni0 src 10.1.0.1 proto kernel scope link",
			"+route main fd00:1::/64 dev cni0 proto kernel scope universe metric 256",
		),
	},
	{
		name: "idle bridge",
		make: func(t *testing.T) {
			addLink(t, &netlink.Bridge{LinkAttrs: linkAttrs("cni0", "0a:00:00:00:00:01")}, "10.1.0.1/24")
			require.NoError(t, netlink.RouteAdd(&netlink.Route{
				LinkIndex: linkByName(t, "cni0").Attrs().Index, Dst: network(t, "10.1.0.2/32"), Table: 100, Scope: netlink.SCOPE_LINK,
			}))
		},
		undo: func(t *testing.T) { require.NoError(t, netlink.LinkDel(linkByName(t, "cni0"))) },
		want: lines(
			"+address cni0 10.1.0.1/24",
			"+link cni0 bridge 0a:00:00:00:00:01 mtu 1500 up",
			"+route 100 10.1.0.2/32 dev cni0 proto boot scope link",
			"+route main 10.1.0.0/24 dev cni0 src 10.1.0.1 proto kernel scope link",
		),
		persistent: lines("+route 100 10.1.0.2/32 dev cni0 proto boot scope link"), // those of allocations
	},
	{
		name: "link-local address",
		make: func(t *testing.T) {
			addLink(t, &netlink.Veth{LinkAttrs: linkAttrs("veth0", "0a:00:00:00:00:02"), PeerName: "veth1",
				PeerHardwareAddr: mac("0a:00:00:00:00:03")}, "fe80::1/64")
		},
		undo:       func(t *testing.T) { require.NoError(t, netlink.LinkDel(linkByName(t, "veth0"))) },
		want:       wantPair,
		persistent: wantPair,
	},
	{
		name: "routes",
		make: func(t *testing.T) {
			for _, route := range testRoutes(t) {
				require.NoError(t, netlink.RouteAdd(route))
			}
		},
		undo: func(t *testing.T) {
			for _, route := range testRoutes(t) {
				require.NoError(t, netlink.RouteDel(route))
			}
		},
		want:       wantRoutes,
		persistent: wantRoutes,
	},
	{
		name:       "routing rule",
		make:       func(t *testing.T) { require.NoError(t, netlink.RuleAdd(testRule(t))) },
		undo:       func(t *testing.T) { require.NoError(t, netlink.RuleDel(testRule(t))) },
		want:       "+rule ip 77 from 10.9.0.0/24 lookup 100\n",
		persistent: "+rule ip 77 from 10.9.0.0/24 lookup 100\n",
	},
}

var wantPair = lines(
	"+link veth0 veth 0a:00:00:00:00:02 mtu 1500 up",
	"+link veth1 veth 0a:00:00:00:00:03 mtu 1500",
)

var wantRoutes = lines(
	"+route 100 10.9.0.0/24 dev lo proto boot scope link metric 7",
	"+route local local 10.9.1.0/24 dev lo proto boot scope host",
	"+route main blackhole 10.9.2.0/24 proto boot scope universe",
)

func testRoutes(t *testing.T) []*netlink.Route {
	lo := linkByName(t, "lo").Attrs().Index
	return []*netlink.Route{
		{LinkIndex: lo, Dst: network(t, "10.9.0.0/24"), Table: 100, Scope: netlink.SCOPE_LINK, Priority: 7},
		{LinkIndex: lo, Dst: network(t, "10.9.1.0/24"), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST},
		{Dst: network(t, "10.9.2.0/24"), Type: unix.RTN_BLACKHOLE},
	}
}

func testRule(t *testing.T) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Priority, rule.Src, rule.Table = 77, network(t, "10.9.0.0/24"), 100
	return rule
}

var ruleChanges = []change{
	{
		name: "iptables",
		make: func(t *testing.T) {
			iptables(t, "iptables -t nat -N CNI-5ad8")
			iptables(t, "iptables -t nat -A CNI-5ad8 -d 10.1.0.0/24 -j ACCEPT")
			iptables(t, "ip6tables -t nat -N CNI-5ad8")
			iptables(t, "iptables -t nat -N CNI-HOSTPORT-DNAT")
			iptables(t, "iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT")
			iptables(t, "iptables -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 80 -j CNI-5ad8")
		},
		undo: flushNftables,
		want: lines(
			"+iptables ip nat -A CNI-5ad8 -d 10.1.0.0/24 -j ACCEPT",
			"+iptables ip nat -A CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 80 -j CNI-5ad8",
			"+iptables ip nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
			"+iptables ip nat :CNI-5ad8 -",
			"+iptables ip nat :CNI-HOSTPORT-DNAT -",
			"+iptables ip nat :INPUT ACCEPT",
			"+iptables ip nat :OUTPUT ACCEPT",
			"+iptables ip nat :POSTROUTING ACCEPT",
			"+iptables ip nat :PREROUTING ACCEPT",
			"+iptables ip6 nat :CNI-5ad8 -",
			"+iptables ip6 nat :INPUT ACCEPT",
			"+iptables ip6 nat :OUTPUT ACCEPT",
			"+iptables ip6 nat :POSTROUTING ACCEPT",
			"+iptables ip6 nat :PREROUTING ACCEPT",
		),
		persistent: lines(
			"+iptables ip nat -A CNI-5ad8 -d 10.1.0.0/24 -j ACCEPT",
			"+iptables ip nat -A CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 80 -j CNI-5ad8",
			"+iptables ip nat :CNI-5ad8 -",
			"+iptables ip6 nat :CNI-5ad8 -",
		),
	},
	{
		name: "iptables policy",
		make: func(t *testing.T) { iptables(t, "iptables -P FORWARD DROP") },
		undo: flushNftables,
		want: lines("+iptables ip filter :FORWARD DROP", "+iptables ip filter :INPUT ACCEPT",
			"+iptables ip filter :OUTPUT ACCEPT"),
		persistent: "+iptables ip filter :FORWARD DROP\n",
	},
}

var nftChanges = []change{
	{
		name: "nftables",
		make: makeTable,
		undo: flushNftables,
		want: lines(
			"+nft chain inet example empty",
			"+nft chain inet example forward filter hook 2 priority -7 policy drop",
			"+nft chain inet example full",
			"+nft element inet example __set \"veth0\"",
			"+nft element inet example ports 0050 : 0a010002",
			"+nft map inet example ports type inet_service",
			"+nft object inet example hits type 1",
			"+nft rule inet example full Meta{Key:6 Register:1} Cmp{Register:1 Data:\"veth0\"} Counter"+
				" Lookup{SourceRegister:1 SetName:\"__set\"} Verdict{Kind:-3 Chain:\"empty\"} comment \"allocation 1\"",
			"+nft set inet example __set type ifname",
			"+nft set inet example none type inet_service",
			"+nft table inet example",
		),
		persistent: lines(
			"+nft chain inet example forward filter hook 2 priority -7 policy drop",
			"+nft chain inet example full",
			"+nft element inet example ports 0050 : 0a010002",
			"+nft map inet example ports type inet_service",
			"+nft object inet example hits type 1",
			"+nft rule inet example full Meta{Key:6 Register:1} Cmp{Register:1 Data:\"veth0\"} Counter"+
				" Lookup{SourceRegister:1 SetName:\"__set\"} Verdict{Kind:-3 Chain:\"empty\"} comment \"allocation 1\"",
		),
	},
	{
		name: "shared chain of a reference plugin",
		make: makeDispatcher,
		undo: flushNftables,
		want: lines(
			"+nft chain ip cni_hostport hostports",
			"+nft chain ip cni_hostport hostports_all",
			"+nft rule ip cni_hostport hostports_all Verdict{Kind:-3 Chain:\"hostports\"}",
			"+nft table ip cni_hostport",
		),
	},
}

// makeTable creates a table with an object of every kind.
func makeTable(t *testing.T) {
	conn, err := nftables.New()
	require.NoError(t, err)
	table := conn.AddTable(&nftables.Table{Name: "example", Family: nftables.TableFamilyINet})
	drop := nftables.ChainPolicyDrop
	conn.AddChain(&nftables.Chain{Table: table, Name: "forward", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityRef(-7), Policy: &drop})
	conn.AddChain(&nftables.Chain{Table: table, Name: "empty"})
	full := conn.AddChain(&nftables.Chain{Table: table, Name: "full"})
	ports := &nftables.Set{Table: table, Name: "ports", IsMap: true, KeyType: nftables.TypeInetService, DataType: nftables.TypeIPAddr}
	require.NoError(t, conn.AddSet(ports, []nftables.SetElement{{Key: []byte{0, 80}, Val: []byte{10, 1, 0, 2}}}))
	none := &nftables.Set{Table: table, Name: "none", KeyType: nftables.TypeInetService}
	require.NoError(t, conn.AddSet(none, nil))
	unnamed := &nftables.Set{Table: table, Anonymous: true, Constant: true, KeyType: nftables.TypeIFName}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, "veth0")
	require.NoError(t, conn.AddSet(unnamed, []nftables.SetElement{{Key: name}}))
	conn.AddObj(&nftables.NamedObj{Table: table, Name: "hits", Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
	conn.AddRule(&nftables.Rule{Table: table, Chain: full,
		UserData: userdata.AppendString(nil, userdata.TypeComment, "allocation 1"),
		Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
			&expr.Counter{Bytes: 5, Packets: 1},
			&expr.Lookup{SourceRegister: 1, SetName: unnamed.Name, SetID: unnamed.ID},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: "empty"},
		}})
	require.NoError(t, conn.Flush())
}

// makeDispatcher creates the chains that portmap leaves after the last
// attachment is removed.
func makeDispatcher(t *testing.T) {
	conn, err := nftables.New()
	require.NoError(t, err)
	table := conn.AddTable(&nftables.Table{Name: "cni_hostport", Family: nftables.TableFamilyIPv4})
	conn.AddChain(&nftables.Chain{Table: table, Name: "hostports"})
	all := conn.AddChain(&nftables.Chain{Table: table, Name: "hostports_all"})
	conn.AddRule(&nftables.Rule{Table: table, Chain: all,
		Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "hostports"}}})
	require.NoError(t, conn.Flush())
}

const (
	leases = "/var/lib/cni/networks/n"
	lease  = leases + "/10.1.0.2"
)

var fileChanges = []change{
	{
		name: "files",
		make: func(t *testing.T) {
			require.NoError(t, os.MkdirAll(leases, 0o755))
			write(t, lease, "c1\r\neth0")
			write(t, leases+"/last_reserved_ip.0", "10.1.0.2")
			write(t, leases+"/lock", "")
			write(t, leases+"/big", strings.Repeat("x", 1000))
			require.NoError(t, os.Symlink("10.1.0.2", leases+"/link"))
			require.NoError(t, unix.Mkfifo(leases+"/fifo", 0o600))
		},
		undo: func(t *testing.T) { require.NoError(t, os.RemoveAll("/var/lib/cni/networks")) },
		want: lines(
			"+directory /var/lib/cni/networks 0755",
			"+directory /var/lib/cni/networks/n 0755",
			"+file /var/lib/cni/networks/n/10.1.0.2 0600 \"c1\\r\\neth0\"",
			"+file /var/lib/cni/networks/n/big 0600 1000 bytes,"+
				" sha256 44f8354494a5ba03ba1792a8d3e9c534c47a9181980fde7a3f44b06ef2ae7c7f",
			"+file /var/lib/cni/networks/n/last_reserved_ip.0 0600",
			"+file /var/lib/cni/networks/n/lock 0600",
			"+special /var/lib/cni/networks/n/fifo prw-------",
			"+symlink /var/lib/cni/networks/n/link 10.1.0.2",
		),
		persistent: lines(
			"+file /var/lib/cni/networks/n/10.1.0.2 0600 \"c1\\r\\neth0\"",
			"+file /var/lib/cni/networks/n/big 0600 1000 bytes,"+
				" sha256 44f8354494a5ba03ba1792a8d3e9c534c47a9181980fde7a3f44b06ef2ae7c7f",
			"+special /var/lib/cni/networks/n/fifo prw-------",
			"+symlink /var/lib/cni/networks/n/link 10.1.0.2",
		),
	},
	{
		name: "network namespace",
		make: func(t *testing.T) {
			require.NoError(t, os.Mkdir("/run/netns", 0o755))
			write(t, "/run/netns/c1", "")
			require.NoError(t, unix.Mount("/proc/self/ns/net", "/run/netns/c1", "", unix.MS_BIND, ""))
		},
		undo: func(t *testing.T) {
			require.NoError(t, unix.Unmount("/run/netns/c1", 0))
			require.NoError(t, os.RemoveAll("/run/netns"))
		},
		want:       lines("+directory /run/netns 0755", "+mount /run/netns/c1 nsfs", "+netns /run/netns/c1"),
		persistent: lines("+mount /run/netns/c1 nsfs", "+netns /run/netns/c1"),
	},
	{
		name: "mount that another one hides",
		make: func(t *testing.T) {
			require.NoError(t, os.MkdirAll("/run/hides/away", 0o755))
			require.NoError(t, unix.Mount("tmpfs", "/run/hides/away", "tmpfs", 0, ""))
			for range 2 {
				require.NoError(t, unix.Mount("tmpfs", "/run/hides", "tmpfs", 0, ""))
			}
			require.NoError(t, os.Mkdir("/run/hides/seen", 0o755))
			require.NoError(t, unix.Mount("tmpfs", "/run/hides/seen", "tmpfs", 0, ""))
		},
		undo: func(t *testing.T) {
			for _, path := range []string{"/run/hides/seen", "/run/hides", "/run/hides", "/run/hides/away"} {
				require.NoError(t, unix.Unmount(path, 0))
			}
			require.NoError(t, os.RemoveAll("/run/hides"))
		},
		want: lines("+directory /run/hides 0777", "+directory /run/hides/seen 0777",
			"+mount /run/hides tmpfs", "+mount /run/hides tmpfs", "+mount /run/hides/seen tmpfs"),
		persistent: lines("+mount /run/hides tmpfs", "+mount /run/hides tmpfs", "+mount /run/hides/seen tmpfs"),
	},
	{
		name: "sysctls",
		make: func(t *testing.T) {
			write(t, "/proc/sys/net/ipv4/ip_forward", "1")
			write(t, "/proc/sys/net/ipv6/conf/all/forwarding", "1")
			write(t, "/proc/sys/net/ipv4/conf/all/route_localnet", "1")
		},
		undo: func(t *testing.T) {
			write(t, "/proc/sys/net/ipv4/ip_forward", "0")
			write(t, "/proc/sys/net/ipv6/conf/all/forwarding", "0")
			write(t, "/proc/sys/net/ipv4/conf/all/route_localnet", "0")
		},
		want: lines("+sysctl net.ipv4.conf.all.route_localnet = 1", "+sysctl net.ipv4.ip_forward = 1",
			"+sysctl net.ipv6.conf.all.forwarding = 1"),
		persistent: "+sysctl net.ipv4.conf.all.route_localnet = 1\n",
	},
}

// TestPersistentMayOnlyAppear removes a persistent object, which Diff must
// report.
func TestPersistentMayOnlyAppear(t *testing.T) {
	privhost.Require(t)
	write(t, "/proc/sys/net/ipv4/ip_forward", "1")
	before := take(t, Options{Persistent: true})
	write(t, "/proc/sys/net/ipv4/ip_forward", "0")
	require.Equal(t, "-sysctl net.ipv4.ip_forward = 1\n", Diff(before, take(t, Options{Persistent: true})))
}

// TestLastReservedAddressMayChange lets host-local reserve the next address.
func TestLastReservedAddressMayChange(t *testing.T) {
	privhost.Require(t)
	dir := t.TempDir()
	opts := Options{Dirs: []string{dir, filepath.Join(dir, "missing")}}
	write(t, filepath.Join(dir, "last_reserved_ip.0"), "10.1.0.2")
	before := take(t, opts)
	require.Contains(t, before.String(), filepath.Join(dir, "last_reserved_ip.0"))
	write(t, filepath.Join(dir, "last_reserved_ip.0"), "10.1.0.3")
	require.Empty(t, Diff(before, take(t, opts)))
}

func TestIgnore(t *testing.T) {
	privhost.Require(t)
	dir := t.TempDir()
	opts := Options{Dirs: []string{dir}, Ignore: func(line string) bool { return strings.HasSuffix(line, `"ignored"`) }}
	before := take(t, opts)
	write(t, filepath.Join(dir, "a"), "ignored")
	write(t, filepath.Join(dir, "b"), "seen")
	require.Equal(t, "+file "+filepath.Join(dir, "b")+" 0600 \"seen\"\n", Diff(before, take(t, opts)))
}

func TestIptablesMissing(t *testing.T) {
	privhost.Require(t)
	iptables(t, "iptables -N CNI-5ad8")
	t.Cleanup(func() { flushNftables(t) })
	require.Contains(t, take(t, Options{}).String(), "\niptables ip filter :CNI-5ad8 -\n")
	t.Setenv("PATH", t.TempDir())
	require.NotContains(t, take(t, Options{}).String(), "\niptables ")
	require.Contains(t, take(t, Options{}).String(), "\nnft chain ip filter CNI-5ad8\n", "the rules show anyway")
}

func TestIptablesFails(t *testing.T) {
	privhost.Require(t)
	iptables(t, "iptables -N CNI-5ad8")
	t.Cleanup(func() { flushNftables(t) })
	dir := t.TempDir()
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\necho broken >&2; exit 3\n"), 0o700))
	}
	t.Setenv("PATH", dir+":/bin")
	_, err := Take(Options{})
	require.ErrorContains(t, err, "take snapshot of nftables: run \"ip")
	require.ErrorContains(t, err, "exit status 3: broken")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
}

// TestIptablesLegacy: the rules of the legacy variant are not in nftables.
func TestIptablesLegacy(t *testing.T) {
	privhost.Require(t, "iptables-legacy-save", "ip6tables-legacy-save")
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for name, family := range map[string]string{"iptables": "ip", "ip6tables": "ip6"} {
		program, err := exec.LookPath(name + "-legacy-save")
		require.NoError(t, err)
		require.NoError(t, os.Symlink(program, filepath.Join(dir, name+"-save")))
		iptables(t, name+"-legacy -N CNI-5ad8")
		t.Cleanup(func() { iptables(t, name+"-legacy -X CNI-5ad8") })
		require.Contains(t, take(t, Options{}).String(), "\niptables "+family+" filter :CNI-5ad8 -\n")
	}
}

// TestTracked checks that connections of the selected addresses are compared,
// for both families, without the parts that change by themselves.
func TestTracked(t *testing.T) {
	privhost.RequireRoot(t)
	require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	opts := Options{Tracked: func(a netip.Addr) bool {
		return a == netip.MustParseAddr("10.77.0.5") || a == netip.MustParseAddr("fd00:77::5")
	}}
	take := func() Snapshot {
		t.Helper()
		s, err := Take(opts)
		require.NoError(t, err)
		return s
	}
	before := take()
	for _, ends := range [][2]string{{"192.0.2.1", "10.77.0.5"}, {"192.0.2.1", "10.77.0.50"}, {"fd00:77::5", "2001:db8::1"}} {
		from, to := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		family := netlink.InetFamily(unix.AF_INET)
		if from.Is6() {
			family = unix.AF_INET6
		}
		require.NoError(t, netlink.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 600,
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: from.AsSlice(), SrcPort: 1, DstIP: to.AsSlice(), DstPort: 2},
			Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: to.AsSlice(), SrcPort: 2, DstIP: from.AsSlice(), DstPort: 1},
		}))
	}
	require.Equal(t, `+conntrack udp src=192.0.2.1 dst=10.77.0.5 sport=1 dport=2 src=10.77.0.5 dst=192.0.2.1 sport=2 dport=1
+conntrack udp src=fd00:0077:0000:0000:0000:0000:0000:0005 dst=2001:0db8:0000:0000:0000:0000:0000:0001 sport=1 dport=2 src=2001:0db8:0000:0000:0000:0000:0000:0001 dst=fd00:0077:0000:0000:0000:0000:0000:0005 sport=2 dport=1
`, Diff(before, take()))
	require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	require.Empty(t, Diff(before, take()))
}

// TestDirectionOfTracking: rules that name a direction of connection tracking are shown, although
// google/nftables does not read them.
func TestDirectionOfTracking(t *testing.T) {
	privhost.Require(t)
	t.Cleanup(func() { flushNftables(t) })
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(`table ip example { chain one { ct original ip daddr 192.0.2.1 counter drop; }; }`)
	out, err := nft.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `nft rule ip example one Ct\{.*\} Cmp\{.*\} Counter Verdict`, take(t, Options{}).String())
}
