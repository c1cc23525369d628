package netpolicy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
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
		Unlisted(context.Context) ([]ruleset.Unlisted, error)
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
	var named *named
	if err == nil {
		named, err = r.name(ctx, all)
	}
	if err != nil {
		d.Problems = append(d.Problems, strings.Join(strings.Fields(err.Error()), " "))
	}
	d.Flows = []client.DeniedFlow{}
	if named != nil {
		d.Flows, d.Omitted = fair(named.flows, maxFlows)
		d.Unlisted = named.unlisted
	}
	return d
}

// reading is what the kernel lists.
type reading struct {
	flows    []ruleset.Denial
	unlisted []ruleset.Unlisted
}

// named is a reading with the allocations and the rules.
type named struct {
	flows    []client.DeniedFlow
	unlisted []client.UnlistedDenials
}

// read returns the flows; none if the kernel has no nftables.
func (r *Reader) read(ctx context.Context) (all reading, err error) {
	if r.Rules == nil {
		return reading{}, nil
	}
	if all.flows, err = r.Rules.Denials(ctx); err == nil {
		all.unlisted, err = r.Rules.Unlisted(ctx)
	}
	if netfilter.IsUnsupported(err) {
		return reading{}, nil
	}
	return all, err
}

// name adds the allocations and the rules. Flows of allocations without a record, such as those
// of another state directory, are left out.
func (r *Reader) name(ctx context.Context, all reading) (*named, error) {
	if len(all.flows)+len(all.unlisted) == 0 {
		return nil, nil
	}
	records, listErr := r.Service.List(ctx)
	host, err := New(records)
	if err != nil {
		return nil, fmt.Errorf("find the rules that deny flows: %w", errors.Join(listErr, err))
	}
	n := &named{}
	for i := range all.flows {
		if f := host.denied(&all.flows[i]); f.ID != "" {
			n.flows = append(n.flows, f)
		}
	}
	n.unlisted = host.unlisted(all.unlisted)
	return n, listErr
}

// unlisted returns the packets of each allocation and direction, those with the most first.
func (h *Host) unlisted(all []ruleset.Unlisted) (list []client.UnlistedDenials) {
	for _, one := range all {
		u := client.UnlistedDenials{ID: h.Allocation(one.Address), Direction: direction(one.Ingress).String(), Packets: one.Packets}
		i := slices.IndexFunc(list, func(o client.UnlistedDenials) bool { return o.ID == u.ID && o.Direction == u.Direction })
		switch {
		case u.ID == "":
		case i < 0:
			list = append(list, u)
		default: // another address
			list[i].Packets += u.Packets
		}
	}
	slices.SortStableFunc(list, func(a, b client.UnlistedDenials) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Direction, b.Direction))
	})
	return list
}

func direction(isIngress bool) policy.Traffic {
	if isIngress {
		return policy.Ingress
	}
	return policy.Egress
}

// denied returns a flow with its allocation and rule.
func (h *Host) denied(d *ruleset.Denial) client.DeniedFlow {
	t := direction(d.Ingress)
	f := client.DeniedFlow{
		ID: h.Allocation(d.Address), Direction: t.String(), Address: d.Address.String(), Peer: d.Peer.String(), PeerID: h.Allocation(d.Peer),
		Protocol: policy.ProtocolName(d.Protocol), Port: int(d.Port), Packets: d.Packets, Bytes: d.Bytes,
	}
	if reason := h.denial(t, d.Address, d.Peer, policy.Flow{Protocol: d.Protocol, Port: d.Port}); reason != nil {
		f.Rule, f.Network = reason.Rule, reason.Network
	}
	return f
}

// denial returns the decision that denies a flow. The kernel does not list whether a flow to an allocation was sent
// to a host port: a decision that denies it in any case comes first.
func (h *Host) denial(t policy.Traffic, of, peer netip.Addr, flow policy.Flow) *Reason {
	if t == policy.Ingress {
		if reason := Denial(h.decisions(t, of, peer, flow, true)); reason != nil {
			return reason
		}
	}
	return Denial(h.Decisions(t, of, peer, flow))
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

// fair returns at most limit flows, those with the most packets first, such that each allocation has its first
// ones before another one has more. omitted is the number of the others.
func fair(flows []client.DeniedFlow, limit int) (list []client.DeniedFlow, omitted int) {
	list, _ = most(flows, len(flows), len(flows))
	if len(list) <= limit {
		return list, 0
	}
	count, place := map[string]int{}, make([]int, len(list))
	for i := range list {
		place[i] = count[list[i].ID]
		count[list[i].ID]++
	}
	places := slices.Clone(place)
	slices.Sort(places)
	last := places[limit] // the first place for which there is not room for all
	room := limit
	for _, p := range place {
		if p < last {
			room--
		}
	}
	var kept []client.DeniedFlow
	for i := range list {
		if place[i] == last && room > 0 {
			room--
			kept = append(kept, list[i])
		} else if place[i] < last {
			kept = append(kept, list[i])
		}
	}
	return kept, len(list) - len(kept)
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
	seen     map[ruleset.Denial]ruleset.Count // by the flow; nil before the first look
	unlisted map[ruleset.Unlisted]uint64      // packets
}

// Look returns the flows whose packets were dropped since the last look, with the number of
// these packets, those with the most first, and how many flows and packets it left out. The
// first look returns none. nil means that there were none.
func (f *Follower) Look(ctx context.Context) (*client.Denied, error) {
	all, err := f.read(ctx)
	if err != nil {
		return nil, err
	}
	first := f.seen == nil
	unlisted := f.grownUnlisted(all.unlisted)
	if first {
		unlisted = nil
	}
	named, err := f.name(ctx, reading{f.grown(all.flows), unlisted})
	if named == nil || len(named.flows)+len(named.unlisted) == 0 {
		return nil, err
	}
	d := &client.Denied{}
	d.Flows, d.Omitted = most(named.flows, eventFlows, eventPerAllocation)
	d.OmittedPackets = packets(named.flows) - packets(d.Flows)
	d.Unlisted = named.unlisted[:min(len(named.unlisted), eventFlows)]
	return d, err
}

// grownUnlisted returns the packets since the last look.
func (f *Follower) grownUnlisted(all []ruleset.Unlisted) (grown []ruleset.Unlisted) {
	before := f.unlisted
	f.unlisted = make(map[ruleset.Unlisted]uint64, len(all))
	for _, u := range all {
		key := u
		key.Count = ruleset.Count{}
		f.unlisted[key] = u.Packets
		if was := before[key]; was <= u.Packets {
			u.Packets -= was
		}
		if u.Packets > 0 {
			grown = append(grown, u)
		}
	}
	return grown
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
