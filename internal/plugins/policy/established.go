package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/policystate"
)

// endDenied ends the tracked connections of attachments that their policy, or the policy of the other end,
// denies now. The rules only look at the first packet of a connection. If policies were restored, which
// attachments share, it ends those of all attachments with these policies.
func endDenied(ctx context.Context, host *sdk.Host, list []*attachment, restored bool) error {
	return endDeniedOf(ctx, host, func(j *judge) error { return j.consider(list, restored) })
}

// EndDenied is endDenied of all attachments, after rules were made again that all policies share.
func EndDenied(ctx context.Context, host *sdk.Host) error {
	return endDeniedOf(ctx, host, func(j *judge) error { return j.considerPolicies(func(string) bool { return true }, nil) })
}

// endRestored is endDenied of all attachments with the policy, if join has made something of it again.
func (a *attachment) endRestored(ctx context.Context) error {
	if !a.restored {
		return nil
	}
	return endDeniedOf(ctx, a.args.Host, func(j *judge) error {
		return j.considerPolicies(func(id string) bool { return id == a.member.Policy }, nil)
	})
}

func endDeniedOf(ctx context.Context, host *sdk.Host, consider func(*judge) error) error {
	j, err := newJudge(host)
	if err == nil {
		err = consider(j)
	}
	if err == nil {
		err = j.endDenied(ctx, host.Conntrack)
	}
	if err != nil {
		return fmt.Errorf("end connections that policies deny: %w", err)
	}
	return nil
}

// behind returns what the policy applies to besides the addresses of the result, because it applies to the
// link, or did before a change; nil if there is nothing. On a bridge, it applies to the addresses only.
func (a *attachment) behind() (*rtnl.Behind, error) {
	if a.policy == nil && a.member.Former == "" || a.bridge != "" {
		return nil, nil
	}
	return a.args.Host.Kernel.Behind(a.veth, a.linkLocal...)
}

// judge decides on flows as the rules in the kernel do.
type judge struct {
	sdk     *sdk.Host
	members map[netip.Addr]*policystate.Member
	links   map[string]*policystate.Member // by the keys, which are the names of the links
	// addresses and behind are those whose connections are judged.
	addresses []netip.Addr
	behind    []linked
	// via are members by addresses to which the host has routes over their links. They belong to no
	// selection.
	via      map[netip.Addr]*policystate.Member
	ownersTo func(netip.Addr) ([]names.Owner, error)
	host     *rtnl.HostAddresses
	policies map[string]*decided
}

// linked is what is behind the link of a member.
type linked struct {
	*rtnl.Behind
	member *policystate.Member
}

// decided is a policy with the selectors of its selections.
type decided struct {
	content
	selectors map[string]*selector
}

func newJudge(host *sdk.Host) (*judge, error) {
	j := &judge{
		sdk: host, members: map[netip.Addr]*policystate.Member{}, links: map[string]*policystate.Member{},
		via: map[netip.Addr]*policystate.Member{}, ownersTo: host.Kernel.OwnersTo, policies: map[string]*decided{},
	}
	members, err := host.Policies.Members("")
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		j.links[m.Key] = m
		for _, address := range m.Addresses {
			j.members[address] = m
		}
	}
	j.host, err = rtnl.ListHostAddresses()
	return j, err
}

// consider makes the connections of attachments be judged, and those of all members with the same policies
// if these were restored.
func (j *judge) consider(list []*attachment, restored bool) error {
	known, policies := map[string]bool{}, map[string]bool{}
	for _, a := range list {
		known[a.member.Key], policies[a.member.Policy] = true, true
		behind, err := a.behind()
		if err != nil {
			return err
		}
		j.add(&a.member, behind)
	}
	if !restored {
		return nil
	}
	return j.considerPolicies(func(id string) bool { return policies[id] }, known)
}

// considerPolicies makes the connections of all members with some policies be judged.
func (j *judge) considerPolicies(of func(id string) bool, except map[string]bool) error {
	for key, m := range j.links {
		if except[key] || m.Policy == "" || !of(m.Policy) {
			continue
		}
		behind, err := j.sdk.Kernel.Behind(key)
		if err != nil && !rtnl.IsNotFound(err) {
			return err
		}
		j.add(m, behind)
	}
	return nil
}

func (j *judge) add(m *policystate.Member, behind *rtnl.Behind) {
	if j.addresses = append(j.addresses, m.Addresses...); behind != nil {
		j.behind = append(j.behind, linked{behind, m})
	}
}

func (j *judge) endDenied(ctx context.Context, conn *conntrack.Conn) error {
	var networks []netip.Prefix
	for _, b := range j.behind {
		networks = append(networks, b.Networks()...)
	}
	return conn.EndFlows(ctx, j.addresses, networks, func(f conntrack.Flow) (bool, error) {
		allowed, err := j.allows(f)
		return !allowed, err
	})
}

// allows reports whether the policies of both ends allow a flow.
func (j *judge) allows(f conntrack.Flow) (bool, error) {
	for _, end := range []struct {
		of, peer netip.Addr
		stages   func(*decided) []ruleset.Stage
		ingress  bool
	}{
		{of: f.Source, peer: f.Destination, stages: func(d *decided) []ruleset.Stage { return d.Egress }},
		{of: f.Destination, peer: f.Source, stages: func(d *decided) []ruleset.Stage { return d.Ingress }, ingress: true},
	} {
		m, err := j.subject(end.of)
		if err != nil {
			return false, err
		}
		if m == nil || m.Policy == "" {
			continue
		}
		d, err := j.policy(m.Policy)
		if err != nil || d == nil {
			return false, err
		}
		isHost := j.host.Receives(end.peer)
		if end.ingress {
			isHost = j.host.Has(end.peer)
		}
		for _, s := range end.stages(d) {
			if !j.passes(&s, d, end.peer, isHost, f) {
				return false, nil
			}
		}
	}
	return true, nil
}

// subject returns the attachment whose policy applies to an address; nil if there is none.
func (j *judge) subject(of netip.Addr) (*policystate.Member, error) {
	if m := j.members[of]; m != nil {
		return m, nil
	}
	if of.IsLinkLocalUnicast() && of.Is6() { // an address of any link
		for _, b := range j.behind {
			if has, err := b.Has(of); has || err != nil {
				return b.member, err
			}
		}
		return nil, nil
	}
	m, known := j.via[of]
	if !known {
		owners, err := j.ownersTo(of)
		if err != nil {
			return nil, err
		}
		for _, o := range owners {
			m = cmp.Or(m, j.links[o.Veth()])
		}
		j.via[of] = m
	}
	return m, nil
}

// policy returns a stored policy, or nil if it does not exist.
func (j *judge) policy(id string) (*decided, error) {
	if d, known := j.policies[id]; known {
		return d, nil
	}
	stored, err := j.sdk.Policies.Policy(id)
	if err != nil || stored == nil {
		return nil, err
	}
	d := &decided{selectors: map[string]*selector{}}
	if err := json.Unmarshal(stored.Content, &d.content); err != nil {
		return nil, fmt.Errorf("policy %s: %w", id, err)
	}
	for _, n := range stored.Selections {
		s := &selector{}
		if err := json.Unmarshal(n.Selector, s); err != nil {
			return nil, fmt.Errorf("selection %s: %w", n.Name, err)
		}
		d.selectors[n.Name] = s
	}
	j.policies[id] = d
	return d, nil
}

// passes reports whether a stage allows a flow.
func (j *judge) passes(s *ruleset.Stage, d *decided, peer netip.Addr, isHost bool, f conntrack.Flow) bool {
	for i := range s.Rules {
		r, port := &s.Rules[i], f.Port
		if len(r.Peer.Original) > 0 && !r.Peer.World {
			port = f.OriginalPort
		}
		if j.matches(&r.Peer, d, peer, isHost, f) && matches(r.Services, f.Protocol, port) {
			return !r.Deny
		}
	}
	return !s.Deny
}

func (j *judge) matches(p *ruleset.Peer, d *decided, peer netip.Addr, isHost bool, f conntrack.Flow) bool {
	m := j.members[peer]
	contains := func(list []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	within := func(list []netip.Prefix) bool { return contains(list, peer) }
	switch {
	case p.Selection != "":
		return m != nil && d.selectors[p.Selection] != nil && d.selectors[p.Selection].matches(m)
	case len(p.Prefixes) > 0:
		return within(p.Prefixes)
	case p.Host:
		return isHost && !within(p.Except)
	case p.Allocations:
		return m != nil && !f.Redirected && !within(p.Except)
	case p.Unpublished:
		return !f.Redirected && (m == nil || !within(p.Except))
	case p.World:
		return m == nil && !isHost && !within(p.Except) && !contains(p.Original, f.Original)
	case len(p.Original) > 0:
		return f.Redirected && contains(p.Original, f.Original)
	}
	return true
}

func matches(services ruleset.Services, protocol uint8, port uint16) bool {
	return len(services) == 0 || slices.ContainsFunc(services, func(s ruleset.Service) bool { return isOf(&s, protocol, port) })
}

func isOf(s *ruleset.Service, protocol uint8, port uint16) bool {
	switch {
	case s.Protocol != protocol:
		return false
	case s.Type != nil:
		return uint16(*s.Type) == port
	case s.First == 0 && s.Last == 0:
		return true
	}
	return s.First <= port && port <= s.Last
}
