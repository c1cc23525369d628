package watch

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

func do(t testing.TB, commands ...string) {
	t.Helper()
	for _, c := range commands {
		out, err := exec.Command("sh", "-c", c).CombinedOutput()
		require.NoError(t, err, "%s: %s", c, out)
	}
}

// start returns a Watcher that has begun to listen to both sources.
func start(t *testing.T, buffer int) *Watcher {
	t.Helper()
	return startWith(t, buffer, nil)
}

// startWith is start with the Damaged of the Watcher.
func startWith(t *testing.T, buffer int, damaged func() bool) *Watcher {
	t.Helper()
	privhost.Require(t, "nft", "ip")
	do(t, "nft flush ruleset")
	w := New(buffer, func(err error) { t.Log(err) })
	w.Damaged = damaged
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = w.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	// What is made before a source listens is not seen, so it is made until it is.
	begun(t, w, Rules, "nft 'add table ip allocnet; delete table ip allocnet; add table ip allocnet'")
	begun(t, w, Link, "ip link add brfirst type bridge; ip link del brfirst")
	return w
}

// begun makes a change until it is seen, and returns the changes so far. A try waits for longer than a busy
// host takes to notify, since a second change would be seen by the test.
func begun(t *testing.T, w *Watcher, kind Kind, change string) (all []Change) {
	t.Helper()
	for range 6 {
		do(t, change)
		for waited := false; !waited; {
			select {
			case <-w.Changed():
			case <-time.After(5 * time.Second):
				waited = true
			}
			all = append(all, w.Take()...)
			if slices.ContainsFunc(all, func(c Change) bool { return c.Kind == kind }) {
				return all
			}
		}
	}
	t.Fatalf("no change of the kind %s", kind)
	return nil
}

// await waits for a change of a kind, and returns it.
func await(t *testing.T, w *Watcher, kinds ...Kind) Change {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case <-w.Changed():
		case <-deadline:
			t.Fatalf("no change of the kinds %v", kinds)
		}
		for _, c := range w.Take() {
			if slices.Contains(kinds, c.Kind) {
				return c
			}
		}
	}
}

// quiet requires that there is no change until a marker has been seen.
func quiet(t *testing.T, w *Watcher) {
	t.Helper()
	for _, marker := range []struct {
		kind   Kind
		object string
		make   string
	}{
		{Foreign, "deletion of table ip nat", "nft add table ip nat; nft delete table ip nat"},
		{Link, `deletion of bridge "brmark"`, "ip link add brmark type bridge; ip link del brmark"},
	} {
		do(t, marker.make)
		for seen := false; !seen; {
			select {
			case <-w.Changed():
			case <-time.After(30 * time.Second):
				t.Fatal("no marker")
			}
			for _, c := range w.Take() {
				require.Equal(t, marker.kind, c.Kind, c.String())
				require.Equal(t, marker.object, c.Object)
				seen = true
			}
		}
	}
}

// hostWithAllocation makes what an allocation consists of on the host: a bridge with an
// address, and a port with the owner as its alias.
func hostWithAllocation(t *testing.T) {
	t.Helper()
	do(t, "ip link add brt type bridge", "ip link set brt addrgenmode none", "ip address add 10.5.0.1/24 dev brt", "ip link set brt up",
		"ip link add veth1 type veth peer name peer1", "ip link set veth1 addrgenmode none", "ip link set veth1 alias allocnet:net/a/eth0 master brt up", "ip link set peer1 up")
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", "brt").Run()
		_ = exec.Command("ip", "link", "del", "veth1").Run()
	})
}

func elements(i int) *ruleset.Elements {
	to := netip.AddrFrom4([4]byte{10, 5, byte(i >> 8), byte(i)})
	return &ruleset.Elements{
		Owner:      names.Owner{Network: "net", ID: fmt.Sprint("a", i), IfName: "eth0"},
		Masquerade: []netip.Prefix{netip.PrefixFrom(to, 16)},
		Mappings:   []ruleset.Mapping{{Protocol: 6, HostPort: uint16(i), To: netip.AddrPortFrom(to, 80)}},
	}
}

// TestChanges: changes by other programs are seen, with the process where the kernel
// tells it.
func TestChanges(t *testing.T) {
	for name, test := range map[string]struct {
		prepare, change string
		want            Change
	}{
		"flush of the ruleset": {"", "nft flush ruleset", Change{Kind: Rules, Object: "deletion of table ip allocnet", Process: "nft"}},
		"a table":              {"", "nft delete table ip allocnet", Change{Kind: Rules, Object: "deletion of table ip allocnet", Process: "nft"}},
		"the guard":            {"nft add table ip allocnet_guard", "nft delete table ip allocnet_guard", Change{Kind: Rules, Object: "deletion of table ip allocnet_guard", Process: "nft"}},
		"a chain":              {"", "nft delete chain ip allocnet postrouting", Change{Kind: Rules, Object: "deletion of table ip allocnet, chain postrouting", Process: "nft"}},
		"another policy":       {"", "nft 'add chain ip allocnet forward { policy drop; }'", Change{Kind: Rules, Object: "change of table ip allocnet, chain forward", Process: "nft"}},
		"rules":                {"", "nft flush chain ip allocnet forward", Change{Kind: Rules, Object: "deletion of a rule in table ip allocnet, chain forward", Process: "nft"}},
		"a rule more":          {"", "nft insert rule ip allocnet forward drop", Change{Kind: Rules, Object: "new rule in table ip allocnet, chain forward", Process: "nft"}},
		"a set flushed":        {"", "nft flush set ip allocnet masqueraded", Change{Kind: Rules, Object: "deletion of an element in table ip allocnet, set masqueraded", Process: "nft"}},
		"an element":           {"", "nft delete element ip allocnet host_ports '{ tcp . 1 }'", Change{Kind: Rules, Object: "deletion of an element in table ip allocnet, set host_ports", Process: "nft"}},
		"iptables":             {"iptables -N ALLOCNET-FORWARD", "printf '*filter\nCOMMIT\n' | iptables-restore", Change{Kind: Foreign, Object: "deletion of table ip filter", Process: "iptables-restor"}},
		"a jump of iptables": {"iptables -A FORWARD -j ACCEPT", "iptables -F FORWARD",
			Change{Kind: Foreign, Object: "deletion of a rule in table ip filter, chain FORWARD", Process: "iptables"}},
		"firewalld":               {"", "nft add table inet firewalld", Change{Kind: Foreign, Object: "change of table inet firewalld", Process: "nft"}},
		"a bridge":                {"", "ip link del brt", Change{Kind: Link, Object: `deletion of bridge "brt"`}},
		"a bridge down":           {"", "ip link set brt down", Change{Kind: Link, Object: `change of link "brt"`}},
		"a port down":             {"", "ip link set veth1 down", Change{Kind: Link, Object: `change of link "veth1"`}},
		"a port without a bridge": {"", "ip link set veth1 nomaster", Change{Kind: Link, Object: `change of link "veth1"`}},
		"an address":              {"", "ip address del 10.5.0.1/24 dev brt", Change{Kind: Address, Object: `removal of an address from link "brt"`}},
		"a route":                 {"", "ip route del 10.5.0.0/24", Change{Kind: Route, Object: `removal of a route over link "brt"`}},
		"a route to nothing": {"ip route add unreachable 10.9.0.0/16 table 100 proto 91", "ip route del unreachable 10.9.0.0/16 table 100",
			Change{Kind: Route, Object: "removal of an unreachable route"}},
		"an IPv6 route to nothing": {"ip route add unreachable fd09::/64 table 1000 proto 91", "ip -6 route flush table 1000",
			Change{Kind: Route, Object: "removal of an unreachable route"}},
		"a route in a table": {"ip route add 10.5.0.2/32 dev brt table 100 proto 91", "ip route flush table 100",
			Change{Kind: Route, Object: `removal of a route over link "brt"`}},
		"forwarding":         {"sysctl -qw net.ipv4.ip_forward=1", "sysctl -qw net.ipv4.ip_forward=0", Change{Kind: Forwarding, Object: "net.ipv4.ip_forward=0"}},
		"forwarding of IPv6": {"sysctl -qw net.ipv6.conf.all.forwarding=1", "sysctl -qw net.ipv6.conf.all.forwarding=0", Change{Kind: Forwarding, Object: "net.ipv6.conf.all.forwarding=0"}},
		"forwarding of a link": {"sysctl -qw net.ipv4.ip_forward=1", "sysctl -qw net.ipv4.conf.brt.forwarding=0",
			Change{Kind: Forwarding, Object: `no forwarding from link "brt"`}},
		"a veth": {"", "ip link del veth1", Change{Kind: Veth, Object: `deletion of link "veth1"`,
			Owners: []names.Owner{{Network: "net", ID: "a", IfName: "eth0"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, 0)
			hostWithAllocation(t)
			r, err := ruleset.Open()
			require.NoError(t, err)
			defer r.Close()
			one := elements(1)
			one.Open = []netip.Addr{netip.MustParseAddr("fd00::1")}
			require.NoError(t, r.Add(t.Context(), one))
			if test.prepare != "" {
				do(t, test.prepare)
			}
			do(t, "nft add table ip nat; nft delete table ip nat") // what was before is seen
			await(t, w, Foreign)
			do(t, test.change)
			got := await(t, w, test.want.Kind)
			if got.Object == `change of link "veth1"` && name == "a bridge" {
				got.Object = test.want.Object // the bridge lost its port first
			}
			require.Equal(t, test.want.Process == "", got.PID == 0)
			got.PID = 0
			require.Equal(t, test.want, got)
		})
	}
}

// TestReplacedRoutes: a route that replaces another one over any link is seen, and the removal of
// one while an allocation is damaged.
func TestReplacedRoutes(t *testing.T) {
	var damaged atomic.Bool
	w := startWith(t, 0, damaged.Load)
	hostWithAllocation(t)
	quiet(t, w)
	for _, test := range []struct{ to, add, replace, remove string }{
		{"10.5.0.9/32", "ip route add 10.5.0.9 dev brt", "ip route replace 10.5.0.9 dev lo", "ip route del 10.5.0.9 dev lo"},
		{"10.6.0.0/24", "ip route add 10.6.0.0/24 dev brt", "ip route replace 10.6.0.0/24 dev lo", "ip route del 10.6.0.0/24 dev lo"},
		{"10.5.0.9/32", "ip route add 10.5.0.9 dev brt", "ip route replace blackhole 10.5.0.9", "ip route del blackhole 10.5.0.9"},
		{"fd05::9/128", "ip -6 route add fd05::9 dev brt", "ip -6 route replace fd05::9 dev lo", "ip -6 route del fd05::9 dev lo"},
		{"0.0.0.0/0", "ip route add default dev brt", "ip route replace default dev lo", "ip route del default"},
		{"::/0", "ip route add ::/0 dev brt", "ip route replace ::/0 dev lo", "ip -6 route del default"},
	} {
		want := Change{Kind: Destination, Object: "other routes", Destinations: []netip.Prefix{netip.MustParsePrefix(test.to)}}
		do(t, test.add)
		quiet(t, w)
		do(t, test.replace)
		require.Equal(t, want, await(t, w, Destination), test.replace)
		do(t, test.remove)
		quiet(t, w)
		do(t, test.add, test.replace)
		await(t, w, Destination)
		damaged.Store(true)
		do(t, test.remove)
		require.Equal(t, want, await(t, w, Destination), test.remove)
		damaged.Store(false)
	}
	do(t, "ip route add 10.5.9.9 dev lo; ip route del 10.5.9.9 dev lo")
	quiet(t, w)
}

// TestReplacedRoutesAreBounded: from some number on, any route counts as replaced.
func TestReplacedRoutesAreBounded(t *testing.T) {
	c := newChanges()
	all := make([]netip.Prefix, maxDestinations)
	c.add(Change{Kind: Destination, Destinations: all})
	require.Len(t, c.pending[Destination].Destinations, maxDestinations)
	for range 2 {
		c.add(Change{Kind: Destination, Destinations: all[:1]})
		require.Nil(t, c.pending[Destination].Destinations)
	}
	require.Len(t, c.take(), 1)
	c.add(Change{Kind: Destination, Destinations: all[:1]})
	require.Len(t, c.take()[0].Destinations, 1)
}

// TestIPv6Again: the kernel disables IPv6 on a link with a small MTU, and enables it again. The
// latter matters only while an allocation is damaged: the kernel also enables it on new links.
func TestIPv6Again(t *testing.T) {
	var damaged atomic.Bool
	w := startWith(t, 0, damaged.Load)
	hostWithAllocation(t)
	for _, link := range []string{"brt", "veth1"} {
		do(t, "ip link set veth1 nomaster; ip link add name brpeer type veth peer name brport; ip link set brport up master brt; ip link set brpeer up",
			"ip address add fd05::1/64 dev "+link+" nodad")
		sleep(t.Context(), 2*lastPause)
		w.Take()
		do(t, "ip link set "+link+" mtu 1200")
		require.Equal(t, fmt.Sprintf("removal of a route over link %q", link), await(t, w, Route).Object)
		do(t, "ip link set "+link+" mtu 1500")
		quiet(t, w)
		do(t, "ip link set "+link+" mtu 1200")
		await(t, w, Route) // otherwise one change of the link may stand for both
		quiet(t, w)        // the removal of the address is read
		damaged.Store(true)
		do(t, "ip link set "+link+" mtu 1500")
		require.Equal(t, fmt.Sprintf("IPv6 is enabled again on link %q", link), await(t, w, Address).Object)
		damaged.Store(false)
		do(t, "ip link del brpeer")
	}
}

// TestOwnChangesDoNotCount: neither those of this process nor those of allocnet's
// programs, nor changes that do not concern allocations.
func TestOwnChangesDoNotCount(t *testing.T) {
	w := start(t, 0)
	r, err := ruleset.Open()
	require.NoError(t, err)
	defer r.Close()
	for i := range 50 {
		require.NoError(t, r.Add(t.Context(), elements(i+1)))
	}
	for i := range 50 {
		require.NoError(t, r.Del(t.Context(), elements(i+1)))
	}
	require.NoError(t, r.Repair(t.Context()))
	ownVeths(t, 1)
	ownVeths(t, 20)
	kernel := rtnl.OpenHost()
	defer kernel.Close()
	do(t, asAllocnet(t)+" flush set ip allocnet masqueraded")
	do(t, "nft add table ip other; nft flush table ip other; nft delete table ip other",
		"ip link add d1 type veth peer name d2; ip address add 10.6.0.1/24 dev d1; ip link set d1 up; ip link set d2 up; ip route del 10.6.0.0/24; ip link del d1",
		"ip link add br9 type bridge; ip link set br9 up; ip address add 10.7.0.1/24 dev br9; ip route add 10.8.0.0/24 dev br9",
		"ip route add unreachable 10.9.0.0/16; ip route del unreachable 10.9.0.0/16; ip route add unreachable 10.9.0.0/16 table 100 proto bird; ip route del unreachable 10.9.0.0/16 table 100")
	do(t, "sysctl -qw net.ipv4.conf.lo.forwarding=1", "sysctl -qw net.ipv4.conf.lo.forwarding=0", // no link of an allocation
		"sysctl -qw net.ipv6.conf.br9.forwarding=1", "sysctl -qw net.ipv6.conf.br9.forwarding=0", // has no effect
		"sysctl -qw net.ipv4.conf.br9.forwarding=1", "sysctl -qw net.ipv4.conf.br9.rp_filter=0")
	index, err := kernel.Index("br9")
	require.NoError(t, err)
	for _, link := range []int{index, 0} {
		owner, routes := elements(1).Owner, []announce.Route{{Route: ruleset.Route{Address: netip.MustParsePrefix("10.9.0.2/16"), Table: 100, Protocol: 91, Link: link}}}
		require.NoError(t, announce.Announcer{Kernel: kernel, Rules: r}.Add(t.Context(), owner, routes))
		require.NoError(t, announce.Announcer{Kernel: kernel, Rules: r}.Withdraw(t.Context(), owner, routes))
	}
	quiet(t, w)
	do(t, "ip link del br9")
}

// asAllocnet returns the path of nft under the name of a program of allocnet.
func asAllocnet(t *testing.T) string {
	t.Helper()
	nft, err := exec.LookPath("nft")
	require.NoError(t, err)
	path := t.TempDir() + "/allocnet"
	do(t, "cp "+nft+" "+path)
	return path
}

// TestMadeTables: a program of allocnet has made one of its tables.
func TestMadeTables(t *testing.T) {
	w := start(t, 0)
	do(t, asAllocnet(t)+" add table ip6 allocnet_guard")
	got := await(t, w, Made)
	require.NotZero(t, got.PID)
	got.PID = 0
	require.Equal(t, Change{Kind: Made, Object: "new table ip6 allocnet_guard", Process: "allocnet"}, got)
}

// TestLostNotifications: a burst that does not fit into the buffer is a reason to
// compare everything, and later notifications arrive.
func TestLostNotifications(t *testing.T) {
	w := start(t, 4096)
	do(t, "for i in $(seq 300); do echo add table ip x$i; echo delete table ip x$i; done | nft -f -")
	await(t, w, Lost)
	// The buffer may still be full.
	require.Eventually(t, func() bool {
		do(t, "nft delete table ip allocnet")
		if await(t, w, Rules, Lost).Kind == Rules {
			return true
		}
		do(t, "nft add table ip allocnet")
		return false
	}, time.Minute, time.Millisecond)
}

// TestStartIsAGap: what was removed before the Watcher listens is not notified.
func TestStartIsAGap(t *testing.T) {
	privhost.Require(t)
	w := New(0, func(err error) { t.Error(err) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	await(t, w, Lost)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// TestStartIsOneGap: what was missed before the Watcher listens leads to one comparison, although its sources
// do not begin at the same time. While a source cannot listen, the others begin without it.
func TestStartIsOneGap(t *testing.T) {
	privhost.Require(t, "nft")
	do(t, "nft flush ruleset")
	w := New(0, func(error) {})
	ctx, cancel := context.WithCancel(t.Context())
	late, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		w.follow(ctx, w.rules, func() *source {
			<-late
			return unopenable(w)
		})
	}()
	isLost := func(c Change) bool { return c.Kind == Lost }
	changes := begun(t, w, Rules, "nft 'add table ip allocnet; delete table ip allocnet; add table ip allocnet'")
	require.False(t, slices.ContainsFunc(changes, isLost), "%v", changes)
	close(late)
	await(t, w, Lost)
	cancel()
	<-ended
	require.False(t, slices.ContainsFunc(w.Take(), isLost))
}

// unopenable returns a source whose socket cannot be opened.
func unopenable(w *Watcher) *source {
	return &source{ListenOptions: sock.ListenOptions{Protocol: unix.NETLINK_ROUTE, Groups: []int{-1}, Buffer: w.buffer}}
}

// TestListensAgain: a socket that cannot be opened, or fails, is opened again.
func TestListensAgain(t *testing.T) {
	privhost.Require(t)
	var warnings []error
	w := New(0, func(err error) { warnings = append(warnings, err) })
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	w.follow(ctx, func() *source {
		if tries++; tries < 3 {
			return unopenable(w)
		}
		cancel()
		return w.links()
	})
	require.Equal(t, 3, tries)
	require.Len(t, warnings, 2)
	require.ErrorIs(t, warnings[0], unix.EINVAL)
}

// ownVeths makes and deletes n veths of attachments, as this process does it.
func ownVeths(t *testing.T, n int) {
	t.Helper()
	ns, err := sandbox.Create("watched")
	require.NoError(t, err)
	defer func() { require.NoError(t, ns.Destroy()) }()
	to, err := rtnl.OpenSandbox(ns.Path())
	require.NoError(t, err)
	defer to.Close()
	h := rtnl.OpenHost()
	defer h.Close()
	do(t, "ip link show brown >/dev/null 2>&1 || ip link add brown type bridge; ip link set brown up")
	br, err := h.Index("brown")
	require.NoError(t, err)
	var all sync.WaitGroup
	for i := range n {
		o := names.Owner{Network: "net", ID: fmt.Sprint("v", i), IfName: "eth0"}
		v := &rtnl.Veth{Master: br, Name: o.Veth(), Alias: o.String(), MAC: rtnl.RandomMAC(), PeerName: fmt.Sprint("e", i), PeerMAC: rtnl.RandomMAC()}
		require.NoError(t, h.CreateVeth(v, to))
	}
	for i := range n {
		all.Go(func() {
			o := names.Owner{Network: "net", ID: fmt.Sprint("v", i), IfName: "eth0"}
			if _, err := h.SetDown(o.Veth()); err != nil {
				t.Error(err)
			}
			time.Sleep(lastPause) // the watcher sees it before it is deleted
			if _, err := h.DeleteLink(t.Context(), o.Veth()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "brown").Run() })
}
