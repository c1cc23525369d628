package rtnl_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

func open(t *testing.T) *rtnl.Host {
	t.Helper()
	privhost.Require(t)
	h := rtnl.OpenHost()
	t.Cleanup(h.Close)
	return h
}

func newSandbox(t *testing.T, name string) *rtnl.Sandbox {
	t.Helper()
	ns, err := sandbox.Create(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ns.Destroy()) })
	s, err := rtnl.OpenSandbox(ns.Path())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// veth returns a link of an ID that no other test uses: the kernel deletes the links of a
// network namespace some time after it.
func veth(id string) *rtnl.Veth {
	o := names.Owner{Network: "net", ID: id, IfName: "eth0"}
	return &rtnl.Veth{Name: o.Veth(), Alias: o.String(), MAC: rtnl.RandomMAC(), PeerName: "eth0", PeerMAC: rtnl.RandomMAC()}
}

func addBridge(t *testing.T, h *rtnl.Host, name string) int {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = name, rtnl.RandomMAC()
	require.NoError(t, h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	link, err := h.LinkByName(name)
	require.NoError(t, err)
	require.NoError(t, h.LinkSetUp(link))
	t.Cleanup(func() { require.NoError(t, h.LinkDel(link)) })
	return link.Attrs().Index
}

// TestCreateVethRoutesLoopback: the host's end can have route_localnet from the beginning,
// together with the setting of IPv6.
func TestCreateVethRoutesLoopback(t *testing.T) {
	h := open(t)
	for i, route := range []bool{false, true} {
		v := veth(fmt.Sprint("route", i))
		v.NoLinkLocal, v.RouteLoopback = true, route
		require.NoError(t, h.CreateVeth(v, newSandbox(t, fmt.Sprint("r", i))))
		value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + v.Name + "/route_localnet")
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintln(map[bool]int{false: 0, true: 1}[route]), string(value))
		mode, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + v.Name + "/addr_gen_mode")
		require.NoError(t, err)
		require.Equal(t, "1\n", string(mode))
	}
}

func TestCreateVeth(t *testing.T) {
	h := open(t)
	s := newSandbox(t, "a")
	v := veth("create")
	v.Master, v.Hairpin, v.Isolated, v.MTU = addBridge(t, h, "br0"), true, true, 1400
	require.NoError(t, h.CreateVeth(v, s))

	link, err := h.LinkByName(v.Name)
	require.NoError(t, err)
	attrs := link.Attrs()
	require.Equal(t, v.MAC, attrs.HardwareAddr)
	require.Equal(t, v.Alias, attrs.Alias)
	require.Equal(t, v.Master, attrs.MasterIndex)
	require.Equal(t, 1400, attrs.MTU)
	require.Equal(t, []int{1, 1}, []int{attrs.NumTxQueues, attrs.NumRxQueues})
	require.NotZero(t, attrs.Flags&net.FlagUp)
	port, err := netlink.LinkGetProtinfo(link)
	require.NoError(t, err)
	require.True(t, port.Hairpin)
	require.True(t, port.Isolated)
	up, err := h.AreOperational(v.Name)
	require.NoError(t, err)
	require.False(t, up, "its peer is down")

	peer, err := s.Link("eth0")
	require.NoError(t, err)
	require.Equal(t, v.PeerMAC, peer.Attrs().HardwareAddr)
	require.Equal(t, 1400, peer.Attrs().MTU)
	index, err := s.Index("eth0")
	require.NoError(t, err)
	require.Equal(t, peer.Attrs().Index, index)
	require.Equal(t, []int{attrs.Index, index}, []int{v.Index, v.PeerIndex})
	v.Index, v.PeerIndex = 0, 0
	require.NoError(t, v.Find(h, s), "where the kernel did not tell")
	require.Equal(t, []int{attrs.Index, index}, []int{v.Index, v.PeerIndex})
	for name, want := range map[string]bool{"eth0": true, "lo": true, "eth1": false} {
		has, err := s.Has(name)
		require.NoError(t, err)
		require.Equal(t, want, has, name)
	}
	require.NoError(t, s.SetUp(index))
	require.Equal(t, "1", sysctl(t, s, "net/ipv4/conf/eth0/arp_notify"))
	require.Equal(t, "0", sysctl(t, s, "net/ipv4/conf/eth0/arp_accept"))
	require.Eventually(t, func() bool {
		up, err := h.AreOperational(v.Name)
		return err == nil && up
	}, waitTime, pollTime)

	err = h.CreateVeth(v, s)
	require.ErrorIs(t, err, os.ErrExist)
	require.ErrorContains(t, err, `"eth0"`)
	_, err = h.LinkByName(v.Name)
	require.NoError(t, err, "the first one is still there")

	found, err := h.DeleteLink(t.Context(), v.Name)
	require.NoError(t, err)
	require.True(t, found)
	_, err = s.Index("eth0")
	require.True(t, rtnl.IsNotFound(err), "its peer went with it: %v", err)
	found, err = h.DeleteLink(t.Context(), v.Name)
	require.NoError(t, err)
	require.False(t, found)
}

// sysctl returns the value of a sysctl of the sandbox.
func sysctl(t *testing.T, s *rtnl.Sandbox, path string) string {
	t.Helper()
	var value []byte
	require.NoError(t, s.Do(func() (err error) {
		value, err = os.ReadFile("/proc/sys/" + path)
		return err
	}))
	return strings.TrimSpace(string(value))
}

func TestRouteLoopback(t *testing.T) {
	h := open(t)
	require.True(t, rtnl.IsNotFound(h.RouteLoopback("br-none")))
	addBridge(t, h, "br0")
	for range 2 {
		require.NoError(t, h.RouteLoopback("br0"))
		value, err := os.ReadFile("/proc/sys/net/ipv4/conf/br0/route_localnet")
		require.NoError(t, err)
		require.Equal(t, "1\n", string(value))
	}
	link, err := h.LinkByName("br0")
	require.NoError(t, err)
	require.NotZero(t, link.Attrs().Flags&net.FlagUp, "nothing else is changed")
}

// TestSetGroup: a link is found by its name, and no other one changes, also if there is none.
func TestSetGroup(t *testing.T) {
	h := open(t)
	addBridge(t, h, "br0")
	addBridge(t, h, "br1")
	require.True(t, rtnl.IsNotFound(h.SetGroup("br-none", 0)))
	for _, group := range []uint32{7, 7, 1 << 20, 0} {
		require.NoError(t, h.SetGroup("br0", group))
		is, err := h.LinkState("br0")
		require.NoError(t, err)
		require.Equal(t, group, is.Group)
		require.True(t, h.IsInGroup("br1", 0))
	}
}

// TestLinkState: what is read of a link is what netlink reads.
func TestLinkState(t *testing.T) {
	h := open(t)
	_, err := h.LinkState("br-none")
	require.True(t, rtnl.IsNotFound(err), err)
	addBridge(t, h, "br0")
	for _, change := range []func(netlink.Link) error{
		func(netlink.Link) error { return nil },
		h.LinkSetDown,
		h.SetPromiscOn,
		func(l netlink.Link) error { return h.LinkSetMTU(l, 1400) },
		func(l netlink.Link) error { return h.LinkSetAlias(l, "one") },
		func(l netlink.Link) error { return h.LinkSetGroup(l, 9) },
		func(l netlink.Link) error { return h.LinkSetARPOff(l) },
	} {
		link, err := h.LinkByName("br0")
		require.NoError(t, err)
		require.NoError(t, change(link))
		link, err = h.LinkByName("br0")
		require.NoError(t, err)
		want := link.Attrs()
		is, err := h.LinkState("br0")
		require.NoError(t, err)
		require.Equal(t, &rtnl.LinkState{
			Index: want.Index, Name: "br0", Alias: want.Alias, Kind: "bridge", MAC: want.HardwareAddr, MTU: want.MTU, Group: want.Group,
			Up: want.RawFlags&unix.IFF_UP != 0, NoARP: want.RawFlags&unix.IFF_NOARP != 0, Promiscuous: want.RawFlags&unix.IFF_PROMISC != 0,
			IPv6: rtnl.HasIPv6(),
		}, is)
		at, err := h.LinkStateAt(want.Index)
		require.NoError(t, err)
		require.Equal(t, is, at)
	}
	require.NoError(t, rtnl.SetSysctl("net/ipv4/conf/br0/arp_ignore", "8"))
	if rtnl.HasIPv6() {
		require.NoError(t, rtnl.SetSysctl("net/ipv6/conf/br0/disable_ipv6", "1"))
	}
	is, err := h.LinkState("br0")
	require.NoError(t, err)
	require.Equal(t, 8, is.ARPIgnore)
	require.Equal(t, rtnl.HasIPv6(), is.NoIPv6)
}

// TestSmallMTU: below the minimum MTU of IPv6, a link has no IPv6 and no sysctls of it.
func TestSmallMTU(t *testing.T) {
	h := open(t)
	v := veth("small")
	v.MTU, v.NoLinkLocal = 1279, true
	require.NoError(t, h.CreateVeth(v, newSandbox(t, "a")))
	_, err := h.DeleteLink(t.Context(), v.Name)
	require.NoError(t, err)
}

// TestBatchOfMany: no answer gets lost, nor what fails among them.
func TestBatchOfMany(t *testing.T) {
	s := newSandbox(t, "a")
	lo, err := s.Index("lo")
	require.NoError(t, err)
	require.NoError(t, s.SetUp(lo))
	const n = 3000
	var b rtnl.Batch
	for i := range n {
		b.AddAddress(lo, &net.IPNet{IP: net.IPv4(10, 9, byte(i>>8), byte(i)), Mask: net.CIDRMask(32, 32)}, 0)
	}
	require.NoError(t, s.Apply(&b))
	addresses, err := s.Addresses(lo)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(addresses), n)
	err = s.Apply(&b)
	require.ErrorIs(t, err, os.ErrExist)
	require.Len(t, strings.Split(err.Error(), "\n"), n)
}

// TestDeleteTogether: all links of concurrent deletions are deleted, missing ones are
// reported as such, and no other link is deleted.
func TestDeleteTogether(t *testing.T) {
	h := open(t)
	s := newSandbox(t, "a")
	const n = 40
	other := veth("other")
	other.PeerName = "other"
	require.NoError(t, h.CreateVeth(other, s))
	made := map[string]bool{other.Name: true}
	for i := range n {
		v := veth(fmt.Sprint(i))
		v.PeerName, made[v.Name] = fmt.Sprintf("eth%d", i), true
		require.NoError(t, h.CreateVeth(v, s))
	}
	found := make([]bool, 2*n)
	var running sync.WaitGroup
	for i := range found {
		running.Go(func() {
			var err error
			found[i], err = h.DeleteLink(t.Context(), veth(fmt.Sprint(i)).Name)
			if err != nil {
				t.Errorf("link %d: %v", i, err)
			}
		})
	}
	running.Wait()
	for i, f := range found {
		require.Equal(t, i < n, f, "link %d", i)
	}
	links, err := retry.List(h.LinkList)
	require.NoError(t, err)
	var left []string
	for _, l := range links {
		if made[l.Attrs().Name] {
			left = append(left, l.Attrs().Name)
		}
	}
	require.Equal(t, []string{other.Name}, left)
	_, err = h.DeleteLink(t.Context(), other.Name)
	require.NoError(t, err)
}

func TestDeleteHeedsTheContext(t *testing.T) {
	h := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.DeleteLink(ctx, "absent")
	if err != nil { // the kernel may have been faster
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Eventually(t, func() bool { // whatever came of it, the next one is served
		found, err := h.DeleteLink(t.Context(), "absent")
		return err == nil && !found
	}, waitTime, pollTime)
}

// TestBridgeFull: the 1024th port is refused with the reason.
func TestBridgeFull(t *testing.T) {
	h := open(t)
	s := newSandbox(t, "a")
	br := addBridge(t, h, "br0")
	const ports = 1023
	t.Cleanup(func() {
		var running sync.WaitGroup
		for i := range ports {
			running.Go(func() { _, _ = h.DeleteLink(context.Background(), veth(fmt.Sprint(i)).Name) })
		}
		running.Wait()
	})
	add := func(i int) error {
		v := veth(fmt.Sprint(i))
		v.PeerName, v.Master = fmt.Sprintf("p%d", i), br
		return h.CreateVeth(v, s)
	}
	for i := range ports {
		require.NoError(t, add(i))
	}
	err := add(ports)
	require.ErrorIs(t, err, rtnl.ErrBridgeFull)
	_, err = h.LinkByName(veth(fmt.Sprint(ports)).Name)
	require.True(t, rtnl.IsNotFound(err), "nothing is left of it")
}

func TestOwnedLinks(t *testing.T) {
	h := open(t)
	s := newSandbox(t, "a")
	for _, id := range []string{"live", "dead"} {
		v := veth(id)
		v.PeerName = id
		require.NoError(t, h.CreateVeth(v, s))
		t.Cleanup(func() { _, _ = h.DeleteLink(context.Background(), v.Name) })
	}
	owned, err := h.OwnedLinks(func(o names.Owner) bool { return o.Network == "net" && o.ID == "dead" })
	require.NoError(t, err)
	require.Equal(t, []string{veth("dead").Name}, owned)
}

func TestAddresses(t *testing.T) {
	open(t)
	s := newSandbox(t, "a")
	require.NoError(t, s.SetUp(rtnl.Loopback))
	prefix := func(text string) *net.IPNet {
		ip, n, err := net.ParseCIDR(text)
		require.NoError(t, err)
		return &net.IPNet{IP: ip, Mask: n.Mask}
	}
	var changes rtnl.Batch
	changes.AddAddress(rtnl.Loopback, prefix("10.1.2.3/24"), 0)
	changes.AddAddress(rtnl.Loopback, prefix("fd00::3/64"), rtnl.NoDAD)
	changes.AddRoute(&rtnl.Route{Index: rtnl.Loopback, Dst: prefix("10.9.0.0/16"), Via: net.ParseIP("10.1.2.9"), MTU: 1300, AdvMSS: 1200, Priority: 7})
	changes.AddRoute(&rtnl.Route{Index: rtnl.Loopback, Dst: prefix("fd00:9::/64"), Table: 100})
	require.NoError(t, s.Apply(&changes))
	err := s.Apply(&changes)
	require.ErrorIs(t, err, os.ErrExist)
	require.ErrorContains(t, err, "add address 10.1.2.3/24")
	require.ErrorContains(t, err, "add address fd00::3/64", "all are tried")
	require.NoError(t, s.Do(func() error {
		out, err := exec.Command("ip", "-4", "route").CombinedOutput()
		require.NoError(t, err)
		require.Contains(t, string(out), "10.9.0.0/16 via 10.1.2.9 dev lo metric 7 mtu 1300 advmss 1200")
		out, err = exec.Command("ip", "-6", "route", "show", "table", "100").CombinedOutput()
		require.NoError(t, err)
		require.Contains(t, string(out), "fd00:9::/64 dev lo")
		out, err = exec.Command("ip", "-4", "addr", "show", "dev", "lo").CombinedOutput()
		require.NoError(t, err)
		require.Contains(t, string(out), "10.1.2.3/24 brd 10.1.2.255")
		return nil
	}))
	list, err := s.Addresses(rtnl.Loopback)
	require.NoError(t, err)
	var text []string
	for _, a := range list {
		text = append(text, a.IPNet.String())
	}
	require.Subset(t, text, []string{"127.0.0.1/8", "10.1.2.3/24", "fd00::3/64"})
}

// TestAwaitReception: after it, each end of a link has joined the groups of its
// addresses. It runs many times, because the kernel sometimes joins them at once.
func TestAwaitReception(t *testing.T) {
	h := open(t)
	s := newSandbox(t, "a")
	gateway, address := net.ParseIP("fd00::1"), net.ParseIP("fd00::77")
	for range 50 {
		v := veth("await")
		require.NoError(t, h.CreateVeth(v, s))
		var changes rtnl.Batch
		changes.AddAddress(v.Index, &net.IPNet{IP: gateway, Mask: net.CIDRMask(128, 128)}, rtnl.NoDAD)
		require.NoError(t, h.Apply(&changes))
		changes = rtnl.Batch{}
		changes.SetUp(v.PeerIndex)
		changes.AddAddress(v.PeerIndex, &net.IPNet{IP: address, Mask: net.CIDRMask(64, 128)}, rtnl.NoDAD)
		require.NoError(t, s.Apply(&changes))
		ipv4 := net.ParseIP("10.1.2.3") // for which there is nothing to await
		require.NoError(t, h.AwaitReception(t.Context(), v.Index, ipv4, gateway))
		require.Contains(t, groups(t), "ff0200000000000000000001ff000001")
		require.NoError(t, s.AwaitReception(t.Context(), v.PeerIndex, address))
		require.NoError(t, s.Do(func() error {
			require.Contains(t, groups(t), "ff0200000000000000000001ff000077")
			return nil
		}))
		_, err := h.DeleteLink(t.Context(), v.Name)
		require.NoError(t, err)
	}
}

// groups are the IPv6 multicast groups in the namespace of the calling thread.
func groups(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/thread-self/net/igmp6")
	require.NoError(t, err)
	return string(data)
}

func TestAwaitReceptionOfAnAddressThatIsNotThere(t *testing.T) {
	h := open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := h.AwaitReception(ctx, rtnl.Loopback, net.ParseIP("fd00::1"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "fd00::1")
}

func TestSetSysctl(t *testing.T) {
	open(t)
	require.NoError(t, rtnl.SetSysctl("net/ipv4/ip_forward", "0"))
	require.NoError(t, rtnl.SetSysctl("net/ipv4/ip_forward", "1"))
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	require.NoError(t, err)
	require.Equal(t, "1\n", string(data))
	require.ErrorContains(t, rtnl.SetSysctl("net/ipv4/absent", "1"), "net/ipv4/absent")
	require.ErrorContains(t, rtnl.SetSysctl("net/ipv4/ip_forward", "x"), "net/ipv4/ip_forward")
}

// TestSetSysctlReadOnly: a file that cannot be written may have the value already.
func TestSetSysctlReadOnly(t *testing.T) {
	open(t)
	const readOnly = "net/ipv4/conf/all/mc_forwarding" // mode 0444, also for root
	require.NoError(t, rtnl.SetSysctl(readOnly, "0"))
	err := rtnl.SetSysctl(readOnly, "1")
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, "set sysctl "+readOnly+" to 1: open /proc/sys/"+readOnly)
}

// TestPause: a pause returns the error of its context, whether it blocks its thread or not.
func TestPause(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, d := range []time.Duration{time.Microsecond, time.Millisecond} {
		require.NoError(t, rtnl.Pause(t.Context(), d))
		require.ErrorIs(t, rtnl.Pause(ended, d), context.Canceled)
	}
}

func TestOpenSandboxRefusesTheHost(t *testing.T) {
	privhost.Require(t)
	_, err := rtnl.OpenSandbox("/proc/self/ns/net")
	require.ErrorIs(t, err, sandbox.ErrHostNamespace)
	_, err = rtnl.OpenSandbox("/run/netns/absent")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestNoDescriptorStays: what is opened is given back.
func TestNoDescriptorStays(t *testing.T) {
	open(t)
	ns, err := sandbox.Create("a")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ns.Destroy()) })
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(entries)
	}
	use := func() {
		s, err := rtnl.OpenSandbox(ns.Path())
		require.NoError(t, err)
		require.NoError(t, s.Close())
		h := rtnl.OpenHost()
		h.Close()
	}
	use() // the first use opens what the process keeps, such as Go's epoll
	before := count()
	for range 20 {
		use()
	}
	require.Equal(t, before, count())
}
