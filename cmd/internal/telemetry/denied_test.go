package telemetry

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// TestDeniedPackets: the sums only grow, while attachments come and go.
func TestDeniedPackets(t *testing.T) {
	var list []ruleset.Dropped
	var broken error
	r := newRig(Options{Denied: func() ([]ruleset.Dropped, error) { return list, broken }})
	of := func(network, id string, egress, ingress uint64) ruleset.Dropped {
		return ruleset.Dropped{Owner: names.Owner{Network: network, ID: id, IfName: "eth0"}, Egress: ruleset.Count{Packets: egress}, Ingress: ruleset.Count{Packets: ingress}}
	}
	require.Empty(t, r.series(t, "policy_denied_packets_total"))
	for _, step := range []struct {
		list            []ruleset.Dropped
		egress, ingress string
	}{
		{[]ruleset.Dropped{of("blue", "a", 3, 4)}, "3", "4"},
		{[]ruleset.Dropped{of("blue", "a", 5, 4), of("blue", "b", 1, 1)}, "6", "5"},
		{nil, "6", "5"},
		{[]ruleset.Dropped{of("blue", "a", 1, 0)}, "7", "5"},
		{[]ruleset.Dropped{of("blue", "a", 0, 2)}, "7", "7"},
	} {
		list = step.list
		r.add(hostTime)
		require.Equal(t, []string{
			`policy_denied_packets_total{direction="egress",network="blue"} ` + step.egress, `policy_denied_packets_total{direction="ingress",network="blue"} ` + step.ingress,
		}, r.series(t, "policy_denied_packets_total"))
	}
	broken = errors.New("broken")
	r.add(hostTime)
	require.Empty(t, r.series(t, "policy_denied_packets_total"))
}

// TestSubscribers: the arrival of the first subscriber is announced, and the end of each counts.
func TestSubscribers(t *testing.T) {
	r := newRig(Options{})
	b := r.Events()
	require.Zero(t, b.Subscribers())
	ctx, cancel := context.WithCancel(t.Context())
	first := b.Subscribe(ctx, 0)
	second := b.Subscribe(ctx, 0)
	<-b.Arrived()
	require.Equal(t, 2, b.Subscribers())
	r.Denied(&client.Denied{Flows: []client.DeniedFlow{{ID: "a"}}, Omitted: 1})
	e := <-first
	require.Equal(t, client.TypeDenied, e.Type)
	require.Equal(t, "a", e.Data.(client.Denied).Flows[0].ID)
	cancel()
	for range first { // until it is closed
	}
	for range second {
	}
	require.Zero(t, b.Subscribers())
}
