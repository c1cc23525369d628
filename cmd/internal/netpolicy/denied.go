package netpolicy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/policy"
)

// Reader reads the flows that policies have dropped. It is safe for concurrent use.
type Reader struct {
	// Rules is a *ruleset.Ruleset; nil for no flows.
	Rules interface {
		Denials(context.Context) ([]ruleset.Denial, error)
	}
	Service interface {
		List(context.Context) ([]allocnet.Record, error)
	}
}

// OpenRules opens the connection for the counters of policies; nil if the kernel has no nftables.
func OpenRules() (*ruleset.Ruleset, error) {
	r, err := ruleset.Open()
	if netfilter.IsUnsupported(err) {
		return nil, nil
	}
	return r, err
}

// maxFlows is the maximum number of flows in one HostDenials.
const maxFlows = 1024

// Denials returns the flows of the last five minutes, with the rules that deny them. What
// cannot be read is in the Problems.
func (r *Reader) Denials(ctx context.Context) *client.HostDenials {
	d := &client.HostDenials{Time: time.Now(), Problems: []string{}}
	all, err := r.read(ctx)
	var named []client.DeniedFlow
	if err == nil {
		named, err = r.name(ctx, all)
	}
	if err != nil {
		d.Problems = append(d.Problems, strings.Join(strings.Fields(err.Error()), " "))
	}
	d.Flows, d.Omitted = most(named, maxFlows, maxFlows)
	return d
}

// read returns the flows; none if the kernel has no nftables.
func (r *Reader) read(ctx context.Context) ([]ruleset.Denial, error) {
	if r.Rules == nil {
		return nil, nil
	}
	all, err := r.Rules.Denials(ctx)
	if netfilter.IsUnsupported(err) {
		return nil, nil
	}
	return all, err
}

// name adds the allocations and the rules. Flows of allocations without a record, such as those
// of another state directory, are left out.
func (r *Reader) name(ctx context.Context, all []ruleset.Denial) ([]client.DeniedFlow, error) {
	if len(all) == 0 {
		return nil, nil
	}
	records, listErr := r.Service.List(ctx)
	host, err := New(records)
	if err != nil {
		return nil, fmt.Errorf("find the rules that deny flows: %w", errors.Join(listErr, err))
	}
	var flows []client.DeniedFlow
	for i := range all {
		if f := host.denied(&all[i]); f.ID != "" {
			flows = append(flows, f)
		}
	}
	return flows, listErr
}

// denied returns a flow with its allocation and rule.
func (h *Host) denied(d *ruleset.Denial) client.DeniedFlow {
	t := policy.Egress
	if d.Ingress {
		t = policy.Ingress
	}
	f := client.DeniedFlow{
		ID: h.Allocation(d.Address), Direction: t.String(), Address: d.Address.String(), Peer: d.Peer.String(), PeerID: h.Allocation(d.Peer),
		Protocol: policy.ProtocolName(d.Protocol), Port: int(d.Port), Packets: d.Packets, Bytes: d.Bytes,
	}
	if reason := Denial(h.Decisions(t, d.Address, d.Peer, policy.Flow{Protocol: d.Protocol, Port: d.Port})); reason != nil {
		f.Rule, f.Network = reason.Rule, reason.Network
	}
	return f
}

// most returns the flows with the most packets: at most limit, and at most perAllocation of
// one allocation. omitted is the number of the others.
func most(flows []client.DeniedFlow, limit, perAllocation int) (list []client.DeniedFlow, omitted int) {
	slices.SortStableFunc(flows, func(a, b client.DeniedFlow) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Port, b.Port))
	})
	list = []client.DeniedFlow{}
	count := map[string]int{}
	for _, f := range flows {
		if len(list) < limit && count[f.ID] < perAllocation {
			count[f.ID]++
			list = append(list, f)
		}
	}
	return list, len(flows) - len(list)
}

// Bounds of an event.
const (
	eventFlows         = 32
	eventPerAllocation = 8
)

// Follower finds the flows that were denied since its last look. It is not safe for
// concurrent use.
type Follower struct {
	Reader
	seen map[ruleset.Denial]ruleset.Count // by the flow; nil before the first look
}

// Look returns the flows whose packets were dropped since the last look, with the number of
// these packets, those with the most first, and how many flows and packets it left out. The
// first look returns none. nil means that there were none.
func (f *Follower) Look(ctx context.Context) (*client.Denied, error) {
	all, err := f.read(ctx)
	if err != nil {
		return nil, err
	}
	named, err := f.name(ctx, f.grown(all))
	if len(named) == 0 {
		return nil, err
	}
	d := &client.Denied{}
	d.Flows, d.Omitted = most(named, eventFlows, eventPerAllocation)
	d.OmittedPackets = packets(named) - packets(d.Flows)
	return d, err
}

func packets(flows []client.DeniedFlow) (sum uint64) {
	for i := range flows {
		sum += flows[i].Packets
	}
	return sum
}

// grown returns the flows with more packets than at the last look. A flow with fewer has
// left the list and come back.
func (f *Follower) grown(all []ruleset.Denial) []ruleset.Denial {
	before := f.seen
	f.seen = make(map[ruleset.Denial]ruleset.Count, len(all))
	var grown []ruleset.Denial
	for _, d := range all {
		key, was := d, ruleset.Count{}
		key.Count = ruleset.Count{}
		if known, ok := before[key]; ok && known.Packets <= d.Packets {
			was = known
		}
		f.seen[key] = d.Count
		if d.Packets > was.Packets && before != nil {
			d.Packets, d.Bytes = d.Packets-was.Packets, d.Bytes-was.Bytes
			grown = append(grown, d)
		}
	}
	return grown
}
