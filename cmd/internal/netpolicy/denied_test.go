package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// fake has flows and records.
type fake struct {
	flows    []ruleset.Denial
	unlisted []ruleset.Unlisted
	records  []allocnet.Record
	err      error
}

func (f *fake) Denials(context.Context) ([]ruleset.Denial, error)    { return f.flows, f.err }
func (f *fake) Unlisted(context.Context) ([]ruleset.Unlisted, error) { return f.unlisted, f.err }
func (f *fake) List(context.Context) ([]allocnet.Record, error)      { return f.records, nil }

// deny sets the packets that an allocation 10.1.0.N was denied to send to a port.
func (f *fake) deny(n, port int, packets uint64) {
	d := ruleset.Denial{Address: netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}), Peer: netip.MustParseAddr("192.0.2.1"), Protocol: 6, Port: uint16(port)}
	for i := range f.flows {
		if was := f.flows[i]; was.Address == d.Address && was.Port == d.Port {
			f.flows[i].Packets = packets
			return
		}
	}
	d.Packets = packets
	f.flows = append(f.flows, d)
}

func newFake(t *testing.T, allocations int) *fake {
	f := &fake{}
	for n := range allocations {
		f.records = append(f.records, record(fmt.Sprint("a", n), fmt.Sprintf("10.1.0.%d/16", n), `{"plugins":[{"type":"policy"}]}`, nil, mustParse(t, `{"egress":{"default":"deny"}}`)))
	}
	return f
}

// TestFollower: each look has the packets since the last one, bounded for each allocation and in
// all.
func TestFollower(t *testing.T) {
	f := newFake(t, 7)
	follower := &Follower{Reader: Reader{Rules: f, Service: f}}
	look := func() (string, int, uint64) {
		t.Helper()
		d, err := follower.Look(t.Context())
		require.NoError(t, err)
		if d == nil {
			return "none", 0, 0
		}
		text := ""
		for _, flow := range d.Flows {
			text += fmt.Sprint(flow.ID, " ", flow.Rule, " ", flow.Port, " ", flow.Packets, ";")
		}
		return text, d.Omitted, d.OmittedPackets
	}
	requireLook := func(text string) {
		t.Helper()
		got, omitted, _ := look()
		require.Equal(t, text, got)
		require.Zero(t, omitted)
	}
	f.deny(1, 80, 5)
	requireLook("none") // the first look
	requireLook("none")
	f.deny(1, 80, 7)
	f.deny(2, 81, 1)
	f.deny(99, 81, 1) // of no allocation
	requireLook("a1 default 80 2;a2 default 81 1;")
	f.deny(1, 80, 3) // it has left the list, and come back
	requireLook("a1 default 80 3;")
	f.flows = nil
	requireLook("none")

	for n := range 7 {
		for port := range 10 {
			f.deny(n, port, uint64(1000-n*100-port))
		}
	}
	_, omitted, packets := look()
	require.Equal(t, 70-32, omitted)
	d := (&Reader{Rules: f, Service: f}).Denials(t.Context())
	require.Len(t, d.Flows, 70)
	sum := uint64(0)
	for _, flow := range d.Flows {
		if n := int(flow.ID[1] - '0'); n > 3 || flow.Port > 7 {
			sum += flow.Packets
		}
	}
	require.Equal(t, sum, packets, "8 flows of each of the 4 allocations with the most packets are listed")
	f.flows[0].Packets++
	f.err = errors.New("broken")
	_, err := follower.Look(t.Context())
	require.ErrorContains(t, err, "broken")
}

func TestDenials(t *testing.T) {
	f := newFake(t, 1)
	f.err = unix.EOPNOTSUPP
	r := &Reader{Rules: f, Service: f}
	require.Empty(t, r.Denials(t.Context()).Problems, "a kernel without nftables has no policies")
	f.err = errors.New("broken\nfor now")
	require.Equal(t, []string{"broken for now"}, r.Denials(t.Context()).Problems)
	f.err = nil
	for port := range maxFlows + 3 {
		f.deny(0, port, uint64(port))
	}
	d := r.Denials(t.Context())
	require.Len(t, d.Flows, maxFlows)
	require.Equal(t, 3, d.Omitted)
	require.Equal(t, maxFlows+2, d.Flows[0].Port)
	f.records[0].Policy = nil
	require.Empty(t, r.Denials(t.Context()).Flows[0].Rule, "nothing denies it any more")
	require.NotNil(t, (&Reader{Service: f}).Denials(t.Context()).Flows)
}

// TestUnlistedDenials: packets of flows that are not listed are told, of each allocation.
func TestUnlistedDenials(t *testing.T) {
	f := newFake(t, 3)
	drop := func(n int, ingress bool, packets uint64) {
		f.unlisted = append(f.unlisted, ruleset.Unlisted{Ingress: ingress, Address: netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}), Count: ruleset.Count{Packets: packets}})
	}
	follower := &Follower{Reader: Reader{Rules: f, Service: f}}
	look := func() []client.UnlistedDenials {
		t.Helper()
		d, err := follower.Look(t.Context())
		require.NoError(t, err)
		if d == nil {
			return nil
		}
		require.NotNil(t, d.Flows)
		return d.Unlisted
	}
	drop(1, true, 5)
	require.Nil(t, look(), "the first look")
	drop(2, false, 7)
	drop(99, false, 7) // of no allocation
	f.unlisted[0].Packets = 6
	require.Equal(t, []client.UnlistedDenials{{ID: "a2", Direction: "egress", Packets: 7}, {ID: "a1", Direction: "ingress", Packets: 1}}, look())
	require.Nil(t, look())
	f.unlisted[0].Packets = 2 // it has timed out, and come back
	require.Equal(t, []client.UnlistedDenials{{ID: "a1", Direction: "ingress", Packets: 2}}, look())
	require.Equal(t, []client.UnlistedDenials{{ID: "a2", Direction: "egress", Packets: 7}, {ID: "a1", Direction: "ingress", Packets: 2}},
		(&Reader{Rules: f, Service: f}).Denials(t.Context()).Unlisted)
}

// TestFairDenials: an allocation with many flows leaves room for those of others.
func TestFairDenials(t *testing.T) {
	var flows []client.DeniedFlow
	for port := range 10 {
		flows = append(flows, client.DeniedFlow{ID: "many", Port: port, Packets: 100})
	}
	for port := range 2 {
		flows = append(flows, client.DeniedFlow{ID: "few", Port: port, Packets: 1})
	}
	for limit, want := range map[int][2]int{1: {1, 0}, 2: {1, 1}, 3: {2, 1}, 4: {2, 2}, 6: {4, 2}, 11: {9, 2}, 12: {10, 2}, 20: {10, 2}} {
		list, omitted := fair(flows, limit)
		count := map[string]int{}
		for _, f := range list {
			count[f.ID]++
		}
		require.Equal(t, want, [2]int{count["many"], count["few"]}, "%d", limit)
		require.Equal(t, len(flows), len(list)+omitted)
	}
}
