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
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// fake has flows and records.
type fake struct {
	flows   []ruleset.Denial
	records []allocnet.Record
	err     error
}

func (f *fake) Denials(context.Context) ([]ruleset.Denial, error) { return f.flows, f.err }
func (f *fake) List(context.Context) ([]allocnet.Record, error)   { return f.records, nil }

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
