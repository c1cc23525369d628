package cleanup

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

func sortedCopy(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}

const (
	subnet4 = "10.77.0.0/24"
	subnet6 = "fd00:77::/64"
)

var subnetSets = map[string][]string{"v4": {subnet4}, "v6": {subnet6}, "dual": {subnet4, subnet6}}

// eachNetwork runs a test with every combination of plugin and backend, and
// with the given families.
func eachNetwork(t *testing.T, families []string, test func(t *testing.T, n network)) {
	i := 0
	for _, kind := range []string{"bridge", "ptp"} {
		for _, backend := range []string{"iptables", "nftables"} {
			for _, families := range families {
				subnets := subnetSets[families]
				n := network{name: "net-" + kind, kind: kind, backend: backend, subnets: subnets}
				t.Run(kind+"/"+backend+"/"+families, func(t *testing.T) {
					skip.InTurn(t, i, 4)
					test(t, n)
				})
				i++
			}
		}
	}
}

// expected returns the leftovers of an allocation with the test ports that was
// never detached.
func expected(n network) map[string]int {
	want := map[string]int{"link": 1, "lease": len(n.subnets), "cache": 1}
	for _, subnet := range n.subnets {
		fam, nft, ports, masqs := ipv4, "ip", 3, 2
		if subnet == subnet6 {
			fam, nft, ports, masqs = ipv6, "ip6", 2, 1 // IPv6 has no port on 127.0.0.1 and no masquerading from it
		}
		want[fmt.Sprintf("iptables-rule %s filter CNI-FORWARD", fam)] = 2
		if n.backend == "iptables" {
			want[fmt.Sprintf("iptables-rule %s nat POSTROUTING", fam)] = 1
			want[fmt.Sprintf("iptables-rule %s nat CNI-HOSTPORT-DNAT", fam)] = 2 // one per protocol
			want[fmt.Sprintf("iptables-chain %s nat", fam)] = 2
		} else {
			want["nftables-rule inet cni_plugins_masquerade masq_checks"]++
			want[fmt.Sprintf("nftables-rule %s cni_hostport hostports", nft)] = ports
			want[fmt.Sprintf("nftables-rule %s cni_hostport masquerading", nft)] = masqs
		}
	}
	return want
}

var otherPorts = []portmap.Mapping{
	{HostPort: 19090, ContainerPort: 80, Protocol: "tcp"},
	{HostPort: 19090, ContainerPort: 80, Protocol: "udp"},
}

func TestForceRemovesAll(t *testing.T) {
	eachNetwork(t, []string{"v4", "v6", "dual"}, func(t *testing.T, n network) {
		h := newTestHost(t)
		other := h.add(n, "alloc-1x", otherPorts)
		before, others := h.snapshot(), h.audit(other)
		require.NotEmpty(t, others)

		target := h.add(n, "alloc-1", testPorts)
		require.Equal(t, expected(n), counts(t, target))
		found, during := h.audit(target), h.snapshot()
		require.Equal(t, found, h.audit(target), "audit is not deterministic")
		require.Equal(t, during, h.snapshot(), "audit changed something")

		require.Equal(t, found, h.force(target))
		require.Empty(t, h.audit(target))
		require.Equal(t, before, h.snapshot())
		require.Equal(t, others, h.audit(other))
		require.Empty(t, h.force(target))
	})
}

func TestForceAfterNetnsIsGone(t *testing.T) {
	eachNetwork(t, []string{"dual"}, func(t *testing.T, n network) {
		h := newTestHost(t)
		other := h.add(n, "alloc-1", otherPorts)
		before := h.snapshot()
		target := h.add(n, "alloc-12", testPorts)
		require.NoError(t, netns.DeleteNamed("sandbox-alloc-12"))

		h.force(target)
		require.Empty(t, h.audit(target))
		require.Equal(t, before, h.snapshot())
		require.NotEmpty(t, h.audit(other))
	})
}

func TestForceWithoutResult(t *testing.T) {
	eachNetwork(t, []string{"dual"}, func(t *testing.T, n network) {
		h := newTestHost(t)
		h.add(n, "alloc-1", otherPorts)
		before := h.snapshot()
		target := h.add(n, "alloc", testPorts)
		full := target
		target.Attachments = []Attachment{{Network: n.name, IfName: "eth0", Config: target.Attachments[0].Config}}

		require.Equal(t, h.audit(full), h.audit(target), "with the cached result")
		target.CacheDirs = nil
		want := expected(n)
		delete(want, "cache")
		require.Equal(t, want, counts(t, target))
		h.force(target)
		require.NoError(t, os.Remove(filepath.Join(h.cacheDir, "results", n.name+"-alloc-eth0")))
		require.Empty(t, h.audit(full))
		require.Equal(t, before, h.snapshot())
	})
}

// TestForceStaticWithoutResult: without leases and results, the addresses are
// derived from the rules.
func TestForceStaticWithoutResult(t *testing.T) {
	for i, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			skip.InTurn(t, i, 2)
			h := newTestHost(t)
			n := network{name: "n", kind: "bridge", backend: backend, subnets: []string{subnet4, subnet6}}
			n.ipam = `{"type": "static", "addresses": [{"address": "10.77.0.3/24"}, {"address": "fd00:77::3/64"}]}`
			h.add(n, "first", otherPorts)
			before := h.snapshot()
			n.ipam = `{"type": "static", "addresses": [{"address": "10.77.0.9/24"}, {"address": "fd00:77::9/64"}]}`
			target := h.add(n, "second", testPorts)
			target.Attachments[0].Result = nil
			cached := target.CacheDirs
			target.CacheDirs = nil

			want := expected(n)
			delete(want, "cache")
			delete(want, "lease")
			require.Equal(t, want, counts(t, target))
			flow := track(t, unix.IPPROTO_TCP, "192.0.2.1:4000", "192.0.2.2:18080", "10.77.0.9:80")
			require.NoError(t, FlushConntrack(context.Background(), target))
			require.NotContains(t, tracked(t), flow)
			h.force(target)
			target.CacheDirs = cached
			h.force(target)
			require.Equal(t, before, h.snapshot())
		})
	}
}

// TestForceByIDAlone: all objects that carry the ID are found with nothing but
// the ID.
func TestForceByIDAlone(t *testing.T) {
	for i, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			skip.InTurn(t, i, 2)
			h := newTestHost(t)
			n := network{name: "n", kind: "bridge", backend: backend, subnets: []string{subnet4, subnet6}}
			n.ipam = `{"type": "host-local", "ranges": [[{"subnet": "` + subnet4 + `"}], [{"subnet": "` + subnet6 + `"}]]}`
			t.Cleanup(func() { os.RemoveAll(lease.DefaultDataDir) })
			other := h.add(n, "x-1", otherPorts)
			before, others := h.snapshot(), h.audit(other)
			target := h.add(n, "1", testPorts)
			bare := Target{ID: "1", CacheDirs: target.CacheDirs}

			want := expected(n)
			delete(want, "link")
			require.Equal(t, want, counts(t, bare))
			h.force(bare)
			require.Equal(t, []string{h.hostLink(target)}, h.audit(target))
			h.force(target)
			require.Equal(t, before, h.snapshot())
			require.Equal(t, others, h.audit(other))
		})
	}
}

// hostLink returns the target's only link as a leftover.
func (h *testHost) hostLink(t Target) string {
	result := parseResult(t.Attachments[0].Result)
	for _, i := range result.Interfaces {
		if i.Sandbox == "" && i.Name != "cni-test" {
			return Leftover{Kind: KindLink, Network: t.Attachments[0].Network, Object: i.Name}.String()
		}
	}
	return ""
}

// TestForceKeepsAlikeAllocations: an ID may be a prefix or suffix of another
// one, and the plugins hash network and ID without a separator, so two
// allocations can share a chain.
func TestForceKeepsAlikeAllocations(t *testing.T) {
	pairs := []struct{ network, id, otherNetwork, otherID string }{
		{"net", "abc", "net", "abcd"},
		{"net", "abcd", "net", "abc"},
		{"net", "bcd", "net", "abcd"},
		{"a.-_b", "x.y_z-", "aX-_b", "xXy_z-"},
		{"net", "1a", "net1", "a"},
	}
	for i, backend := range []string{"iptables", "nftables"} {
		for j, p := range pairs {
			t.Run(fmt.Sprintf("%s/%s %s not %s %s", backend, p.network, p.id, p.otherNetwork, p.otherID), func(t *testing.T) {
				skip.InTurn(t, i+2*j, 5)
				h := newTestHost(t)
				n := network{name: p.otherNetwork, kind: "ptp", backend: backend, subnets: []string{subnet4}}
				other := h.add(n, p.otherID, otherPorts)
				// Two networks have different addresses, as on any working
				// host.
				if p.network != p.otherNetwork {
					n.subnets = []string{"10.78.0.0/24"}
				}
				n.name = p.network
				before, others := h.snapshot(), h.audit(other)
				target := h.add(n, p.id, testPorts)

				h.force(target)
				require.Empty(t, h.audit(target))
				require.Equal(t, others, h.audit(other), "something of the other went")
				if p.network+p.id != p.otherNetwork+p.otherID {
					require.Equal(t, before, h.snapshot())
				}
			})
		}
	}
}

func TestForceOneOfTwoNetworks(t *testing.T) {
	h := newTestHost(t)
	both := h.add(network{name: "one", kind: "bridge", backend: "iptables", subnets: []string{subnet4}}, "id", testPorts)
	before := h.snapshot()
	both = h.attach(network{name: "two", kind: "ptp", backend: "iptables", subnets: []string{"10.78.0.0/24"}}, both)
	second := both
	second.Attachments = both.Attachments[1:]

	h.force(second)
	require.Equal(t, before, h.snapshot())
	h.force(both)
	require.Empty(t, h.audit(both))
}

// TestForceKeepsReleasedAddress: an address that was released and assigned
// again belongs to the new allocation.
func TestForceKeepsReleasedAddress(t *testing.T) {
	for i, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			skip.InTurn(t, i, 2)
			h := newTestHost(t)
			n := network{name: "n", kind: "bridge", backend: backend}
			n.ipam = fmt.Sprintf(`{"type": "host-local", "dataDir": %q,
				"ranges": [[{"subnet": %q, "rangeStart": "10.77.0.5", "rangeEnd": "10.77.0.5"}]]}`, h.dataDir, subnet4)
			old := h.add(n, "old", testPorts)
			require.NoError(t, netns.DeleteNamed("sandbox-old"))
			require.NoError(t, os.Remove(filepath.Join(h.dataDir, "n", "10.77.0.5")))
			owner := h.add(n, "owner", otherPorts)
			flow := track(t, unix.IPPROTO_TCP, "192.0.2.1:4000", "192.0.2.2:19090", "10.77.0.5:80")

			require.Len(t, acceptsIn(h.snapshot(), "10.77.0.5"), 2)
			h.force(old)
			require.NoError(t, FlushConntrack(context.Background(), old))
			require.Empty(t, h.audit(old))
			require.Len(t, acceptsIn(h.snapshot(), "10.77.0.5"), 2)
			require.Contains(t, tracked(t), flow)
			h.force(owner)
			require.Empty(t, acceptsIn(h.snapshot(), "10.77.0.5"))
			require.NotContains(t, tracked(t), flow)
		})
	}
}

// TestForceKeepsAddressOfMasquerade: without leases, another allocation's
// masquerading shows who has the address.
func TestForceKeepsAddressOfMasquerade(t *testing.T) {
	for i, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			skip.InTurn(t, i, 2)
			h := newTestHost(t)
			n := network{name: "n", kind: "ptp", backend: backend}
			n.ipam = `{"type": "static", "addresses": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}]}`
			old := h.add(n, "old", testPorts)
			require.NoError(t, netns.DeleteNamed("sandbox-old"))
			awaitNoLink(t, old)
			h.add(n, "owner", otherPorts)
			flow := track(t, unix.IPPROTO_TCP, "192.0.2.1:4000", "192.0.2.2:19090", "10.77.0.5:80")

			require.NoError(t, FlushConntrack(context.Background(), old))
			h.force(old)
			require.Contains(t, tracked(t), flow)
			require.Empty(t, h.audit(old))
			require.Len(t, acceptsIn(h.snapshot(), "10.77.0.5"), 2)
		})
	}
}

func TestForceConcurrently(t *testing.T) {
	for i, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			skip.InTurn(t, i, 2)
			h := newTestHost(t)
			n := network{name: "n", kind: "bridge", backend: backend, subnets: []string{subnet4, subnet6}}
			other := h.add(n, "other", nil)
			h.force(h.add(n, "first", testPorts)) // creates the shared chains
			before, others := h.snapshot(), h.audit(other)
			var targets []Target
			number := 6
			if testing.Short() {
				number = 3
			}
			for i := range number {
				ports := []portmap.Mapping{{HostPort: 20000 + i, ContainerPort: 80, Protocol: "udp"}}
				targets = append(targets, h.add(n, fmt.Sprintf("a%d", i), ports))
			}

			var wg sync.WaitGroup
			errs := make(chan error, 3*len(targets))
			for _, target := range targets {
				for range 3 {
					wg.Go(func() {
						_, err := Force(context.Background(), target)
						errs <- err
					})
				}
			}
			wg.Wait()
			close(errs)
			for err := range errs {
				require.NoError(t, err)
			}
			require.Equal(t, before, h.snapshot())
			require.Equal(t, others, h.audit(other))
		})
	}
}

func TestBandwidthLinks(t *testing.T) {
	h := newTestHost(t)
	n := network{name: "n", kind: "bridge", backend: "nftables", subnets: []string{subnet4}}
	h.add(n, "other", nil)
	before := h.snapshot()
	n.extra = `,{"type": "bandwidth", "capabilities": {"bandwidth": true}}`
	target := h.add(n, "id", nil)
	require.Equal(t, 2, counts(t, target)["link"])

	unknown := target
	unknown.Attachments = []Attachment{{Network: "n", IfName: "eth0"}}
	unknown.CacheDirs = nil
	require.Equal(t, 2, counts(t, unknown)["link"])

	h.force(target)
	require.Equal(t, before, h.snapshot())
}

// TestForceKeepsForeignLinks: a link whose name is used by another program, and
// links that no plugin made, stay.
func TestForceKeepsForeignLinks(t *testing.T) {
	h := newTestHost(t)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "vethtaken", HardwareAddr: mac}, PeerName: "vethpeer",
	}))
	require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni-test"}}))
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{ // the interface with the gateways of VLAN 7
		LinkAttrs: netlink.LinkAttrs{Name: "cni-test.7", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 7}}, PeerName: "vethvlan7",
	}))
	result := `{"cniVersion": "1.0.0", "interfaces": [
		{"name": "vethtaken", "mac": "02:00:00:00:00:01"}, {"name": "cni-test"}, {"name": "lo"},
		{"name": "cni-test.7", "mac": "02:00:00:00:00:07"},
		{"name": "vethpeer", "sandbox": "/run/netns/x"}, {"name": "gone"}]}`
	target := Target{ID: "id", Netns: "/proc/self/ns/net", Attachments: []Attachment{
		{Network: "n", IfName: "eth0", Config: []byte(`{"type": "bridge"}`), Result: []byte(result)},
		{Network: "m", IfName: "vethpeer", Config: []byte(`{"type": "bridge"}`)},
	}}
	before := h.snapshot()
	require.Empty(t, h.force(target))
	require.Equal(t, before, h.snapshot())

	// The same link with the right MAC belongs to the allocation.
	target.Attachments[0].Result = []byte(`{"cniVersion": "1.0.0",
		"interfaces": [{"name": "vethtaken", "mac": "02:00:00:00:00:09"}]}`)
	require.Equal(t, []string{`link vethtaken (network "n")`}, h.force(target))
}

func TestConntrack(t *testing.T) {
	h := newTestHost(t)
	result := []byte(`{"cniVersion": "1.0.0", "ips": [{"address": "10.77.0.5/24"}, {"address": "fd00:77::5/64"}]}`)
	target := Target{
		ID: "id",
		Attachments: []Attachment{{
			Network: "n", IfName: "eth0", Config: []byte(`{"plugins": [{"type": "portmap", "backend": "nftables"}]}`), Result: result,
		}},
		Ports: []portmap.Mapping{
			{HostPort: 5353, ContainerPort: 53, Protocol: "udp"},
			{HostPort: 6000, ContainerPort: 60, Protocol: "udp", HostIP: "127.0.0.3"},
			{HostPort: 7000, ContainerPort: 70, Protocol: "tcp"},
		},
	}
	gone := []string{
		track(t, unix.IPPROTO_UDP, "192.0.2.1:1", "192.0.2.2:999", "10.77.0.5:53"),
		track(t, unix.IPPROTO_TCP, "192.0.2.1:2", "192.0.2.2:7000", "10.77.0.5:70"),
		track(t, unix.IPPROTO_SCTP, "192.0.2.1:0", "192.0.2.2:0", "10.77.0.5:0"), // not every kernel knows its ports
		track(t, unix.IPPROTO_TCP, "[2001:db8::1]:4", "[2001:db8::2]:7000", "[fd00:77::5]:70"),
		track(t, unix.IPPROTO_UDP, "192.0.2.1:5", "127.0.0.1:5353", "127.0.0.1:5353"),
		track(t, unix.IPPROTO_UDP, "192.0.2.1:6", "127.0.0.1:5353", "10.77.0.99:53"),
		track(t, unix.IPPROTO_UDP, "192.0.2.1:7", "127.0.0.3:6000", "127.0.0.3:6000"),
		track(t, unix.IPPROTO_UDP, "[2001:db8::1]:8", "[::1]:5353", "[::1]:5353"),
		track(t, unix.IPPROTO_TCP, "192.0.2.1:4", "10.77.0.5:70", "10.77.0.5:70"), // not DNATed
		track(t, unix.IPPROTO_UDP, "10.77.0.5:9", "192.0.2.2:53", "192.0.2.2:53"), // the allocation's own connection
		track(t, unix.IPPROTO_TCP, "[fd00:77::5]:9", "[2001:db8::9]:1", "[2001:db8::9]:1"),
	}
	kept := []string{
		track(t, unix.IPPROTO_UDP, "10.77.0.9:1", "192.0.2.2:5353", "192.0.2.2:5353"), // forwarded
		track(t, unix.IPPROTO_UDP, "192.0.2.1:2", "127.0.0.1:6000", "127.0.0.1:6000"), // another host address
		track(t, unix.IPPROTO_TCP, "192.0.2.1:3", "127.0.0.1:7000", "127.0.0.1:7000"), // not UDP
		track(t, unix.IPPROTO_TCP, "192.0.2.1:5", "192.0.2.2:7000", "10.77.0.50:70"),  // another allocation
		track(t, unix.IPPROTO_UDP, "192.0.2.1:6", "127.0.0.1:53", "127.0.0.1:53"),     // another port
	}
	require.ElementsMatch(t, slices.Concat(gone, kept), tracked(t))
	require.Equal(t, []string{
		"conntrack ipv4 sctp 10.77.0.5 (entries: 1)",
		"conntrack ipv4 tcp 10.77.0.5 (entries: 1)",
		"conntrack ipv4 udp 10.77.0.5 (entries: 1)",
		"conntrack ipv6 tcp fd00:77::5 (entries: 1)",
	}, h.audit(target), "what a client makes again by itself is no leftover")

	require.NoError(t, FlushConntrack(context.Background(), target))
	require.ElementsMatch(t, kept, tracked(t))
	require.Empty(t, h.audit(target))
	require.Empty(t, h.force(target))
}

// track adds a connection tracking entry, and returns its text.
func track(t *testing.T, protocol uint8, from, to, served string) string {
	t.Helper()
	return flowText(testhost.Track(t, protocol, from, to, served))
}

func flowText(f *netlink.ConntrackFlow) string {
	return fmt.Sprintf("%d %s:%d %s:%d %s:%d", f.Forward.Protocol, f.Forward.SrcIP, f.Forward.SrcPort,
		f.Forward.DstIP, f.Forward.DstPort, f.Reverse.SrcIP, f.Reverse.SrcPort)
}

// tracked returns the connection tracking entries of the relevant protocols.
func tracked(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, fam := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := retry.List(func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, fam)
		})
		require.NoError(t, err)
		for _, flow := range flows {
			list = append(list, flowText(flow))
		}
	}
	return list
}
