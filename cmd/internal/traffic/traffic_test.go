package traffic

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// records are a service with records.
type records struct {
	list []allocnet.Record
	err  error
}

func (r records) List(context.Context) ([]allocnet.Record, error) { return r.list, r.err }

// record returns the record of an allocation with a veth and addresses.
func record(id, veth string, addresses ...string) allocnet.Record {
	inside := allocnet.Interface{Network: "n", Name: "eth0", Sandbox: "/run/netns/" + id}
	for _, a := range addresses {
		inside.Addresses = append(inside.Addresses, allocnet.Address{Address: a})
	}
	return allocnet.Record{
		ID: id, Networks: []allocnet.NetworkRecord{{Network: "n"}},
		Status: &allocnet.Status{Interfaces: []allocnet.Interface{{Network: "n", Name: "br0"}, {Network: "n", Name: veth}, inside}},
	}
}

// track adds an entry of connection tracking, whose answers come from an address.
func track(t *testing.T, from, to, answers string) {
	t.Helper()
	a, b, c := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to), netip.MustParseAddrPort(answers)
	family := netlink.InetFamily(unix.AF_INET)
	if a.Addr().Is6() {
		family = unix.AF_INET6
	}
	require.NoError(t, netlink.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
		FamilyType: uint8(family), TimeOut: 600,
		Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: a.Addr().AsSlice(), SrcPort: a.Port(), DstIP: b.Addr().AsSlice(), DstPort: b.Port()},
		Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: c.Addr().AsSlice(), SrcPort: c.Port(), DstIP: a.Addr().AsSlice(), DstPort: a.Port()},
	}))
}

// TestCollect counts connections of both families: to the outside, through a published
// port, and of an allocation with itself.
func TestCollect(t *testing.T) {
	privhost.Require(t)
	require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	t.Cleanup(func() { require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "veth1"
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer1"}
	require.NoError(t, netlink.LinkAdd(link))
	t.Cleanup(func() { require.NoError(t, netlink.LinkDel(link)) })
	o := Options{Links: rtnl.OpenHost(), Conns: conntrack.New()}
	t.Cleanup(func() { o.Links.Close(); require.NoError(t, o.Conns.Close()) })
	acknowledged := record("d", "veth1")
	acknowledged.Acknowledged = true
	all := records{list: []allocnet.Record{
		record("a", "veth1", "10.0.0.2/24", "fd00::2/64"), record("b", "vethgone", "10.0.0.3/24"), {ID: "c", Phase: allocnet.PhaseAdding}, acknowledged,
	}}
	o.Service = all

	track(t, "10.0.0.2:1", "192.0.2.1:53", "192.0.2.1:53")
	track(t, "192.0.2.1:1", "192.0.2.2:80", "10.0.0.2:8080")
	track(t, "10.0.0.2:2", "192.0.2.2:80", "10.0.0.2:8080")
	track(t, "[fd00::2]:1", "[fd00::9]:53", "[fd00::9]:53")
	track(t, "192.0.2.1:1", "192.0.2.2:81", "192.0.2.9:8080")
	got := Collect(t.Context(), o)
	require.Empty(t, got.Problems)
	require.Len(t, got.Allocations, 2)
	require.Equal(t, "a b", got.Allocations[0].ID+" "+got.Allocations[1].ID)
	require.Equal(t, 4, *got.Allocations[0].Connections)
	require.Equal(t, 0, *got.Allocations[1].Connections)
	require.Len(t, got.Allocations[0].Interfaces, 1)
	require.Equal(t, "n eth0", got.Allocations[0].Interfaces[0].Network+" "+got.Allocations[0].Interfaces[0].Interface)
	require.Empty(t, got.Allocations[1].Interfaces)

	o.MaxConnections = 4
	got = Collect(t.Context(), o)
	require.Equal(t, []string{"the kernel tracks 5 connections: more than 4 are not counted for each allocation"}, got.Problems)
	require.Nil(t, got.Allocations[0].Connections)

	all.err = errors.New("record x\ncannot be read")
	o.Service, o.MaxConnections = all, 0
	got = Collect(t.Context(), o)
	require.Equal(t, []string{"record x cannot be read"}, got.Problems)
	require.Len(t, got.Allocations, 2)
}
